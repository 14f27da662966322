"""The study for leases of a GPU: train as long as there is time, then merge and compare the runs.

``PYTHONPATH=src python -m tools.lease train FOLDER`` is ``diffattn reproduce lease``, but counts
unigrams and bigrams before the first run. It goes on where it was. SIGTERM stops it with a
checkpoint, and ``--reuse LEASE`` takes finished runs of another folder.

``python -m tools.lease merge NEW LEASE [LEASE ...]`` copies the finished runs of all folders into
a new one and compares the models for as many seeds as are whole. It needs neither GPU nor text.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.files.folders import new_folder
from diffattn.files.io import read_json, write_json
from diffattn.lab.studies.reproduce import (
    begin_study,
    recorded_costs,
    require_studies,
    reuse_runs,
    run_study,
)
from diffattn.lab.studies.study import Runs
from diffattn.lab.studies.text.comparison import ComparisonConfig, comparison
from diffattn.lab.studies.text.summary import read_or_count, study_results
from diffattn.lab.studies.whole import build_study_page
from diffattn.lab.training.prepare import PreparedData

COUNTS, RESULTS = "counts.json", "results.json"


def train(study: ComparisonConfig, folder: Path, reuse: Sequence[Path]) -> None:
    """Train what is left of the study."""

    def count(data: PreparedData | None) -> None:
        assert data is not None, "the study reads text"
        read_or_count(study, data, folder / COUNTS, print)

    def show(run: str, event: dict[str, Any]) -> None:
        if "step" not in event:
            print(run, event, flush=True)

    try:
        run_study(
            study, folder, reuse=reuse, workers=1, on_data=count, on_message=print,
            on_progress=show,
        )  # fmt: skip
    except DiffAttnError as error:
        if not (folder / RESULTS).exists():
            raise
        print(error)  # a lent machine may lack what draws the page


def merge(study: ComparisonConfig, folder: Path, leases: Sequence[Path]) -> None:
    """Copy finished runs of one text into a new folder, and judge the largest whole part."""
    require_studies(leases)
    data = [read_json(lease / "study.json")["data"] for lease in leases]
    hashes = {facts["train_hash"] for facts in data}
    if len(hashes) > 1 or folder.exists():
        raise CheckpointError(
            f"{folder}: must be new and of leases with the same tokens, got "
            f"{len(hashes)} texts{' and a folder' if folder.exists() else ''}."
        )
    counted = [lease / COUNTS for lease in leases if (lease / COUNTS).exists()]
    if not counted:
        raise CheckpointError(f"{leases[0]}: must hold {COUNTS}, got none in any lease.")
    with new_folder(folder) as made:
        part, results = next(_whole_parts(study, data[0], made / "runs", leases), (None, {}))
        if part is None:
            raise CheckpointError(f"{leases[0]}: must hold every model's first seed, got fewer.")
        write_json(made / COUNTS, read_json(counted[0]))
        begin_study(made, part.resolved(), {"kind": part.kind, "data": data[0]})
        runs = Runs(made / "runs", results)
        write_json(made / RESULTS, study_results(part, runs, read_json(counted[0])["models"]))
        costs = recorded_costs(made / "runs", results)
        write_json(made / "costs.json", {"schema": 1, "runs": costs})
    print(build_study_page(folder))


def _whole_parts(
    study: ComparisonConfig, data: dict[str, Any], runs: Path, leases: Sequence[Path]
) -> Iterator[tuple[ComparisonConfig, dict[str, Any]]]:
    """Parts of the study whose runs are all there, the largest first, and their results."""
    facts = {key: value for key, value in data.items() if key not in ("source", "vocab_size")}
    facts.pop("python")
    early = tuple(name for name in study.variants if name not in study.later)
    for seeds in range(len(study.seeds), 0, -1):
        for variants in (study.variants, early):
            part = replace(study, variants=variants, seeds=study.seeds[:seeds])
            results: dict[str, Any] = {}
            for wave in part.waves(results):
                reuse_runs(wave.runs, facts, runs, leases)
                names = [run.config.name for run in wave.runs]
                if not all((runs / name).exists() for name in names):
                    break
                results |= {name: read_json(runs / name / RESULTS) for name in names}
            else:
                yield part, results


def main() -> int:
    """Train or merge; 2 if that was refused or failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("train", "merge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("leases", type=Path, nargs="*", help="merge: folders of leases")
    parser.add_argument("--reuse", type=Path, action="append", default=[], help="train: copy runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    if given.command == "merge" and not given.leases:
        parser.error("merge: leases must be named, got none.")
    try:
        study = comparison("lease", settings=given.set)
        if given.command == "train":
            train(study, given.folder, given.reuse)
        else:
            merge(study, given.folder, given.leases)
    except DiffAttnError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
