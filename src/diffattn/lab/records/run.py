"""RunRecord: the settings and the provenance of a run, written before it starts."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, short
from diffattn.files.io import read_json, write_json
from diffattn.lab.records.fields import checked

SCHEMA_VERSION = 1
_PACKAGES = ("diffattn", "torch", "transformers", "accelerate", "tokenizers", "numpy")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run: resolved config and provenance. Written once to ``run.json``, never edited."""

    name: str
    """Unique within its study, e.g. ``"diff-seed1"``. A copy in another study keeps this name;
    the other study uses the name of the copy's folder."""
    config: dict[str, Any]
    """Resolved settings: ``{"model": ..., "train": ..., "data": ...}``."""
    seed: int
    backends: dict[str, str] = field(default_factory=dict)
    """Operator -> name of the backend that ran it."""
    device: str = "cpu"
    engine: dict[str, Any] = field(default_factory=dict)
    """Engine settings, ``processes`` and ``parallel`` of the first launch; empty in older records.
    Later launches may differ, see :mod:`diffattn.lab.records.launches`."""
    model: dict[str, Any] = field(default_factory=dict)
    """``parameters``, ``non_embedding_parameters``, ``train_flops_per_token``, further facts."""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    commit: str | None = field(default_factory=lambda: git_state()[0])
    dirty: bool | None = field(default_factory=lambda: git_state()[1])
    versions: dict[str, str] = field(default_factory=lambda: package_versions())
    hardware: dict[str, Any] = field(default_factory=lambda: hardware())
    schema: int = SCHEMA_VERSION

    def write(self, folder: Path) -> None:
        """Write ``run.json`` into ``folder``."""
        write_json(Path(folder) / "run.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read ``run.json`` from ``folder``."""
        path = Path(folder) / "run.json"
        value = read_json(path)
        require_schema(value, path)
        return checked(cls, value, str(path))


def require_schema(value: Any, path: Path, expected: int = SCHEMA_VERSION) -> None:
    """Refuse files of another kind or schema version."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != expected:
        raise CheckpointError(f"{path}: schema must be {expected}, got {short(schema)}.")


def has_log(path: str | Path) -> bool:
    """Whether ``path`` is a run directory with a log of its training, with or without weights."""
    return (Path(path) / "run.json").is_file() and (Path(path) / "metrics.jsonl").is_file()


def is_log_alone(path: str | Path) -> bool:
    """Whether ``path`` is a run directory with a log but no model, like our published records."""
    model = (Path(path) / "model" / "config.json", Path(path) / "config.json")
    return has_log(path) and not any(file.exists() for file in model)


def config_hash(config: Mapping[str, Any]) -> str:
    """First 16 hex digits of the SHA-256 of a resolved config, independent of key order."""
    text = json.dumps(config, sort_keys=True, ensure_ascii=False, allow_nan=False)
    text = text.replace('"gated_head"', '"diff_v2_gate"')  # its name in the first records
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def package_versions() -> dict[str, str]:
    """Package name -> installed version, for Python and the packages that shape a result."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def hardware() -> dict[str, Any]:
    """Processor model, machine architecture and operating system."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"processor": model, "machine": platform.machine(), "system": sys.platform}


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the source tree and whether the tree was changed; ``None`` outside a checkout.

    The tree is changed if a tracked file differs or the package has a new file. Benchmark records
    do not count, because a benchmark writes them while it runs.
    """
    package = Path(__file__).parents[2]
    if _git(package, "ls-files", "--error-unmatch", "lab/records/run.py") is None:
        return None, None  # installed inside somebody else's checkout
    commit = _git(package, "rev-parse", "HEAD")
    others = ("--", ":/", ":(top,exclude)benchmarks/results")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", *others)
    added = _git(package, "ls-files", "--others", "--exclude-standard", ".")
    return commit, None if changed is None or added is None else bool(changed or added)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
