"""Run records in one table: unpacked byte for byte, and no published number has changed."""

import hashlib
import shutil
from pathlib import Path

import pandas
import pytest

from diffattn.errors import CheckpointError
from diffattn.files.io import read_json
from diffattn.lab.records.stored_runs import TABLE, pack_runs, results_folder, runs_folder

PUBLISHED = Path(__file__).parents[3] / "published"
STUDIES = sorted(path.parent for path in PUBLISHED.glob("*/study.json"))
OUTLIERS = PUBLISHED / "evaluations" / "outliers"
DIGESTS = {
    "ablations": "b66662c5641c827e",
    "gradient_flow": "77789c9a06cebd97",
    "practical": "4b5926721631144b",
    "rank": "acd7c9ef6cdfb6db",
    "recall": "944c59640698f24d",
    "scaling": "9ac0f9a86c5b2447",
    "stability": "54df13cb28041303",
    "text": "172f2c1b0e336a21",
    "outliers": "e589d0f9740f34fd",
}


def digest(*folders):
    """SHA-256 over the names and contents of all files below the folders."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*.json*") if path.name != TABLE):
            total.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


@pytest.mark.parametrize("study", [*STUDIES, OUTLIERS], ids=lambda path: path.name)
def test_every_published_number_is_as_it_was_measured(study):
    """After new runs the digest changes on purpose."""
    runs = results_folder(study) if study == OUTLIERS else runs_folder(study)
    assert digest(study, runs) == DIGESTS[study.name]


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
