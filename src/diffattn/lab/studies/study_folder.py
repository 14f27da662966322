"""``study.json``: which study a folder holds."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError, short
from diffattn.files.io import read_json, write_json
from diffattn.lab.records.claim import difference, is_claimed
from diffattn.lab.records.run import config_hash, require_schema
from diffattn.lab.records.stored_runs import RUNS, TABLE, unpack_runs

_MARKER = "study.json"


def recorded_study(
    folder: Path, resolved: dict[str, Any], *, besides: str | None = None
) -> dict[str, Any] | None:
    """``study.json`` of a folder that holds the same study; ``None`` for a free folder.

    The run folders of a committed study are unpacked from its table, so that it can continue.

    Args:
        besides: Name of one entry that may lie in a free folder.

    Raises:
        ConfigError: The folder holds a study of another configuration.
        CheckpointError: Something else lies there.
    """
    if not is_claimed(folder, _MARKER, "a study", besides=besides):
        return None
    path = folder / _MARKER
    recorded = read_json(path)
    require_schema(recorded, path)
    if recorded.get("config_hash") != config_hash(resolved):
        raise ConfigError(
            f"reproduce: {folder} must hold this configuration to be continued, got another one"
            f"{_first_difference(recorded, resolved)}. Choose another --out"
            f"{_way_to_add_seeds(folder, recorded, resolved)}."
        )
    if not isinstance(recorded.get("data", {}), dict):
        raise CheckpointError(f"{path}: data must be a dict, got {recorded['data']!r}.")
    if (folder / TABLE).exists() and not (folder / RUNS).exists():
        unpack_runs(folder / TABLE, folder / RUNS)
    return dict(recorded)


def _first_difference(recorded: dict[str, Any], resolved: dict[str, Any]) -> str:
    fault = difference("", {name: recorded.get(name) for name in resolved}, resolved, ())
    return f": {short(fault)}" if fault else ""


def _way_to_add_seeds(folder: Path, recorded: dict[str, Any], resolved: dict[str, Any]) -> str:
    """A hint if seeds differ: a new study with more seeds can copy the runs of this one."""
    if recorded.get("seeds") == resolved.get("seeds") or "data" not in recorded:
        return ""
    return f"; for more seeds, with --reuse {folder}, which copies its runs"


def begin_study(folder: Path, resolved: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write ``study.json``: the configuration, and ``facts`` such as the data."""
    head = {
        "schema": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_hash": config_hash(resolved),
    }
    write_json(folder / _MARKER, head | facts | resolved)


def recorded_costs(runs: Path, names: Iterable[str]) -> dict[str, Any]:
    """Name of a finished run in this study -> its ``costs.json``, with this name as ``run``."""
    costs = {}
    for name in names:
        path = runs / name / "costs.json"
        # A run that diverged before its first checkpoint has no costs.
        if path.exists() or read_json(runs / name / "results.json").get("diverged_step") is None:
            costs[name] = read_json(path) | {"run": name}
    return costs


def require_same_data(folder: Path, recorded: dict[str, Any], facts: dict[str, Any]) -> None:
    """Refuse to continue a study on other tokens.

    Args:
        facts: Hashes and counts of the tokens at hand.

    Raises:
        ConfigError: One of ``facts`` has changed since the study began.
    """
    changed = [key for key in facts if recorded["data"].get(key) != facts[key]]
    if changed:
        raise ConfigError(
            f"reproduce: the data of {folder} must be unchanged to continue, got another "
            f"{changed[0]}. Choose another --out."
        )
