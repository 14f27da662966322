"""Several models and protocols in one folder: ``evaluation.json``, results, comparison."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.evaluation.compare import compare_folder
from diffattn.evaluation.protocol import Part
from diffattn.evaluation.runner import evaluate
from diffattn.inference.language_model import LanguageModel
from diffattn.records.claim import is_claimed
from diffattn.records.evaluations import (
    EVAL_SCHEMA_VERSION,
    EVALUATION_MARKER,
    Comparison,
    EvalResult,
    evaluation_marker,
)
from diffattn.records.io import write_json


def labelled(models: Sequence[str]) -> dict[str, str]:
    """``[LABEL=]PATH`` to paths by label; a label is by default the last part of the path.

    Raises:
        ConfigError: A label is missing, given twice, or no folder name.
    """
    paths: dict[str, str] = {}
    for text in models:
        label, separator, path = text.partition("=")
        if not separator or Path(text).exists():
            label, path = Path(text).name, text
        if not label or not path or label.startswith(".") or "/" in label:
            raise ConfigError(f"--model: must be [LABEL=]PATH, LABEL a folder name, got {text!r}.")
        if label in paths:
            raise ConfigError(
                f"--model: labels must differ, got {label!r} twice. Name them: LABEL=PATH."
            )
        paths[label] = path
    if not paths:
        raise ConfigError("--model: one model or more is needed, got none.")
    return paths


def run_evaluation(
    chosen: Sequence[Part],
    models: dict[str, str],
    folder: Path,
    *,
    device: str | None = None,
    dtype: str = "float32",
    max_length: int | None = None,
    add_bos: bool | None = None,
    on_start: Callable[[str], None] = lambda name: None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    on_message: Callable[[str], None] = lambda line: None,
) -> tuple[list[EvalResult], Comparison | None]:
    """Evaluate every model by every part; with several models, compare them.

    Args:
        chosen: Protocols; see :func:`diffattn.evaluation.registry.parts`.
        models: Paths by label; the first is the baseline of the comparison.
        folder: Evaluation folder, continued if it exists. Models and parts may be added later.
        device: Default: CUDA if there is any.
        dtype: Of the weights.
        max_length: Longest context in tokens. Default: the model's.
        add_bos: Default: if the tokenizer has BOS.
        on_start: Given the name of each model and part before its items are prepared.
        on_progress: Given the name of each model and part, and its items done and in all.
        on_message: Given one line per stage.

    Returns:
        Results model by model, and the comparison of several models. A part that cannot run on a
        model or its data, or of which no item could be scored, is reported and left out; the others
        go on.

    Raises:
        DiffAttnError: No part has a result; the first reason, for example a ConfigError.
        CheckpointError: A model cannot be read, or ``folder`` holds other files.
    """
    folder = Path(folder)
    known = _read_marker(folder)
    results: list[EvalResult] = []
    refused: list[DiffAttnError] = []
    is_one_of_many = len(models) * len(chosen) > 1
    for label, path in models.items():
        model = LanguageModel.load(
            path, label=label, device=device, dtype=dtype, max_length=max_length, add_bos=add_bos
        )
        known["models"] = list(dict.fromkeys([*known["models"], label]))
        for part in chosen:
            known["variants"] = list(dict.fromkeys([*known["variants"], part.variant]))
            write_json(folder / EVALUATION_MARKER, known)
            name = f"{label}/{part.variant}"
            on_start(name)
            try:
                result = evaluate(
                    model,
                    part,
                    folder / label / part.variant,
                    on_progress=partial(on_progress, name),
                )
            except CheckpointError:  # the folder is not ours to go on in
                raise
            except DiffAttnError as error:
                refused.append(error)
                if is_one_of_many:  # else it is the error that ends the command
                    on_message(f"{name} cannot run: {error}")
                continue
            if result.num_failed:
                on_message(f"{name}: {result.num_failed} of {result.num_items} items failed")
            results.append(result)
    if not results:
        raise refused[0]
    return results, compare_folder(folder)


def _read_marker(folder: Path) -> dict[str, Any]:
    if is_claimed(folder, EVALUATION_MARKER, "an evaluation"):
        return evaluation_marker(folder)
    return {
        "schema": EVAL_SCHEMA_VERSION,
        "kind": "evaluation folder",
        "models": [],
        "variants": [],
    }
