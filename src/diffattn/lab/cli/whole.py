"""``diffattn reproduce all``: run every stage of a scale, and write one page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def reproduce_all(
    scale: str,
    folder: Path,
    only: Sequence[str],
    options: dict[str, Any],
    workers: int | None,
    *,
    dry_run: bool,
    json_: bool,
) -> None:
    """Run the stages of a scale, or ``only`` some, and write one page with all results.

    ``folder`` gets one folder per stage, ``results.json`` and ``report.html``. ``options`` are
    ``seeds``, ``settings`` and ``match`` of the studies.
    """
    from diffattn.lab.catalog.models import MEMBERS
    from diffattn.lab.cli.screen.closing import closing
    from diffattn.lab.cli.screen.progress import ItemProgress, RunsProgress
    from diffattn.lab.studies.reuse import is_reusable
    from diffattn.lab.studies.stages import ANALYSIS, TITLES, stages_of
    from diffattn.lab.studies.whole import analyse_models, finish, require_scale, time_models

    stages = stages_of(scale, only)
    studies = _studies_of(stages, scale, folder, options)
    if dry_run:
        resolved = {name: study.resolved() for name, study in studies.items()}
        typer.echo(json.dumps(resolved, indent=2, ensure_ascii=False))
        return
    require_scale(folder, scale)
    for number, name in enumerate(stages, 1):
        typer.echo(f"{number}/{len(stages)} {name}: {TITLES[name]}", err=True)
        if name in studies:
            others = [folder / other for other in MEMBERS if name in MEMBERS and other != name]
            reusable = [other for other in others if is_reusable(other)]
            run_with_progress(studies[name], folder / name, workers, reusable)
        elif name == ANALYSIS:
            with ItemProgress(4) as items:
                analyse_models(folder, on_start=items.on_start, on_progress=items.on_progress)
        else:
            with RunsProgress(1, 0, lambda _: 1) as progress:
                time_models(folder, scale, on_message=progress.on_message)
    page = finish(folder, scale)
    results = (folder / "results.json").read_text(encoding="utf-8")
    if json_:
        typer.echo(results, nl=False)
    else:
        recorded = json.loads(results)
        sentences = [entry["sentence"] for entry in recorded["stages"].values()]
        folders = {name: folder / name for name in recorded["stages"]}
        typer.echo(closing(sentences, page, folders))


def _studies_of(
    stages: Sequence[str], scale: str, folder: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Stage to its study, for stages that train models; ``recall`` gets no settings."""
    from diffattn.errors import ConfigError
    from diffattn.lab.studies.reproduce import make_study
    from diffattn.lab.studies.stages import ANALYSIS, THROUGHPUT, scale_of

    if ANALYSIS in stages and "text" not in stages and not (folder / "text" / "runs").is_dir():
        raise ConfigError("reproduce all: --only must hold text, whose models analysis reads.")
    studies = {}
    for name in stages:
        if name not in (ANALYSIS, THROUGHPUT):
            settings = options | ({"settings": ()} if name == "recall" else {})
            studies[name] = make_study(name, scale_of(name, scale), **settings)
    return studies


def run_with_progress(
    study: Any, folder: Path, workers: int | None, reuse: Sequence[Path] = ()
) -> Path:
    """Run one study and show its progress; return the path of its page."""
    from diffattn.lab.cli.screen.progress import RunsProgress
    from diffattn.lab.studies.reproduce import run_study

    steps_of = study.steps_of
    done = sum(steps_of(path.parent.name) for path in (folder / "runs").glob("*/results.json"))
    with RunsProgress(study.total_steps, done, steps_of) as progress:
        return run_study(
            study,
            folder,
            reuse=reuse,
            workers=workers,
            on_message=progress.on_message,
            on_progress=progress.on_progress,
        )
