"""Evaluate several models with several protocols in one folder, and compare them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.compare import compare_folder
from diffattn.lab.evaluation.protocol import SHORT_CONTEXT, Part
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import EVALUATION_MARKER, Comparison, EvalResult, register
from diffattn.lab.records.lock import BusyError
from diffattn.lab.records.run import is_claimed
from diffattn.models.loading import bfloat16_advice

OnStart = Callable[[str], None]
OnProgress = Callable[[str, int, int], None]
OnMessage = Callable[[str], None]


@dataclass(kw_only=True)
class _Session:
    """State of one call of :func:`run_evaluation`."""

    folder: Path
    limit: int | None
    is_single: bool
    """Whether there is one model and one part. Its error then ends the command."""
    on_start: OnStart
    on_progress: OnProgress
    on_message: OnMessage
    done: dict[tuple[str, str], EvalResult] = field(default_factory=dict)
    """(label, variant) to result."""
    refused: list[DiffAttnError] = field(default_factory=list)

    def run_parts(
        self, model: LanguageModel, label: str, parts: Sequence[Part], wait: bool
    ) -> list[Part]:
        """Run parts on a model; return the parts that another process is running."""
        busy = []
        for part in parts:
            register(self.folder, label, part.variant)
            name = f"{label}/{part.variant}"
            self.on_start(name)
            try:
                self.done[label, part.variant] = self._run(model, part, name, wait)
            except BusyError:
                self.on_message(f"{name}: another process is at work on it, waiting at the end")
                busy.append(part)
            except CheckpointError:  # the folder holds other files
                raise
            except DiffAttnError as error:
                if not self.is_single:
                    self.on_message(f"{name} cannot run: {error}")
                elif isinstance(error, ConfigError) and model.max_length < SHORT_CONTEXT:
                    fit = ", ".join(x for x, facts in PROTOCOLS.items() if facts.any_context)
                    error = ConfigError(
                        f"{error} Few prompts fit the {model.max_length} tokens of {label}. It can "
                        f"be asked, with --quick: {fit}."
                    )
                self.refused.append(error)
        return busy

    def _run(self, model: LanguageModel, part: Part, name: str, wait: bool) -> EvalResult:
        return evaluate(
            model,
            part,
            self.folder / name,
            limit=self.limit,
            wait=wait,
            on_progress=partial(self.on_progress, name),
            on_message=lambda line: self.on_message(f"{name}: {line}"),
        )


def _load(label: str, path: str, load: Mapping[str, Any]) -> LanguageModel:
    model = LanguageModel.load(path, label=label, **load)
    if "example" in model.tokenizer.init_kwargs:
        raise ConfigError(
            f"{label}: must read text to be evaluated, got a model of a recall task. Its "
            "accuracy is in results.json of its run; 'diffattn inspect' shows its maps."
        )
    return model


def run_evaluation(
    chosen: Sequence[Part],
    models: Mapping[str, str],
    folder: Path,
    *,
    load: Mapping[str, Any] = {},
    limit: int | None = None,
    on_start: OnStart = lambda name: None,
    on_progress: OnProgress = lambda name, done, total: None,
    on_message: OnMessage = lambda line: None,
) -> tuple[list[EvalResult], Comparison | None]:
    """Evaluate every model with every part; compare the models if there are several.

    Several processes may work in one folder: each part is run by one of them. A part that cannot
    run, or of which no item could be scored, gets a message and is left out.

    Args:
        models: Label to path; the first model is the baseline of the comparison.
        folder: Evaluation folder, continued if it exists. Models and parts may be added later.
        load: Options of :meth:`LanguageModel.load`.
        on_start, on_progress, on_message: Called with a part's name; with its name, its items done
            and its items in all; and with one line of text per event.
    """
    is_claimed(Path(folder), EVALUATION_MARKER, "an evaluation")  # before a model is loaded
    session = _Session(
        folder=Path(folder),
        limit=limit,
        is_single=len(models) * len(chosen) == 1,
        on_start=on_start,
        on_progress=on_progress,
        on_message=on_message,
    )
    left = {label: list(chosen) for label in models}
    # The second round waits for parts that other processes were running in the first.
    for wait in (False, True):
        for label in [label for label, parts in left.items() if parts]:
            model = _load(label, models[label], load)
            if advice := bfloat16_advice(model.device, model.network.dtype, "--dtype float32"):
                on_message(f"{label}: {advice}")
            left[label] = session.run_parts(model, label, left[label], wait)
    if not session.done:
        raise session.refused[0]
    for (label, variant), result in session.done.items():
        if result.num_failed:
            failed = f"{result.num_failed} of {result.num_items} items failed"
            on_message(f"{label}/{variant}: {failed}")
    order = [(label, part.variant) for label in models for part in chosen]
    results = [session.done[key] for key in order if key in session.done]
    return results, compare_folder(session.folder)
