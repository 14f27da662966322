"""Train attention with a gate per channel as the published study on text: its own rate, five seeds.

``PYTHONPATH=src python -m tools.studies.element_gate runs/element_gate`` trains for about three
hours of a core in bfloat16, and continues what was interrupted. The models beside it are copied
from ``published/text``. ``docs/log.md`` holds the question and the decision rule.

``--pack`` writes the finished runs to ``published/element_gate/``, from where another machine goes
on.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from diffattn.lab.catalog.models import BASELINE, ELEMENT_GATE, GATE
from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.records.stored_runs import RUNS, TABLE
from diffattn.lab.studies.reproduce import run_study
from diffattn.lab.studies.text.comparison import ComparisonConfig, comparison
from tools.studies.ladder import begin, pack_finished, show

PUBLISHED = Path(__file__).parents[2] / "published"
FINISHED = PUBLISHED / "element_gate" / TABLE


def element_gate() -> ComparisonConfig:
    """The settings of the published study, of four of its models and the new one."""
    study = comparison("study", settings=TIED_START)
    models = (BASELINE, "diff_v2", GATE, ELEMENT_GATE)
    return replace(study, variants=models, fewer_seeds=len(study.seeds))


def main() -> None:
    """Train what is left, then sum up and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="study folder, continued if it exists")
    parser.add_argument("--pack", action="store_true", help="pack finished runs, and stop")
    given = parser.parse_args()
    if given.pack:
        pack_finished(given.out / RUNS, FINISHED, names=f"{ELEMENT_GATE}-*")
        return
    study, reuse = element_gate(), [PUBLISHED / "text"]
    begin(study, given.out, FINISHED)
    run_study(study, given.out, reuse=reuse, workers=1, on_message=print, on_progress=show)


if __name__ == "__main__":
    main()
