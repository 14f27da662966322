"""``make clean`` removes what can be made again, and no trained model."""

import subprocess
from pathlib import Path

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def test_trained_runs_stay(tmp_path):
    for name in (".venv/x", "runs/docs/x", "runs/smoke/x", "runs/first/text/model/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    done = subprocess.run(
        ["make", "-f", str(MAKEFILE), "clean"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("x"))
    assert left == ["runs/first/text/model/x"]
    assert "Kept: runs/" in done.stdout
