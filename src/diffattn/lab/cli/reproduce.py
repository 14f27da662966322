"""``diffattn reproduce``."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

WHOLE = "all"
COMPARISONS = ("text", "ablations", "rank")
STUDIES = ("text", "recall", "stability", "gradient-flow", "scaling", "ablations", "rank")
_CONFIGS = {
    **dict.fromkeys(COMPARISONS, "ComparisonConfig"),
    "recall": "RecallStudyConfig",
    "stability": "StabilityStudyConfig",
    "gradient-flow": "GradientFlowConfig",
    "scaling": "ScalingStudyConfig",
}


class _Plan(NamedTuple):
    """One study, ready to run."""

    config: Any
    run: Callable[..., Path]
    """Wants ``out``, the study folder, and how it is to be run."""
    folder: Path
    """Where it lies unless said otherwise."""
    total: int
    """Steps of all its runs."""
    steps_of: Callable[[str], int]
    """Name of a run to its steps."""


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="all (what the scale affords, and one page), text (models of real text), recall "
            "(values by key, among noise), stability (large learning rates), gradient-flow (sizes "
            "of gradients), scaling (sizes and tokens), ablations (one part changed) or rank (of "
            "Shared DIFF)"
        ),
    ] = WHOLE,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (a minute, all 3), laptop (10 minutes, all 15; scaling, ablations and rank "
            "hours), study (hours, all days; not scaling) or workstation (one GPU; all, text, "
            "ablations, rank)"
        ),
    ] = "laptop",
    out: Annotated[
        Path | None,
        typer.Option(
            help="study folder; continued if it exists [runs/STUDY-SCALE, text runs/SCALE]"
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="of all: comma-separated names of studies, analysis (of text's models), throughput"
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="comma-separated [of the scale: 0, in studies several]"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="not recall, of all only data; e.g. data.source=texts/ (repeatable)",
        ),
    ] = None,
    match: Annotated[
        str, typer.Option(help="what twins keep equal: params, heads, flops or attention_flops")
    ] = "params",
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="scaling: read fits beyond their points too")
    ] = False,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="text, ablations, rank: copy runs of the same settings, seed and tokens from this "
            "study (repeatable)",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="one-thread processes side by side [cores, at most 2]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the resolved configuration and stop")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print results.json at the end")] = False,
) -> None:
    """Compare the four attention types, measure what the papers claim, show both on one page.

    Without a study everything that the scale affords runs, one study after another, then an
    analysis of the models trained on text and timings; report.html sets the papers' tables and
    figures beside it and beside the committed records. A study by its name runs alone.

    text trains matched softmax, DIFF V1, DIFF V2 and Shared DIFF models on the same data, with
    controls that say whether a difference is one. The text is your Python's own library and
    documentation unless data.source names yours; recall makes its own sequences and counts the
    seeds that learn; stability counts spikes of loss and gradient at rates up to far too
    large ones; gradient-flow measures gradients and updates of W_Q, W_K, W_V and W_O; scaling fits
    losses over parameters and tokens. For text and recall a learning rate per type is chosen at
    study scale. ablations trains the rows of the DIFF Transformer paper's Table 6, V1 with its
    second map added, V2's ablations and Shared DIFF with its norm on the map; rank trains Shared
    DIFF at other ranks and λ_init: no sweep, three seeds (study: five, fewer ranks), every row
    against what it changes. The same command again continues what was interrupted.
    """
    from diffattn.errors import ConfigError
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.catalog.recipes.catalog import SCALES
    from diffattn.lab.catalog.recipes.scaling import SCALING_STUDIES
    from diffattn.lab.cli.options import whole_numbers
    from diffattn.lab.training.settings import read_changes
    from diffattn.models.config.known_names import check_known
    from diffattn.models.twins import MATCHES

    # Before torch loads, which takes seconds.
    check_known("reproduce", "study", study, (WHOLE, *STUDIES))
    numbers = None if seeds is None else whole_numbers("--seeds", seeds)
    check_known("reproduce", "scale", scale, SCALING_STUDIES if study == "scaling" else SCALES)
    check_known(_CONFIGS.get(study, "ComparisonConfig"), "match", match, MATCHES)
    if extrapolate and study != "scaling":
        raise ConfigError(f"reproduce {study}: --extrapolate must be left out, it is of scaling.")
    if only is not None and study != WHOLE:
        raise ConfigError(f"reproduce {study}: --only must be left out, it is of all.")
    if reuse and study not in COMPARISONS:
        raise ConfigError(
            f"reproduce {study}: --reuse must be left out, it is of {', '.join(COMPARISONS)}."
        )
    if set_ and study == "recall":
        raise ConfigError(f"reproduce {study}: --set must be left out, got {set_[0]!r}.")
    for setting in set_ or () if study == WHOLE else ():
        if not setting.startswith("data."):
            raise ConfigError(f"reproduce all: --set must name one of data, got {setting!r}.")
    if out is not None:
        require_folder_destination(out)
    settings = set_ or []
    read_changes(settings)
    if study == WHOLE:
        from diffattn.lab.cli.whole import reproduce_all

        reproduce_all(
            scale,
            out or Path("runs") / f"all-{scale}",
            () if only is None else tuple(name.strip() for name in only.split(",")),
            plan=partial(_plan, seeds=numbers, match=match, settings=settings),
            run=partial(run_study, workers=workers),
            first_seed=numbers is None,
            dry_run=dry_run,
            json_=json_,
        )
        return
    plan = _plan(
        study, scale, seeds=numbers, match=match, settings=settings, extrapolate=extrapolate
    )
    if dry_run:
        typer.echo(json.dumps(plan.config.resolved(), indent=2, ensure_ascii=False))
        return
    from diffattn.lab.report.build import markdown_results

    folder = out or plan.folder
    report = run_study(plan, folder, workers=workers, reuse=reuse or ())
    if json_:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"{markdown_results(folder)}\nReport: {report}")


def run_study(
    plan: _Plan, folder: Path, *, workers: int | None, reuse: Sequence[Path] = ()
) -> Path:
    """Run one study, with its progress; the path of its page."""
    from diffattn.lab.cli.screen.progress import RunsProgress

    finished = (path.parent.name for path in (folder / "runs").glob("*/results.json"))
    done = sum(map(plan.steps_of, finished))
    of_comparisons = {"reuse": reuse} if reuse else {}
    with RunsProgress(plan.total, done, plan.steps_of) as progress:
        return plan.run(
            out=folder, workers=workers,
            on_message=progress.on_message, on_progress=progress.on_progress, **of_comparisons,
        )  # fmt: skip


def _plan(
    study: str,
    scale: str,
    *,
    seeds: tuple[int, ...] | None,
    match: str,
    settings: Sequence[str] = (),
    extrapolate: bool = False,
) -> _Plan:
    runs = Path("runs")
    config: Any
    run: Callable[..., Path]
    if _CONFIGS[study] == "ComparisonConfig":
        from diffattn.lab.studies.text import reproduce as text

        config = text.comparison(scale, kind=study, seeds=seeds, settings=settings, match=match)
        run = partial(
            text.reproduce, scale, kind=study, seeds=seeds, settings=settings, match=match
        )
        folder = runs / text.study_name(scale, study)
        return _Plan(config, run, folder, config.total_steps(), config.steps_of)
    folder = runs / f"{study}-{scale}"
    if study == "recall":
        from diffattn.lab.studies.recall import reproduce as recall

        config = recall.recall_study(scale, seeds=seeds, match=match)
        run = partial(recall.reproduce_recall, scale, seeds=seeds, match=match)
        # An upper bound, and so is the time left.
        steps = config.most_steps
        return _Plan(config, run, folder, config.num_runs() * steps, lambda name: steps)
    if study == "scaling":
        from diffattn.lab.studies.scaling import reproduce as scaling

        config = scaling.scaling_study(scale, seeds=seeds, settings=settings, match=match)
        run = partial(scaling.reproduce_scaling, config, extrapolate=extrapolate)
    elif study == "stability":
        from diffattn.lab.studies.stability import reproduce as stability

        config = stability.stability_study(scale, seeds=seeds, settings=settings, match=match)
        run = partial(stability.reproduce_stability, config)
    else:
        from diffattn.lab.studies.gradient_flow import reproduce as gradients

        config = gradients.gradient_flow_study(scale, seeds=seeds, settings=settings, match=match)
        run = partial(gradients.reproduce_gradient_flow, config)
    steps_by_run = {m.config.name: m.config.train.num_steps for m in config.members()}
    total = sum(steps_by_run.values())
    return _Plan(config, run, folder, total, lambda name: steps_by_run.get(name, 0))
