"""Train V2, V2 with its second map's keys shuffled, and their controls: five seeds of each.

``PYTHONPATH=src python -m tools.studies.shuffled_keys runs/shuffled`` takes the sizes of the recipe
``laptop``, about an hour of one core, and continues what was interrupted. ``docs/log.md`` holds the
question and the decision rule, written before the first result.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from diffattn.lab.catalog.models import BASELINE, GATE
from diffattn.lab.studies.reproduce import run_study
from diffattn.lab.studies.text.comparison import ComparisonConfig, comparison

MODELS = (BASELINE, "diff_v2", GATE, "diff_v2_shuffled")
SEEDS = (0, 1, 2, 3, 4)


def shuffled_keys() -> ComparisonConfig:
    """The settings of all runs, at one learning rate."""
    return replace(comparison("laptop", seeds=SEEDS), variants=MODELS, fewer_seeds=len(SEEDS))


def main() -> None:
    """Train what is left, then sum up and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="study folder, continued if it exists")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side [2]")
    given = parser.parse_args()

    def show(name: str, event: dict[str, object]) -> None:
        print(name, event, flush=True)

    run_study(shuffled_keys(), given.out, workers=given.workers, on_message=print, on_progress=show)


if __name__ == "__main__":
    main()
