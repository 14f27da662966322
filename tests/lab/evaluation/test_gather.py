"""Several evaluation folders are read as one; what does not fit is named and left out."""

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.evaluation.compare import gather
from diffattn.lab.records.evaluations import register
from evaluation_folders import write


def test_one_label_of_two_models_is_told_apart(tmp_path):
    write(tmp_path / "x", "a", [0, 0])
    write(tmp_path / "y", "a", [1, 1], weights="other")
    found = gather([tmp_path / "x", tmp_path / "y"])
    assert found.labels == ["a", "a@y"]
    assert [r.model["label"] for r in found.results()] == ["a", "a@y"]


def test_one_model_in_two_folders_is_one(tmp_path):
    write(tmp_path / "x", "a", [0, 0])
    write(tmp_path / "y", "a", [1, 1])
    write(tmp_path / "y", "a", [1, 1], variant="more")
    found = gather([tmp_path / "x", tmp_path / "y"])
    assert (found.labels, found.variants) == (["a"], ["key_values", "more"])
    assert found.answers["key_values"]["a"].rows["0"]["scores"] == {"recall": 0.0}
    assert found.gaps == [f"a has key_values twice: that in {tmp_path / 'y'} is left out."]


def test_what_does_not_fit_is_named_and_left_out(tmp_path):
    write(tmp_path / "x", "a", [0] * 4)
    write(tmp_path / "x", "b", [1] * 4, version=2)
    write(tmp_path / "x", "c", [1] * 4, parameters={"haystack": "other"})
    damaged = write(tmp_path / "x", "d", [1] * 4)
    (damaged / "items.jsonl").write_text("{")
    register(tmp_path / "x", "e", "key_values")
    found = gather([tmp_path / "x"])
    assert [r.model["label"] for r in found.results()] == ["a"]
    assert found.compared().differences == []
    said = "\n".join([*found.gaps, *found.compared().skipped])
    for text in (
        "b was not compared: it is of key_values, version 2, where a has key_values, version 1.",
        "c was not compared: haystack differ from those of a.",
        "d is left out of key_values: ", "e has no result of key_values.",
    ):  # fmt: skip
        assert text in said


def test_folders_without_any_result(tmp_path):
    with pytest.raises(CheckpointError, match=r"evaluation\.json"):
        gather([tmp_path])
    register(tmp_path / "x", "a", "key_values")
    with pytest.raises(CheckpointError, match=r"got none\. a has no result of key_values\."):
        gather([tmp_path / "x"])
