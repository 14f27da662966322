"""Several models and protocols in one folder: ``evaluation.json``, results, comparison."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.lab.evaluation.compare import compare_folder
from diffattn.lab.evaluation.protocol import Part
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.evaluation.selection import ALL, Selection
from diffattn.lab.evaluation.served_model import ServedModel, is_address, served_settings
from diffattn.lab.evaluation.shards import all_finished
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.claim import is_claimed
from diffattn.lab.records.evaluations import EVALUATION_MARKER, Comparison, EvalResult, register
from diffattn.lab.records.lock import BusyError


def run_evaluation(
    chosen: Sequence[Part],
    models: dict[str, str],
    folder: Path,
    *,
    device: str | None = None,
    dtype: str = "auto",
    max_length: int | None = None,
    add_bos: bool | None = None,
    verify: bool = True,
    selection: Selection = ALL,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device_map: str | None = None,
    reach: int | None = None,
    served: Sequence[str] = (),
    on_start: Callable[[str], None] = lambda name: None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    on_message: Callable[[str], None] = lambda line: None,
) -> tuple[list[EvalResult], Comparison | None]:
    """Evaluate every model by every part; with several models, compare them.

    Several processes may fill a folder side by side: each part is the work of one of them.

    Args:
        chosen: Protocols; see :func:`diffattn.lab.evaluation.registry.parts`.
        models: Paths by label; the first is the baseline of the comparison.
        folder: Evaluation folder, continued if it exists. Models and parts may be added later.
        device: Default: CUDA if there is any.
        dtype: Of the weights. Default: the checkpoint's.
        max_length: Longest context in tokens. Default: the model's.
        add_bos: Default: if the tokenizer has BOS.
        verify: Whether to compare the models' files with their manifests.
        selection: Which items. The process that finishes the last share of a part puts all of
            them together.
        revision, trust_remote_code, device_map: See :meth:`LanguageModel.load`.
        served: ``LABEL.KEY=VALUE`` of models whose path is the address of a server.
        reach: Tokens that every model reads, also beyond those it is made for, if its positions
            go on. Recorded. Default: what it is made for.
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
    is_claimed(folder, EVALUATION_MARKER, "an evaluation")  # before a model is loaded
    done: dict[tuple[str, str], EvalResult] = {}
    refused: list[DiffAttnError] = []
    servers = {
        label: served_settings(label, path, served)
        for label, path in models.items()
        if is_address(path)
    }
    left = {label: list(chosen) for label in models}
    # Parts that other processes are at work on come last, and are waited for.
    for wait in (False, True):
        for label, parts in [(label, parts) for label, parts in left.items() if parts]:
            left[label] = []
            model = ServedModel(
                servers[label], label=label, add_bos=add_bos
            ) if label in servers else LanguageModel.load(
                models[label], label=label, device=device, dtype=dtype, max_length=max_length,
                add_bos=add_bos, verify=verify, revision=revision,
                trust_remote_code=trust_remote_code, device_map=device_map,
            )  # fmt: skip
            if reach is not None and model.max_length < reach:
                model = model.reaching(reach)
                if model.made_for is not None:
                    on_message(f"{label}: read up to {reach} tokens, made for {model.made_for}")
            for part in parts:
                register(folder, label, part.variant)
                name = f"{label}/{part.variant}"
                on_start(name)
                where = folder / label / part.variant
                ask = partial(
                    evaluate, model, part, on_progress=partial(on_progress, name),
                    on_message=partial(_say, on_message, name),
                )  # fmt: skip
                try:
                    share = where.with_name(where.name + selection.suffix)
                    done[label, part.variant] = ask(share, selection=selection, wait=wait)
                    if selection.shard and all_finished(where, selection.shard[1]):
                        whole = replace(selection, shard=None)
                        done[label, part.variant] = ask(where, selection=whole, wait=True)
                except BusyError:
                    on_message(f"{name}: another process is at work on it, waiting at the end")
                    left[label].append(part)
                except CheckpointError:  # the folder is not ours to go on in
                    raise
                except DiffAttnError as error:
                    refused.append(error)
                    if len(models) * len(chosen) > 1:  # else it is the error that ends the command
                        on_message(f"{name} cannot run: {error}")
    if not done:
        raise refused[0]
    order = [(label, part.variant) for label in models for part in chosen]
    results = [done[key] for key in order if key in done]
    for (label, variant), result in done.items():
        if result.num_failed:
            failed = f"{result.num_failed} of {result.num_items} items failed"
            on_message(f"{label}/{variant}: {failed}")
    return results, compare_folder(folder)


def _say(on_message: Callable[[str], None], name: str, line: str) -> None:
    on_message(f"{name}: {line}")
