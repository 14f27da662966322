"""Every protocol over long contexts runs on every kind of model, and asks all the same."""

import pytest

from diffattn.lab.evaluation.registry import protocol_class
from evaluation_folders import evaluated

GUESS, FITS, NAMED = "guess", "guess_of_all_that_fit", "guess_of_all_named"
FORCED = {"digits_greedy", "logprob_per_token"}
CASES = {
    "attention_segments": (
        {"length": 420, "num_needles": 3, "depths": (0, 50), "samples": 1},
        ["answer", "noise"] * 2,
        {f"{part}_{weights}" for part in ("answer", "noise")
         for weights in ("signed", "clipped", "absolute")},
    ),
    "babilong": (
        {"lengths": (0, 1000), "tasks": ("qa1", "qa4"), "samples": 1},
        ["mean_of_2_tasks", "mean_of_2_tasks", GUESS, FITS, "effective_length"],
        {"accuracy", "logprob_per_token"},
    ),
    "hidden_needle": (
        {"lengths": (250, 400), "depths": 2, "needles": 1},
        ["contains", "contains", "base_score", "effective_length"],
        {"contains", "logprob_per_token"},
    ),
    "key_values": (
        {"num_pairs": (3, 4), "samples": 4, "questions": 2, "examples": 1},
        ["recall", GUESS, NAMED] * 3,
        {"recall", "logprob_per_token"},
    ),
    "needle": (
        {"tasks": ((1, 1), (3, 2)), "lengths": (600,), "depths": (0, 50, 100), "samples": 1},
        ["recall", "recall", "all_correct", GUESS, NAMED],
        {"recall", "all_correct", *FORCED},
    ),
    "ruler": (
        {"lengths": (1024,), "tasks": ("niah_single_2", "niah_multikey_2"), "samples": 1},
        ["mean_of_2_tasks", "effective_length_of_2_tasks"],
        {"score", "logprob_per_token"},
    ),
    "single_needle": (
        {"lengths": (700,), "depths": (0, 50, 100)},
        ["accuracy", "control_accuracy", "false_refusal", "refusal"],
        {"accuracy", "false_refusal", "phrase_greedy", "logprob_per_token"},
    ),
}  # fmt: skip
"""Settings; the headline metrics; the scores of the first row."""


@pytest.fixture(params=CASES)
def case(request, haystack):
    """A protocol, and the rest of its case."""
    settings, *rest = CASES[request.param]
    source = {} if request.param == "key_values" else {"haystack": haystack}
    return protocol_class(request.param)(**settings, **source), *rest


def test_every_kind_of_model(case, model, tmp_path):
    protocol, headline, scores = case
    result, rows = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (len(rows), 0)
    assert [metric.name for metric in result.headline()] == headline
    assert set(rows[0]["scores"]) == scores


def test_items_are_the_same_for_every_model(case, models):
    """Each batch shares a text; no two items share an id."""
    first, second, third = (case[0].batches(models[kind]) for kind in ("softmax", "diff", "llama"))
    assert first == second == third
    ids = [item.id for batch in first for item in batch]
    assert len(set(ids)) == len(ids)
