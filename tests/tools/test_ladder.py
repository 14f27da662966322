"""The ladder's finished runs in one table, from which another machine goes on."""

import shutil
from pathlib import Path

from diffattn.lab.records.stored_runs import TABLE, runs_folder, unpack_runs
from tools.ladder import pack_finished

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
