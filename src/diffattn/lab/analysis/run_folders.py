"""Recognise run directories by their files. Needs no torch."""

from pathlib import Path


def has_log(path: str) -> bool:
    """Whether ``path`` is a run directory with a log of its training, with or without weights."""
    folder = Path(path)
    return (folder / "run.json").is_file() and (folder / "metrics.jsonl").is_file()


def is_log_alone(path: str) -> bool:
    """Whether ``path`` is a run directory with a log but no model, like our published records."""
    folder = Path(path)
    model = (folder / "model" / "config.json", folder / "config.json")
    return has_log(path) and not any(file.exists() for file in model)
