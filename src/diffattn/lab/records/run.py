"""RunRecord: the settings and the provenance of a run, written before it starts."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, short
from diffattn.files.io import (
    append_jsonl,
    is_empty_folder,
    read_json,
    read_jsonl,
    recover_jsonl,
    sync,
    write_json,
)
from diffattn.lab.records.fields import checked

SCHEMA_VERSION = 1
LAUNCHES = "launches.jsonl"
"""One row per start of a run; ``run.json`` records the first start only."""
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
    Later launches may differ, see :func:`append_launch`."""
    model: dict[str, Any] = field(default_factory=dict)
    """``parameters``, ``non_embedding_parameters``, ``train_flops_per_token`` and more."""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    commit: str | None = field(default_factory=lambda: git_state()[0])
    dirty: bool | None = field(default_factory=lambda: git_state()[1])
    versions: dict[str, str] = field(default_factory=lambda: package_versions())
    hardware: dict[str, Any] = field(default_factory=lambda: hardware())
    schema: int = SCHEMA_VERSION

    def write(self, folder: Path) -> None:
        """Write ``run.json``."""
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
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8", "replace").splitlines() if cpuinfo.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.processor() or platform.machine())
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


def append_launch(
    folder: Path, *, step: int, device: str, threads: int, engine: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Append a row, and return the previous one, if any.

    ``step`` is that of the checkpoint that the run continues from; ``threads`` are the CPU's for
    each operator, on which the last bits of its sums depend.
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


_HINT = "Choose another --out."


def is_claimed(
    folder: Path, marker: str, subject: str, *, besides: str | None = None, hint: str = _HINT
) -> bool:
    """Whether ``folder`` holds work of a kind; if not, it is free, or refused for other files.

    ``marker`` is the file that is written first for work of this kind, ``subject`` the work in
    words, and ``besides`` an entry that may lie in a free folder.
    """
    folder = Path(folder)
    if (folder / marker).exists():
        return True
    if folder.exists() and not is_empty_folder(folder, besides=besides):
        raise CheckpointError(
            f"{folder}: must be empty or hold {subject} ({marker}), got "
            f"{'other files' if folder.is_dir() else 'a file'}. {hint}"
        )
    return False


def claim_run(
    folder: Path,
    record: RunRecord,
    subject: str,
    *,
    besides: str | None = None,
    free: Collection[str] = (),
    hint: str = _HINT,
) -> None:
    """Write ``run.json``, or check that the folder holds the same run.

    Config and seed are compared, but for the dotted names of settings in ``free``.
    """
    if not is_claimed(folder, "run.json", subject, besides=besides, hint=hint):
        record.write(folder)
        return
    recorded = RunRecord.read(folder)
    before, now = ({**each.config, "seed": each.seed} for each in (recorded, record))
    if fault := difference("", before, now, free):
        raise CheckpointError(
            f"{folder}: must hold {subject} with the same settings to be continued, got "
            f"{fault} ({recorded.name!r}). {hint}"
        )


def difference(
    name: str, before: Any, now: Any, free: Collection[str], *, where: str = "is recorded"
) -> str | None:
    """Describe the first setting that differs between a record and a run; ``None`` if none does.

    ``name`` is the dotted name of the setting, empty for whole configs.
    """
    if name in free or before == now:
        return None
    if isinstance(before, dict) and isinstance(now, dict):
        # Hashes come last: they follow from settings that are easier to read.
        names = sorted(dict.fromkeys([*before, *now]), key=("weights", "corpus_hash").__contains__)
        inner = (
            difference(
                f"{name}.{key}" if name else key, before.get(key), now.get(key), free, where=where
            )
            for key in names
        )
        return next((fault for fault in inner if fault), None)
    return f"{name} {now!r} where {before!r} {where}"
