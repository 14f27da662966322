"""One sentence in a text: found, missed or refused, with and without it."""

import pytest

from diffattn.lab.evaluation.long_context.single_needle import PHRASE, SingleNeedle
from diffattn.lab.stats.proportions import wilson_interval
from evaluation_folders import evaluated
from scripted_model import generating

SENTENCE = f"The best thing to do in San Francisco is {PHRASE}."


def protocol(haystack, **changes):
    values = {"lengths": (700, 900), "depths": (0, 50, 100), "samples": 1, "haystack": haystack}
    return SingleNeedle(**(values | changes))


def test_prompts(models, haystack):
    model = models["diff"]
    prompts = protocol(haystack)._prompts(model, 900, 0, [0, 30, 100, None])
    texts = [model.decode(prompt.ids) for prompt in prompts]
    assert len({len(prompt.ids) for prompt in prompts}) == 1
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.count(SENTENCE) == (prompt.depth is not None)
        assert text.startswith("Answer the question")
        assert text.endswith("San Francisco?\nAnswer:")
    assert f"write UNANSWERABLE.\n\n\n{SENTENCE}" in texts[0]
    assert f"{SENTENCE}\n\n\nQuestion:" in texts[2]
    assert texts[1].split(f"\n{SENTENCE}")[0].endswith(".")
    assert 20 < prompts[1].realised <= 30
    before, after = texts[1].split(f"\n{SENTENCE}\n")
    assert texts[3].startswith((before + after).split("\n\nQuestion")[0])


def test_rates(models, haystack, tmp_path):
    """A model that finds the needle at depth 50, refuses at 100 and refuses the long control; the
    short one it answers by heart."""
    answers = iter(
        [
            "Go to the museum.", f"You should  {PHRASE.upper()}!", "UNANSWERABLE", PHRASE,
            "", PHRASE, f"Unanswerable. {PHRASE}", "It is unanswerable.",
        ]
    )  # fmt: skip
    model = generating(models["softmax"], lambda: next(answers))
    result, rows = evaluated(model, protocol(haystack), tmp_path / "out")
    assert set(rows[3]["scores"]) == {
        "refusal", "control_accuracy", "control_logprob_per_token",
    }  # fmt: skip
    found = {(m.name, *m.where.values()): m for m in result.metrics}
    assert found["accuracy",].value == pytest.approx(2 / 6)
    assert found["accuracy",].n == 2  # texts
    assert found["false_refusal",].value == pytest.approx(2 / 6)
    assert found["refusal",].value == 0.5
    assert (found["control_accuracy",].value, found["control_accuracy",].n) == (0.5, 2)
    assert found["control_accuracy", 700].value == 1
    assert found["refusal", 900].value == 1
    assert found["accuracy", 700, 50].low == wilson_interval(1, 1).low
    assert result.tables["grid"]["accuracy"] == [[0, 0], [1, 1], [0, 0]]
