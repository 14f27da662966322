"""Contextual hallucination: every kind of model, every data set, and bad input."""

import json

import pytest
import torch

from diffattn.lab.evaluation.hallucination.answer_metrics import ROUGE
from diffattn.lab.evaluation.hallucination.data import TASKS
from diffattn.lab.evaluation.hallucination.hallucination import MAPS, Hallucination, lookback_ratios
from diffattn.lab.inference.decoding import Generation
from evaluation_folders import evaluated
from language_models import whole_maps
from scripted_model import ScriptedModel

SIZES = {"samples": 3, "prompt_tokens": 600, "max_new_tokens": 6, "rouge": False}


def run(model, folder, **parameters):
    protocol = Hallucination(**(SIZES | {"data": "generated"} | parameters))
    return evaluated(model, protocol, folder)


@pytest.mark.parametrize("dataset", TASKS)
def test_every_data_set(dataset, models, tmp_path):
    result, rows = run(models["diff"], tmp_path / "out", dataset=dataset, samples=2)
    assert result.num_failed == 0
    names = {metric.name for metric in result.metrics}
    assert ("span_match" in names) == (TASKS[dataset].kind == "answer")
    assert {f"lookback_{name}" for name in MAPS} < names
    assert result.tables["lookback"].keys() == set(MAPS)
    assert all(row["prompt_tokens"] <= 600 for row in rows)


def test_answers_are_scored_in_what_was_read(models, tmp_path):
    data = tmp_path / "hotpotqa.jsonl"
    row = {"context": "The ship of Anna Keller came in 1921.", "input": "who?", "answers": ["Anna"]}
    data.write_text(json.dumps(row) + "\n")
    written = "Anna Keller, with Tom Brandt, in 1921 and 1922"

    def generate(prompts, *, max_new_tokens, stop):
        assert stop == ()
        (prompt,) = prompts
        assert "passages.\nThe ship of Anna" in models["diff"].decode(prompt)
        return [Generation((5, 6), f" {written}", "eos")]

    model = ScriptedModel(models["diff"], generate=generate)
    _, (row,) = run(model, tmp_path / "out", dataset="hotpotqa", data=str(tmp_path))
    assert row["output"] == written
    assert row["scores"]["span_match"] == 1.0
    # "Anna" begins the sentence; "Keller" is found, "Tom Brandt" is not.
    assert (row["scores"]["entities_found"], row["entities_missing"]) == (0.5, ["Tom Brandt"])
    assert (row["scores"]["numbers_found"], row["numbers_missing"]) == (0.5, ["1922"])
    assert 0 < row["scores"]["novel_bigrams"] < 1


def test_a_copied_beginning_stands_beside_a_summary(models, tmp_path):
    """Copying the document finds all entities: the lead shows that, and what ROUGE it has."""
    pytest.importorskip("rouge_score")
    lead = "The ship of Anna Keller came. Was it late? She met Tom Brandt in Oslo!"
    row = {"document": f"{lead} They left.", "summary": "She met Tom Brandt."}
    (tmp_path / "xsum.jsonl").write_text(json.dumps(row) + "\n")
    model = ScriptedModel(
        models["diff"], generate=lambda prompts, **_: [Generation((5, 6), lead, "eos")]
    )
    result, (row,) = run(model, tmp_path / "out", data=str(tmp_path), rouge=True)
    assert row["scores"]["entities_found"] == row["lead"]["entities_found"] == 1.0
    assert set(row["lead"]) == {"entities_found", *ROUGE}
    assert all(row["lead"][name] == row["scores"][name] for name in row["lead"])  # it was copied
    assert {metric.name for metric in result.headline()} >= {"lead_entities_found", "lead_rougeL"}


def test_an_empty_output_is_counted_and_has_no_shares(models, tmp_path):
    empty = Generation((), " ", "eos")
    model = ScriptedModel(models["diff"], generate=lambda prompts, **_: [empty] * len(prompts))
    result, _ = run(model, tmp_path / "out", dataset="qasper")
    values = {metric.name: metric.value for metric in result.metrics}
    assert values == {"empty": 1.0, "span_match": 0.0, "word_f1": 0.0}


def test_a_row_that_cannot_be_asked_is_recorded_and_the_others_are_asked(models, tmp_path):
    """One without a document, and one whose question is longer than the prompt."""
    texts = [("A house.", "why"), ("  ", "why"), ("A road.", "why " * 900)]
    rows = [{"context": text, "input": asked, "answers": ["a"]} for text, asked in texts]
    (tmp_path / "qasper.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result, done = run(models["diff"], tmp_path / "out", dataset="qasper", data=str(tmp_path))
    assert (result.num_items, result.num_failed) == (3, 2)
    assert "the document must hold text" in done[1]["error"]
    assert "The prompt without its document must fit 600 tokens" in done[2]["error"]


PROMPT, WRITTEN, CONTEXT = list(range(5, 30)), list(range(40, 61)), 21


@torch.no_grad()
def test_ratios_equal_those_of_full_maps(model):
    found = lookback_ratios(model, PROMPT, WRITTEN, CONTEXT)
    if model.label in ("softmax", "llama"):
        assert found["a1"] == found["difference"] == found["absolute"]
    for layer, (map_1, acting) in enumerate(whole_maps(model, PROMPT + WRITTEN[:-1])):
        assert len(found["a1"][layer]) == len(map_1)
        for head in range(len(map_1)):
            rows = {"a1": map_1[head], "difference": acting[head], "absolute": acting[head].abs()}
            for name, row in rows.items():
                steps = range(len(PROMPT) - 1, len(PROMPT) + len(WRITTEN) - 1)
                c = torch.stack([row[t, :CONTEXT].mean() for t in steps])
                n = torch.stack([row[t, CONTEXT : t + 1].mean() for t in steps])
                assert len(c) == len(WRITTEN)
                expected = float((c / (c.abs() + n.abs())).mean())
                if name != "difference":
                    assert expected == pytest.approx(float((c / (c + n)).mean()))
                # Ratios are stored to six digits.
                assert found[name][layer][head] == pytest.approx(expected, abs=6e-7)
