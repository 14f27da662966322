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
    """Run the stages of a scale, and write one page with all results.

    Args:
        scale: ``"smoke"``, ``"laptop"``, ``"study"`` or ``"workstation"``.
        folder: Gets one folder per stage, ``results.json`` and ``report.html``.
        only: Names of the stages to run; all if empty.
        options: ``seeds``, ``settings`` and ``match`` of the studies.
    """
    from diffattn.lab.cli.screen.closing import closing
    from diffattn.lab.studies.stages import TITLES, stages_of
    from diffattn.lab.studies.whole import finish, require_scale

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
            run_with_progress(studies[name], folder / name, workers, _reusable(name, folder))
        else:
            _measure(name, folder, scale)
    page = finish(folder, scale)
    if json_:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
    else:
        recorded = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        sentences = [entry["sentence"] for entry in recorded["stages"].values()]
        retrieval, text = (
            folder / name if name in recorded["stages"] else None for name in ("recall", "text")
        )
        typer.echo(closing(sentences, page, retrieval=retrieval, text=text))


def _studies_of(
    stages: Sequence[str], scale: str, folder: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Stage to its study, for stages that train models; ``recall`` gets no settings."""
    from diffattn.errors import ConfigError
    from diffattn.lab.studies.reproduce import make_study
    from diffattn.lab.studies.stages import ANALYSIS, THROUGHPUT, scale_of

    if ANALYSIS in stages and "text" not in stages and not (folder / "text" / "runs").is_dir():
        raise ConfigError("reproduce all: --only must hold text, whose models analysis reads.")
    of_recall = options | {"settings": ()}
    return {
        name: make_study(
            name, scale_of(name, scale), **(of_recall if name == "recall" else options)
        )
        for name in stages
        if name not in (ANALYSIS, THROUGHPUT)
    }


def _reusable(name: str, folder: Path) -> list[Path]:
    """Folders of other stages whose finished runs this stage may copy."""
    from diffattn.lab.catalog.models import MEMBERS
    from diffattn.lab.studies.reuse import is_reusable

    others = [folder / other for other in MEMBERS if name in MEMBERS and other != name]
    return [other for other in others if is_reusable(other)]


def _measure(stage: str, folder: Path, scale: str) -> None:
    """Run a stage that trains nothing: analyse the models of ``text``, or time whole models."""
    from diffattn.lab.cli.screen.progress import ItemProgress, RunsProgress
    from diffattn.lab.studies.stages import ANALYSIS
    from diffattn.lab.studies.whole import analyse_models, time_models

    if stage == ANALYSIS:
        with ItemProgress(4) as items:
            analyse_models(folder, on_start=items.on_start, on_progress=items.on_progress)
    else:
        with RunsProgress(1, 0, lambda _: 1) as progress:
            time_models(folder, scale, on_message=progress.on_message)


def run_with_progress(
    study: Any, folder: Path, workers: int | None, reuse: Sequence[Path] = ()
) -> Path:
    """Run one study and show its progress; return the path of its page."""
    from diffattn.lab.cli.screen.progress import RunsProgress
    from diffattn.lab.studies.reproduce import run_study

    steps_of = study.steps_by_run()
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
