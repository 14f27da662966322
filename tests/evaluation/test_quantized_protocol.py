"""Another protocol under rounded logits: paired, exact at 16 bits, whatever runs beside it."""

import copy
import math

import pytest
import torch

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.evaluation.lm_tasks.lm_tasks import LmTasks
from diffattn.evaluation.protocol import Part
from diffattn.evaluation.quantized_logits import QuantizedLogits
from diffattn.evaluation.registry import parts, protocol_class
from diffattn.evaluation.runner import evaluate
from diffattn.inference.language_model import LanguageModel
from diffattn.probes.quantized_logits import quantized_logits
from diffattn.records.io import read_jsonl
from lm_documents import write_task

_ONE_PAIR = {"num_pairs": [1], "samples": 1, "questions": 1, "examples": 0}
KEY_VALUES = {"protocol": "key_values", "settings": _ONE_PAIR}


@pytest.fixture
def corpus(tmp_path, text):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(text[i * 3000 :], encoding="utf-8")
    return str(folder)


def run(model, out, **settings):
    protocol = QuantizedLogits(**settings)
    result = evaluate(model, Part(variant="quantized_logits", protocol=protocol), out)
    return result, read_jsonl(out / "items.jsonl")


def values(result, name):
    return {m.where["bits"]: m.value for m in result.metrics if m.name == name}


def test_every_kind_of_model(model, corpus, tmp_path):
    before = model.network.config._attn_implementation
    result, rows = run(
        model, tmp_path / "out", **KEY_VALUES, bits=(16, 8, 4), text=corpus,
        num_windows=4, windows_per_document=2, window_tokens=32,
    )  # fmt: skip
    assert (result.num_items, result.num_failed) == (3 * (1 + 4), 0)
    assert values(result, "recall").keys() == {16, 8, 4}
    assert values(result, "perplexity").keys() == {16, 8, 4}
    changes = values(result, "change of text loss")
    assert 0 < abs(changes[8]) < abs(changes[4])
    losses = values(result, "text loss")
    assert changes[4] == pytest.approx(losses[4] - losses[16])
    assert values(result, "perplexity")[4] == pytest.approx(math.exp(losses[4]))
    assert model.network.config._attn_implementation == before
    assert not model.rows_alone
    texts = [row for row in rows if row["wrapped_id"].startswith("text-window")]
    assert {row["cluster"] for row in texts} == {"0.txt", "1.txt"}


def test_perplexity_equals_a_plain_pass(models, corpus, tmp_path, text):
    model = models["diff"]
    _, rows = run(
        model, tmp_path / "out", **KEY_VALUES, bits=(16, 6), text=corpus,
        num_windows=2, windows_per_document=2, window_tokens=40,
    )  # fmt: skip
    found = {row["id"]: row["scores"] for row in rows}
    ids = model.encode(text)
    for i in range(2):
        window = [model.bos, *ids[40 * i : 40 * (i + 1)]]
        for bits in (16, 6):
            with torch.no_grad(), quantized_logits(model.network, bits):
                logits = model.network(torch.tensor([window[:-1]])).logits
            expected = torch.nn.functional.cross_entropy(
                logits[0].float(), torch.tensor(window[1:])
            )
            loss = found[f"{bits}-bits-text-window-{i}"][f"text loss, {bits} bits"]
            assert loss == pytest.approx(float(expected), rel=1e-5)


