"""The ladder's finished runs in one table, from which another machine goes on."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import ELEMENT_GATE
from diffattn.lab.records.stored_runs import TABLE, runs_folder, unpack_runs
from diffattn.lab.studies.reproduce import reuse_runs
from diffattn.lab.studies.text.comparison import comparison
from small_corpus import corpus
from tools.studies import ladder
from tools.studies.element_gate import PUBLISHED, element_gate
from tools.studies.ladder import pack_finished

__all__ = ["corpus"]
SCALING = Path(__file__).parents[2] / "published" / "scaling"


def test_only_finished_runs_are_packed(tmp_path):
    runs, table = tmp_path / "runs", tmp_path / "published" / TABLE
    shutil.copytree(runs_folder(SCALING), runs)
    first, second, *_ = sorted(path.name for path in runs.iterdir())
    (runs / first / "results.json").unlink()
    (runs / second / "checkpoints").mkdir()
    pack_finished(runs, table)
    unpack_runs(table, tmp_path / "again")
    unpacked = {path.name for path in (tmp_path / "again").iterdir()}
    assert unpacked == {path.name for path in runs.iterdir()} - {first, second}


@pytest.mark.scheduled
def test_it_trains_sums_up_and_takes_packed_runs(corpus, tmp_path, monkeypatch):
    """The whole command, with two models of the smoke study in place of its own."""
    settings = [f"data.source={corpus}", "data.vocab_size=300", "data.validation_fraction=0.2"]
    settings += ["train.num_steps=4", "train.warmup_steps=1", "train.evaluate_every=2"]
    study = comparison("smoke", seeds=(0,), settings=settings)
    study = replace(study, variants=("softmax", "diff_v2"))
    monkeypatch.setattr(ladder, "ladder", lambda text: study)
    monkeypatch.setattr(ladder, "copy_text", lambda text: text.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(ladder, "FINISHED", tmp_path / TABLE)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ladder", *map(str, arguments)])
        ladder.main()

    run(tmp_path / "first")
    run(tmp_path / "first", "--pack")
    run(tmp_path / "second")
    first, second = (read_json(tmp_path / name / "results.json") for name in ("first", "second"))
    assert first == second
    assert len(list((tmp_path / "second" / "runs").iterdir())) == len(study.variants)


def test_beside_the_gate_per_channel_the_published_runs_are_taken(tmp_path):
    study = element_gate()
    planned = study.trials(dict.fromkeys(study.variants, 2e-3))
    data = read_json(PUBLISHED / "text" / "study.json")["data"]
    facts = {name: data[name] for name in data if name not in ("source", "vocab_size", "python")}
    copied = reuse_runs(planned, facts, tmp_path, [PUBLISHED / "text"])
    left = {run.config.name for run in planned} - set(copied)
    assert left == {f"{ELEMENT_GATE}-seed{seed}" for seed in range(5)}
