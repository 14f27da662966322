"""Run records in one table: unpacked byte for byte, and no published number has changed."""

import hashlib
import shutil
from pathlib import Path

import pandas
import pytest

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json
from diffattn.lab.records.stored_runs import TABLE, pack_runs, runs_folder

PUBLISHED = Path(__file__).parents[3] / "published"
OUTLIERS = PUBLISHED / "evaluations" / "outliers"
DIGESTS = {
    "ablations": "24654d52f4d55e19",
    "gradient_flow": "1bef41842041d67e",
    "practical": "4956c78c1266988f",
    "rank": "6d12f91b685a154c",
    "recall": "7031e99010fe28c0",
    "scaling": "d226db2f33051baa",
    "shuffled": "610a80a04a179f84",
    "stability": "6a18bfacc491506e",
    "text": "13b98d098b848922",
    "outliers": "dbddf30a32d7d144",
}


def digest(folder):
    """SHA-256 over the names and contents of all files below a folder."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


def test_every_published_number_is_as_it_was_measured():
    """After new runs a digest changes on purpose."""
    studies = {path.parent for path in PUBLISHED.glob("*/study.json")} | {OUTLIERS}
    assert {study.name: digest(study) for study in studies} == DIGESTS


def test_published_holds_few_small_files():
    files = [path for path in PUBLISHED.rglob("*") if path.is_file()]
    assert len(files) <= 60
    assert {path.suffix for path in files} == {".json", ".gz"}
    assert sum(path.stat().st_size for path in files) < 20_000_000


def test_pandas_reads_a_table():
    table = pandas.read_json(PUBLISHED / "text" / TABLE, lines=True)
    losses = {row["name"]: row["results.json"]["validation_loss"] for _, row in table.iterrows()}
    best = read_json(PUBLISHED / "text" / "results.json")["variants"]["softmax"]["at"]["best"]
    assert len(losses) == len(table) > 100
    assert [losses[name] for name in best["runs"]] == best["validation_loss"]["values"]


def test_a_table_stands_for_its_folders(tmp_path):
    study = tmp_path / "study"
    shutil.copytree(runs_folder(PUBLISHED / "scaling"), study / "runs")
    pack_runs(study / "runs", study / TABLE)
    before = digest(study / "runs")
    shutil.rmtree(study / "runs")
    assert digest(runs_folder(study)) == before


def test_a_damaged_table_is_named(tmp_path):
    (tmp_path / TABLE).write_bytes((PUBLISHED / "scaling" / TABLE).read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="must be a gzip file, got a damaged one"):
        runs_folder(tmp_path)


def test_another_layout_is_not_packed(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text('{"a":1}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="must be as our writer formats it"):
        pack_runs(tmp_path / "runs", tmp_path / TABLE)
