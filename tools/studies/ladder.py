"""Train the ladder: five models of 5.3M parameters on 16.4M tokens of Python, three seeds each.

``PYTHONPATH=src python -m tools.studies.ladder runs/ladder`` trains one run after the other, each
seed for all models, and continues what was interrupted. A run takes about 80 minutes of one core in
bfloat16. ``docs/log.md`` holds the question and the decision rule, written before the first result.

``--pack`` writes the finished runs to ``published/ladder/``, from where another machine goes on.
"""

import argparse
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

from diffattn.files.folders import new_folder
from diffattn.lab.catalog.models import BASELINE, MORE_HEADS
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.records.run import package_versions
from diffattn.lab.records.stored_runs import RUNS, TABLE, pack_runs, unpack_runs
from diffattn.lab.studies.reproduce import begin_study, run_study
from diffattn.lab.studies.text.comparison import ComparisonConfig
from diffattn.lab.studies.workers import is_done, run_here, unfinished
from diffattn.lab.training.prepare import PreparedData, prepare_data
from diffattn.lab.training.settings import apply_settings

MODELS = (BASELINE, "diff_v2", "diff_v2_gate", "diff_v2_added", MORE_HEADS)
FINISHED = Path(__file__).parents[2] / "published" / "ladder" / TABLE
"""Runs that are done, of all machines."""
PACKAGES = ("sympy", "scipy", "sklearn", "pandas", "numpy", "networkx")
"""Installed packages whose Python files are the text."""


def copy_text(folder: Path) -> None:
    """Copy the Python files of the packages into ``folder``; one that exists is whole."""
    if folder.exists():
        return
    with new_folder(folder) as unfinished_copy:
        for package in PACKAGES:
            root = Path(str(files(package)))
            for file in root.rglob("*.py"):
                copy = unfinished_copy / package / file.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def ladder(text: Path) -> ComparisonConfig:
    """The settings of all runs: the study recipe with four times its steps."""
    settings = [f"data.source={text}", "data.vocab_size=4096", "train.num_steps=16000"]
    settings += TIED_START  # as in the study that asked
    base = apply_settings(recipe("study"), settings)
    return ComparisonConfig(scale="ladder", base=base, variants=MODELS, seeds=(0, 1, 2))


def pack_finished(runs: Path, table: Path, names: str = "*") -> None:
    """Write the table of the runs of some names that are done, without those that are not."""
    with tempfile.TemporaryDirectory() as folder:
        for run in filter(is_done, sorted(runs.glob(names))):
            copy = Path(folder) / run.name
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns("model", "*.log"))
        table.parent.mkdir(exist_ok=True)
        pack_runs(Path(folder), table)


def begin(study: ComparisonConfig, out: Path, finished: Path) -> PreparedData:
    """Begin a study, or go on, with the runs that are done elsewhere. Returns its tokens."""
    if finished.exists() and not (out / RUNS).exists():
        unpack_runs(finished, out / RUNS)
    data = prepare_data(study.base.data, out / "data", on_message=print)
    if not (out / "study.json").exists():
        facts = {"source": study.base.data.source, "vocab_size": study.base.data.vocab_size}
        facts |= {"python": package_versions()["python"]} | data.facts()
        begin_study(out, study.resolved(), {"kind": study.kind, "data": facts})
    return data


def show(name: str, event: dict[str, object]) -> None:
    """Print the progress of a run."""
    print(name, event, flush=True)


def main() -> None:
    """Train what is left, then sum up and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="study folder, continued if it exists")
    parser.add_argument("--pack", action="store_true", help="pack finished runs, and stop")
    given = parser.parse_args()
    out = given.out  # as given: records name the text by it, on every machine alike
    if given.pack:
        pack_finished(out / RUNS, FINISHED)
        return
    copy_text(out / "text")
    study = ladder(out / "text")
    data = begin(study, out, FINISHED)
    planned = sorted(study.trials(study.base_rates()), key=lambda m: m.config.train.seed)
    run_here(unfinished(planned, out / RUNS), data, out / RUNS, on_progress=show)
    run_study(study, out, on_message=print, on_progress=show)


if __name__ == "__main__":
    main()
