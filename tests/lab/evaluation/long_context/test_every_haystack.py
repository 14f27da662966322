"""Every protocol over long contexts runs, and asks every model the same."""

import pytest

from diffattn.lab.evaluation.metrics import primary_score
from diffattn.lab.evaluation.protocol import protocol_class
from evaluation_folders import evaluated

CASES = {
    "attention_segments": {"length": 420, "num_needles": 3, "depths": (0, 50), "samples": 1},
    "babilong": {"lengths": (0, 1000), "tasks": ("qa1", "qa4"), "samples": 1},
    "hidden_needle": {"lengths": (250, 400), "depths": 2, "needles": 1},
    "key_values": {"num_pairs": (3, 4), "samples": 4, "questions": 2, "examples": 1},
    "needle": {"tasks": ((1, 1), (3, 2)), "lengths": (600,), "depths": (0, 100), "samples": 1},
    "ruler": {"lengths": (1024,), "tasks": ("niah_single_2", "niah_multikey_2"), "samples": 1},
}


@pytest.fixture(params=CASES)
def protocol(request, haystack):
    source = {} if request.param == "key_values" else {"haystack": haystack}
    return protocol_class(request.param)(**CASES[request.param], **source)


def test_rows_have_the_score_that_decides_the_verdict(protocol, models, tmp_path):
    result, rows = evaluated(models["diff_v2"], protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (len(rows), 0)
    assert result.headline()
    assert primary_score(protocol.name, protocol.parameters(), [*rows[0]["scores"]])


def test_items_are_the_same_for_every_model(protocol, models):
    """Each batch shares a text; no two items share an id."""
    first, second, third = (protocol.batches(models[x]) for x in ("softmax", "diff", "llama"))
    assert first == second == third
    ids = [item.id for batch in first for item in batch]
    assert len(set(ids)) == len(ids)
