"""Where a model lies: a run directory of ours, a model folder, or a name on the hub."""

from pathlib import Path

from diffattn.errors import CheckpointError


def model_folder(path: Path) -> Path:
    """Where ``config.json`` lies: inside a run directory in ``model/``, else the path itself."""
    inside = path / "model"
    return inside if (inside / "config.json").exists() else path


def checkpoint_folder(name_or_path: str) -> Path:
    """The folder that holds ``config.json``, or the hub name as a path. Needs no torch.

    Raises:
        CheckpointError: Nothing is there, or no model.
    """
    folder = model_folder(Path(name_or_path))
    is_hub_name = len(folder.parts) == 2 and not folder.parent.exists()
    if not folder.exists() and not is_hub_name:
        raise CheckpointError(
            f"{name_or_path}: must be a run directory, a model folder or a hub name, got nothing."
        )
    if folder.exists() and not (folder / "config.json").exists():
        raise CheckpointError(
            f"{name_or_path}: must hold a model (config.json, or model/config.json), got none."
        )
    return folder