def test_16_bits_are_the_wrapped_protocol(models, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    write_task(tmp_path / "data", "hellaswag", 6)
    settings = {"tasks": ["hellaswag"], "data": str(tmp_path / "data")}
    model = models["diff_v2"]
    result, rows = run(model, tmp_path / "a", settings=settings, bits=(16, 4), text=None)
    plain = LmTasks(tasks=("hellaswag",), data=str(tmp_path / "data"))
    expected = evaluate(model, Part(variant="lm_tasks", protocol=plain), tmp_path / "b")
    plain_rows = {row["id"]: row for row in read_jsonl(tmp_path / "b" / "items.jsonl")}
    for row in rows:
        if row["bits"] == 16:  # eager attention has its softmax in float32
            assert row["logprobs"] == pytest.approx(
                plain_rows[row["wrapped_id"]]["logprobs"], rel=1e-4
            )
    assert [m.value for m in expected.metrics] == [
        m.value for m in result.metrics if m.where.get("bits") == 16
    ]
    assert {tuple(m.where.items()) for m in result.metrics if m.headline} == {
        (("task", "hellaswag"), ("bits", 16)),
        (("task", "hellaswag"), ("bits", 4)),
    }


@pytest.mark.parametrize("granularity", ["tensor", "head", "row"])
def test_results_do_not_depend_on_what_runs_beside(models, granularity, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    write_task(tmp_path / "data", "arc_easy", 5)
    protocol = QuantizedLogits(
        settings={"tasks": ["arc_easy"], "data": str(tmp_path / "data")},
        bits=(4,), granularity=granularity, text=None,
    )  # fmt: skip
    model = models["diff"]
    (batch,) = protocol.batches(model)
    together = protocol.ask(model, batch)
    one_by_one = [protocol.ask(model, [item])[0] for item in reversed(batch)]
    assert together == one_by_one[::-1]


def test_generation_too(models, text):
    """With a cache; a scale per row makes it equal to reading everything anew for each token."""
    model = copy.copy(models["shared_diff"])
    model.rows_alone = True
    prompts = [model.encode_prompt(text[i : i + 90]) for i in (0, 200)]
    with quantized_logits(model.network, 4, granularity="row"):
        found = model.generate(prompts, max_new_tokens=6)
        for prompt, one in zip(prompts, found, strict=True):
            ids = list(prompt)
            for token in one.ids:
                with torch.no_grad():
                    assert int(model.network(torch.tensor([ids])).logits[0, -1].argmax()) == token
                ids.append(token)


WRAPPED = {
    "needle": {"tasks": [[1, 1]], "lengths": [256], "depths": [0, 100], "samples": 1},
    "sliding_perplexity": {"window": 64, "stride": 32, "documents": 2},
    "nll_by_position": {"length": 128, "documents": 2},
}


@pytest.mark.parametrize("name", WRAPPED)
def test_other_protocols_run_every_row_alone(models, name, monkeypatch):
    """No pass holds several rows, and no prefix serves several."""
    model = models["diff"]
    quick = protocol_class(name).quick
    fields = protocol_class(name).__dataclass_fields__
    settings = dict(quick) | {k: v for k, v in WRAPPED[name].items() if k in fields}
    protocol = QuantizedLogits(protocol=name, settings=settings, bits=(4,), text=None)
    rows = []
    hook = model.network.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    try:
        batch = protocol.batches(model)[0]
        together = protocol.ask(model, batch)
        assert together == [protocol.ask(model, [item])[0] for item in batch]
    finally:
        hook.remove()
    assert set(rows) == {1}


def test_a_protocol_that_reads_attention_maps_is_refused(models, tmp_path):
    settings = dict(protocol_class("attention_segments").quick) | {"depths": (50,), "samples": 1}
    with pytest.raises(DiffAttnError, match=r"nothing else may choose|attention maps need"):
        run(
            models["diff"], tmp_path / "out", protocol="attention_segments", settings=settings,
            bits=(4,), text=None,
        )  # fmt: skip


def test_the_record_names_the_wrapped_protocol_in_full(models, tmp_path):
    protocol = QuantizedLogits(**KEY_VALUES)
    assert protocol.parameters()["settings"] == {
        "lengths": None,
        "num_pairs": (1,),
        "samples": 1,
        "questions": 1,
        "examples": 0,
        "seed": 1234,
    }
    assert protocol.parameters()["wrapped_version"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "quantized_logits"}, "protocol must be in .* got 'quantized_logits'"),
        ({"protocol": "table8"}, "protocol must be in"),
        ({"settings": {"taks": ["piqa"]}}, "Did you mean 'lm_tasks.tasks'"),
        ({"settings": {"tasks": ["pika"]}}, "Did you mean 'piqa'"),
        ({"bits": (16, 16)}, "each once"),
        ({"bits": (32,)}, "from 2 to 16"),
        ({"bits": (3.5,)}, "from 2 to 16"),
        ({"bits": ()}, "must list widths"),
        ({"granularity": "column"}, "granularity must be in"),
        ({"num_windows": 0}, "must be 1 or more"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        QuantizedLogits(**settings)


def test_wrong_text(models, corpus, tmp_path):
    model = models["softmax"]
    with pytest.raises(ConfigError, match="at most the 1024 tokens of softmax, got 1025"):
        run(model, tmp_path / "a", **KEY_VALUES, text=corpus, window_tokens=1025)
    (tmp_path / "short.txt").write_text("too short", encoding="utf-8")
    with pytest.raises(ConfigError, match="must hold a document of 64 tokens"):
        run(model, tmp_path / "b", **KEY_VALUES, text=str(tmp_path / "short.txt"), window_tokens=64)
    with pytest.raises(ConfigError, match="existing file"):
        run(model, tmp_path / "c", **KEY_VALUES, text=str(tmp_path / "none"))


def test_a_tokenizer_without_bos_and_eos(models, tmp_path, corpus):
    tokenizer = copy.deepcopy(models["softmax"].tokenizer)
    tokenizer.bos_token = tokenizer.eos_token = None
    model = LanguageModel(models["softmax"].network, tokenizer)
    with pytest.raises(ConfigError, match="needs a tokenizer with BOS or EOS"):
        run(model, tmp_path / "a", **KEY_VALUES, text=corpus)


def test_preset():
    (part,) = parts(["fig8"])
    assert part.protocol.bits == (16, 8, 6, 4)
    assert part.protocol.parameters()["settings"]["tasks"] == ("hellaswag",)
