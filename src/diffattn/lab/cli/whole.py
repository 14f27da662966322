"""``diffattn reproduce all``: every study of a scale, then one page."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer


def reproduce_all(
    scale: str,
    folder: Path,
    only: Sequence[str],
    *,
    plan: Callable[..., Any],
    run: Callable[..., Path],
    first_seed: bool,
    dry_run: bool,
    json_: bool,
) -> None:
    """Run what a scale affords, and write the page of all of it.

    Args:
        scale: ``"smoke"``, ``"laptop"``, ``"study"`` or ``"workstation"``.
        folder: Holds one folder per stage, ``results.json`` and ``report.html``.
        only: Names of stages. Default: all.
        plan: Of a study and its scale, with its seeds.
        run: Runs a plan in a folder.
        first_seed: Whether no seeds were asked for, so that few-minute scales take the first alone.
        dry_run: Print the resolved configurations and stop.
        json_: Print ``results.json`` at the end.
    """
    from diffattn.errors import ConfigError
    from diffattn.lab.cli.screen.progress import ItemProgress, RunsProgress
    from diffattn.lab.studies.variants import MEMBERS
    from diffattn.lab.studies.whole import ANALYSIS, THROUGHPUT, is_long, scale_of, stages_of

    stages = stages_of(scale, only)
    studies = [name for name in stages if name not in (ANALYSIS, THROUGHPUT)]
    if ANALYSIS in stages and "text" not in stages and not (folder / "text" / "runs").is_dir():
        raise ConfigError("reproduce all: --only must hold text, whose models analysis reads.")
    seeds = {"seeds": (0,)} if first_seed and not is_long(scale) else {}
    plans = {name: plan(name, scale_of(name, scale), **seeds) for name in studies}
    if dry_run:
        resolved = {name: of.config.resolved() for name, of in plans.items()}
        typer.echo(json.dumps(resolved, indent=2, ensure_ascii=False))
        return
    from diffattn.lab.studies.reuse import is_reusable
    from diffattn.lab.studies.whole import (
        TITLES,
        analyse_models,
        finish,
        require_scale,
        time_models,
    )

    require_scale(folder, scale)

    for number, name in enumerate(stages, 1):
        typer.echo(f"{number}/{len(stages)} {name}: {TITLES[name]}", err=True)
        if name in plans:
            others = [folder / x for x in MEMBERS if name in MEMBERS and x != name]
            reuse = [other for other in others if is_reusable(other)]
            run(plans[name], folder / name, reuse=reuse)
        elif name == ANALYSIS:
            with ItemProgress(4) as items:
                analyse_models(
                    folder, scale, on_start=items.on_start, on_progress=items.on_progress
                )
        else:
            with RunsProgress(1, 0, lambda _: 1) as progress:
                time_models(folder, scale, on_message=progress.on_message)
    page = finish(folder, scale)
    if json_:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(f"Report: {page}")
