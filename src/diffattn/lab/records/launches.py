"""``launches.jsonl``: one row per start of a run. ``run.json`` records the first start only."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diffattn.files.io import append_jsonl, read_jsonl, recover_jsonl, sync
from diffattn.lab.records.run import git_state, package_versions

LAUNCHES = "launches.jsonl"


def append_launch(
    folder: Path, *, step: int, device: str, threads: int, engine: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Append a row with time, step, device, threads, engine settings, versions and commit.

    Args:
        step: Steps done at the checkpoint that the run continues from; 0 at the start.
        threads: CPU threads per operator; the last bits of its sums depend on them.
        engine: Engine settings, ``processes`` and ``parallel``.

    Returns:
        The previous row, or ``None``.
    """
    path = Path(folder) / LAUNCHES
    before = recover_jsonl(path)[0]  # a killed writer leaves half a row
    commit, dirty = git_state()
    append_jsonl(
        path,
        {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "step": step,
            "device": device,
            "threads": threads,
            "engine": dict(engine),
            "versions": package_versions(),
            "commit": commit,
            "dirty": dirty,
        },
    )
    sync(path)  # so that a loss of power never leaves results without their launches
    return before[-1] if before else None


def read_launches(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run directory; empty for runs older than this file."""
    path = Path(folder) / LAUNCHES
    return read_jsonl(path) if path.exists() else []
