"""Find a model: in a run directory, in a model folder, or by its name on the hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from diffattn.errors import CheckpointError, did_you_mean

_PATTERNS = ("*/", "*/model/", "runs/*/model/", "*/runs/*/model/")
_MOST_NAMES = 6


def model_folder(path: Path) -> Path:
    """The folder with ``config.json``: ``path/model`` in a run directory, else ``path``."""
    inside = path / "model"
    return inside if (inside / "config.json").exists() else path


def is_hub_name(name: str) -> bool:
    """Whether a name can be of a hub model: its form fits, and no file or parent folder has it."""
    path = Path(name)
    is_here = path.exists() or (len(path.parts) == 2 and path.parent.exists())
    return bool(re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", name)) and not is_here


def checkpoint_folder(name_or_path: str) -> Path:
    """The folder that holds ``config.json``, or the hub name as a path. Needs no torch."""
    folder = model_folder(Path(name_or_path))
    if (folder / "config.json").exists():
        return folder
    if folder.exists():
        models = models_inside(folder)
        got = f"several: {listed(models)}. Name one of them" if models else "none"
        if (folder / "run.json").exists():
            got = "a run that has not ended: 'diffattn train' continues it"
        raise CheckpointError(
            f"{name_or_path}: must hold a model (config.json, or model/config.json), got {got}."
        )
    if is_hub_name(name_or_path):
        return folder
    names = {path.relative_to(folder.parent).parts[0] for path in models_inside(folder.parent)}
    raise CheckpointError(
        f"{name_or_path}: must be a run directory, a model folder or a hub name, got nothing."
        f"{did_you_mean(folder.name, sorted(names))}"
    )


def models_inside(folder: Path) -> list[Path]:
    """Run directories and model folders inside a folder, for example one of a study."""
    places = [path.parent for inside in _PATTERNS for path in folder.glob(f"{inside}config.json")]
    return sorted(path.parent if path.name == "model" else path for path in places)


def listed(names: Sequence[object]) -> str:
    """The first six names with commas, for a message."""
    first = ", ".join(map(str, names[:_MOST_NAMES]))
    return f"{first}, ..." if len(names) > _MOST_NAMES else first
