"""Check whether an output folder is free, or already holds the same work."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.files.io import is_empty_folder
from diffattn.lab.records.run import RunRecord

_HINT = "Choose another --out."


def is_claimed(
    folder: Path, marker: str, subject: str, *, besides: str | None = None, hint: str = _HINT
) -> bool:
    """Whether ``folder`` holds work of a kind; if not, it is free.

    Args:
        marker: Name of the file that is written first for work of this kind.
        subject: The work in words, with its article.
        besides: Name of one entry that may lie in a free folder.
        hint: End of the message where the folder cannot be used.

    Raises:
        CheckpointError: The folder holds other files.
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
    free: Collection[str] = (),
    hint: str = _HINT,
) -> None:
    """Write ``run.json``, or check that the folder holds the same run.

    Args:
        record: The run; its config and seed are compared.
        free: Dotted names of settings that may differ.

    Raises:
        CheckpointError: The folder holds other files, or another run; the message then names the
            first setting that differs.
    """
    if not is_claimed(folder, "run.json", subject, hint=hint):
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

    Args:
        name: Dotted name of the setting; empty for whole configs.
        free: Dotted names of settings that may differ.
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
