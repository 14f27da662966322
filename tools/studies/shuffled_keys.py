"""Train V2, V2 with its second map's keys shuffled, and their controls: five seeds of each.

``PYTHONPATH=src python -m tools.studies.shuffled_keys runs/shuffled`` takes the sizes of the recipe
``laptop``, about an hour of one core, and continues what was interrupted. ``docs/log.md`` holds the
question and the decision rule, written before the first result.

``--study`` trains V2 with shuffled keys as the published study on text, and V2, both in float32: 60
to 90 minutes of a core each. ``--pack`` writes the runs that are done to
``published/shuffled_study/``, from where another machine goes on.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from diffattn.lab.catalog.models import BASELINE, GATE
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.records.stored_runs import TABLE, unpack_runs
from diffattn.lab.studies.reproduce import run_study
from diffattn.lab.studies.study import PlannedRun
from diffattn.lab.studies.text.comparison import ComparisonConfig, comparison
from diffattn.lab.studies.workers import run_here, unfinished
from diffattn.lab.training.prepare import prepare_data
from diffattn.lab.training.settings import apply_settings
from tools.studies.ladder import pack_finished, show

MODELS = (BASELINE, "diff_v2", GATE, "diff_v2_shuffled")
SEEDS = (0, 1, 2, 3, 4)
FINISHED = Path(__file__).parents[2] / "published" / "shuffled_study" / TABLE


def shuffled_keys() -> ComparisonConfig:
    """The settings of all runs, at one learning rate."""
    return replace(comparison("laptop", seeds=SEEDS), variants=MODELS, fewer_seeds=len(SEEDS))


def at_study_scale() -> list[PlannedRun]:
    """The runs of the published study's size, in the order of their seeds."""
    base = apply_settings(recipe("study"), [*TIED_START, "train.precision=float32"])
    study = ComparisonConfig(
        scale="study", base=base, variants=MODELS, seeds=SEEDS, fewer_seeds=len(SEEDS)
    )
    wanted = {f"{name}-seed{seed}" for name in ("diff_v2", "diff_v2_shuffled") for seed in SEEDS}
    planned = [m for m in study.trials(study.base_rates()) if m.config.name in wanted]
    return sorted(planned, key=lambda run: run.config.train.seed)


def main() -> None:
    """Train what is left; without ``--study`` sum up and write the page too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="study folder, continued if it exists")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side [2]")
    parser.add_argument("--study", action="store_true", help="train at the study's size")
    parser.add_argument("--pack", action="store_true", help="pack finished runs of --study")
    given = parser.parse_args()
    if given.pack:
        pack_finished(given.out, FINISHED)
        return
    if given.study:
        if FINISHED.exists() and not given.out.exists():
            unpack_runs(FINISHED, given.out)
        planned = at_study_scale()
        data = prepare_data(recipe("study").data, given.out.parent / "data", on_message=print)
        run_here(unfinished(planned, given.out), data, given.out, on_progress=show)
        return
    run_study(shuffled_keys(), given.out, workers=given.workers, on_message=print, on_progress=show)


if __name__ == "__main__":
    main()
