"""``diffattn reproduce``."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

STUDIES = ("text", "recall", "stability", "scaling", "ablations", "rank")
_CONFIGS = {
    **dict.fromkeys(("text", "ablations", "rank"), "ComparisonConfig"),
    "recall": "RecallStudyConfig",
    "stability": "StabilityStudyConfig",
    "scaling": "ScalingStudyConfig",
}


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="text (models of real text), recall (values by key, among noise), stability "
            "(large learning rates), scaling (sizes and tokens), ablations (one part changed) or "
            "rank (of Shared DIFF)"
        ),
    ] = "text",
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute), laptop (10 minutes; scaling, ablations and rank hours) or "
            "study (hours; not scaling)"
        ),
    ] = "laptop",
    out: Annotated[
        Path | None,
        typer.Option(help="study folder; continued if it exists [runs/SCALE, runs/STUDY-SCALE]"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="comma-separated [of the scale: 0, in studies several]"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="not recall; e.g. data.source=texts/ (repeatable)"
        ),
    ] = None,
    match: Annotated[
        str, typer.Option(help="what twins keep equal: params, heads, flops or attention_flops")
    ] = "params",
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="scaling: read fits beyond their points too")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="one-thread processes side by side [cores, at most 2]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the resolved configuration and stop")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print results.json at the end")] = False,
) -> None:
    """Compare the four attention types, or what their parts do.

    Trains matched softmax, DIFF V1, DIFF V2 and Shared DIFF models on the same data, with controls
    that say whether a difference is one, and writes report.html. The text is your Python's own
    library and documentation unless data.source names yours; recall makes its own sequences and
    counts the seeds that learn; stability counts spikes of loss and gradient at rates up to far too
    large ones; scaling fits losses over parameters and tokens. For text and recall a learning rate
    per type is chosen at study scale. ablations trains the rows of the DIFF Transformer paper's
    Table 6, V2's ablations and Shared DIFF with its norm on the map; rank trains Shared DIFF at
    other ranks and λ_init: one learning rate, three seeds, every row against what it changes. The
    same command again continues what was interrupted.
    """
    from diffattn.cli.options import whole_numbers
    from diffattn.errors import ConfigError
    from diffattn.models.known_names import check_known
    from diffattn.models.twins import MATCHES
    from diffattn.recipes.catalog import SCALES
    from diffattn.recipes.scaling import SCALING_STUDIES
    from diffattn.records.destination import require_folder_destination
    from diffattn.training.settings import read_changes

    # Before torch loads, which takes seconds.
    check_known("reproduce", "study", study, STUDIES)
    numbers = None if seeds is None else whole_numbers("--seeds", seeds)
    check_known("reproduce", "scale", scale, SCALING_STUDIES if study == "scaling" else SCALES)
    check_known(_CONFIGS[study], "match", match, MATCHES)
    if extrapolate and study != "scaling":
        raise ConfigError(f"reproduce {study}: --extrapolate must be left out, it is of scaling.")
    if out is not None:
        require_folder_destination(out)
    settings = set_ or []
    config: Any
    run: Callable[..., Path]
    steps_of: Callable[[str], int]
    if study != "recall":
        read_changes(settings)
    if _CONFIGS[study] == "ComparisonConfig":
        from diffattn.studies.text import reproduce as text

        config = text.comparison(scale, kind=study, seeds=numbers, settings=settings, match=match)
        run = partial(text.reproduce, kind=study, settings=settings)
        folder = out or Path("runs") / text.study_name(scale, study)
        total, steps_of = config.total_steps(), config.steps_of
    elif study == "stability":
        from diffattn.studies.stability import reproduce as stability

        config = stability.stability_study(scale, seeds=numbers, settings=settings, match=match)
        run = partial(stability.reproduce_stability, settings=settings)
        folder = out or Path("runs") / f"stability-{scale}"
        steps = config.base.train.num_steps
        total, steps_of = len(config.members()) * steps, lambda run: steps
    elif study == "scaling":
        from diffattn.studies.scaling import reproduce as scaling

        config = scaling.scaling_study(scale, seeds=numbers, settings=settings, match=match)
        run = partial(scaling.reproduce_scaling, settings=settings, extrapolate=extrapolate)
        folder = out or Path("runs") / f"scaling-{scale}"
        steps_by_run = {m.config.name: m.config.train.num_steps for m in config.members()}
        total, steps_of = sum(steps_by_run.values()), lambda run: steps_by_run.get(run, 0)
    else:
        if settings:
            raise ConfigError(f"reproduce recall: --set must be left out, got {settings[0]!r}.")
        from diffattn.studies.recall import reproduce as recall

        config = recall.recall_study(scale, seeds=numbers, match=match)
        run, folder = recall.reproduce_recall, out or Path("runs") / f"recall-{scale}"
        # A run that solves its task ends early, so the time left is an upper bound.
        steps = max(task.train.num_steps for task in config.tasks)
        total, steps_of = config.num_runs() * steps, lambda run: steps
    if dry_run:
        typer.echo(json.dumps(config.resolved(), indent=2, ensure_ascii=False))
        return
    from diffattn.cli.progress import RunsProgress
    from diffattn.report.build import markdown_results

    finished = (path.parent.name for path in (folder / "runs").glob("*/results.json"))
    with RunsProgress(total, sum(map(steps_of, finished)), steps_of) as progress:
        report = run(
            scale, out=folder, seeds=numbers, match=match, workers=workers,
            on_message=progress.on_message, on_progress=progress.on_progress,
        )  # fmt: skip
    if json_:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{markdown_results(folder)}\nReport: {report}")
