"""Models as a user names them on the command line. Needs no torch."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json
from diffattn.models.checkpoint_folder import checkpoint_folder, listed, models_inside
from diffattn.models.config.attention_types import ATTENTION, checked_types


def labelled(
    models: Sequence[str],
    *,
    option: str = "--model",
    on_message: Callable[[str], None],
    has_no_folder: Callable[[str], bool] = lambda path: False,
) -> dict[str, str]:
    """Parse ``[LABEL=]PATH`` to label and path; a label is by default the last part of the path.

    ``has_no_folder`` says whether a path is allowed although it is not a model folder.
    """
    paths: dict[str, str] = {}
    for text in models:
        label, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            label, path = "", text
        elif not label or not path:
            raise ConfigError(f"{option}: must be [LABEL=]PATH, got {text!r}.")
        path = best_of_study(path, on_message)
        label = label or Path(path).name
        if not label or label.startswith(".") or "/" in label:
            raise ConfigError(f"{option}: must be [LABEL=]PATH, LABEL a folder name, got {text!r}.")
        if label in paths:
            raise ConfigError(
                f"{option}: labels must differ, got {label!r} twice. Name them: LABEL=PATH."
            )
        paths[label] = path
    if not paths:
        raise ConfigError(f"{option}: one model or more is needed, got none.")
    for path in paths.values():
        if not has_no_folder(path):
            require_model(path)
    return paths


def require_model(path: str) -> None:
    """Raise if a path holds no model and is no model name that the hub could know."""
    if not checkpoint_folder(path).exists():
        from diffattn.models.loading import name_or_cached  # slow to import

        name_or_cached(path)


def best_of_study(name: str, on_message: Callable[[str], None]) -> str:
    """The path of the best model if ``name`` is the folder of a study or of several, else ``name``.

    The best model is in the first study that has a finished model. It is the differential model
    with the lowest validation loss, or without any the best softmax model; never a control.
    """
    # A study, or a folder of 'diffattn reproduce' with several: text comes first.
    folders = [Path(name) / part for part in ("", "text", "recall")]
    studies = [folder for folder in folders if (folder / "study.json").is_file()]
    if not studies:
        return name
    runs = [(place, run) for place, study in enumerate(studies) for run in models_inside(study)]
    ranked = sorted((place, *rank) for place, run in runs if (rank := _rank(run)))
    if not ranked:
        raise CheckpointError(
            f"{name}: must be a study with a finished model, got one whose runs keep no weights or "
            "are not done. 'diffattn train' makes a model."
        )
    _, is_softmax, loss, best = ranked[0]
    others = listed([run.name for _, run in runs if run != best])
    on_message(
        f"{name} is a study. Its best {'' if is_softmax else 'differential '}model is taken: "
        f"{best} (validation loss {loss:.3f}{f'; beside it: {others}' if others else ''})."
    )
    return str(best)


def _rank(run: Path) -> tuple[bool, float, Path] | None:
    """Sort key of a run, the best one first; ``None`` for a control, or without a loss."""
    if not (run / "results.json").is_file():
        return None
    names = checked_types(str(run), _config(str(run))["attention_type"]).split(",")
    types = [ATTENTION[name] for name in names]
    loss = read_json(run / "results.json")["validation_loss"]
    if loss is None or any(facts.control for facts in types):
        return None
    return all(facts.query_maps == 1 for facts in types), loss, run


def shortest_context(models: Iterable[str]) -> int | None:
    """The shortest context length of local models, in tokens; ``None`` if none is known."""
    known = []
    for name in models:
        try:
            known.append(_config(name)["max_position_embeddings"])
        # An unreadable model is skipped here; loading it reports the error.
        except (CheckpointError, OSError, ValueError, LookupError, TypeError):
            continue
    return min((n for n in known if isinstance(n, int) and n > 1), default=None)


def _config(name: str) -> Any:
    return json.loads((checkpoint_folder(name) / "config.json").read_text("utf-8"))
