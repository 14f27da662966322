"""The main job, end to end and small: real text, real worker processes, every file."""

import json
import shutil

import pytest
import torch

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import SWEPT, TYPES
from diffattn.lab.records.run import RunRecord, config_hash
from diffattn.lab.report.study.files import read_study
from diffattn.lab.studies import workers
from diffattn.lab.studies.reproduce import reproduce
from diffattn.lab.studies.text.comparison import comparison
from record_files import change_record, contents, entries

NAMES = [f"{name}-seed0" for name in SWEPT]
DERIVED = ("results.json", "costs.json", "counts.json", "maps.json", "report.html")


def test_files_of_a_study(study, settings):
    assert set(entries(study)) == {*DERIVED, "study.json", "data", "runs"}
    folders = {path.name for path in (study / "runs").iterdir() if path.is_dir()}
    assert folders == set(NAMES)
    for name in NAMES:
        assert RunRecord.read(study / "runs" / name).name == name
    assert list(read_json(study / "costs.json")["runs"]) == NAMES
    assert read_study(study).gaps == ()
    record = read_json(study / "study.json")
    config = comparison("smoke", settings=settings)
    assert record["config_hash"] == config_hash(config.resolved())
    assert (record["schema"], record["scale"], record["match"]) == (1, "smoke", "params")
    hashes = {json.dumps(RunRecord.read(study / "runs" / name).config["data"]) for name in NAMES}
    assert len(hashes) == 1  # the very same tokens for every run
    assert record["data"]["train_hash"] in hashes.pop()


def test_maps_of_one_example(study):
    maps = read_json(study / "maps.json")
    length = len(maps["tokens"])
    assert length == 16  # the whole context
    assert list(maps["layers"]) == list(TYPES)
    for kind, entry in maps["layers"].items():
        assert entry["run"] == f"{kind}-seed0"
        assert (entry["layer"], entry["head"]) == (1, 0)
        assert ("map_2" in entry) == (kind != "softmax")
        for name in ("map_1", "map_2"):
            rows = torch.tensor(entry.get(name, entry["map_1"]))
            assert rows.shape == (length, length)
            torch.testing.assert_close(rows.sum(-1), torch.ones(length), atol=1e-3, rtol=0)
        if kind != "softmax":
            sums = torch.tensor(entry["difference"]).sum(-1)
            assert 1 - sums.mean().item() == pytest.approx(entry["lam"], abs=1e-3)


def test_maps_stay_where_the_weights_of_their_run_are_gone(copied, settings):
    maps = (copied / "maps.json").read_bytes()
    for name in NAMES:
        shutil.rmtree(copied / "runs" / name / "model")
    reproduce("smoke", out=copied, settings=settings, on_message=[].append)
    assert (copied / "maps.json").read_bytes() == maps
    change_record(copied / "maps.json", tokens=["another text"])
    reproduce("smoke", out=copied, settings=settings, on_message=[].append)
    assert read_json(copied / "maps.json")["layers"] == {}


def test_the_second_call_is_quick_and_changes_nothing(copied, settings, monkeypatch):
    monkeypatch.setattr(workers, "_Worker", None)  # no process is started
    before = contents(copied)
    lines = []
    reproduce("smoke", out=copied, settings=settings, on_message=lines.append)
    assert lines[0].startswith("checking ")
    assert lines[1:] == ["comparing"]
    assert contents(copied) == before


def test_what_is_derived_comes_back(copied, settings):
    before = contents(copied)
    for name in DERIVED:
        (copied / name).unlink()
    reproduce("smoke", out=copied, settings=settings, on_message=lambda line: None)
    assert contents(copied) == before
