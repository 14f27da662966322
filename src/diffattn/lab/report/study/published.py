"""The summary of a published study that the package carries, to be shown beside other studies.

``python -m diffattn.lab.report.study.published FOLDER`` writes it.
"""

import sys
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError
from diffattn.files.io import write_json
from diffattn.lab.records.run import SCHEMA_VERSION, RunRecord
from diffattn.lab.report.page.runs import StudyRun, read_versioned
from diffattn.lab.report.study.files import TextStudy, assembled, read_study
from diffattn.lab.report.study.summary import LOSS, shown_in_charts

PUBLISHED = Path(__file__).parents[1] / "published" / "text.json"
ALL_RECORDS = "published/text"
"""Folder of the repository with every record of the study."""
_SHAPE = ("attention_type", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
_RESULTS = ("validation_loss", "validation_bits_per_byte", "lam")
_COSTS = ("tokens_per_second", "peak_bytes", "cpu_seconds")
_GROUP = ("learning_rate", "runs", LOSS, "phase_steps")


def study_summary(folder: Path) -> dict[str, Any]:
    """What a page shows beside another study: models, losses, differences, costs, provenance.

    Losses of parts of the tokens, the sweep and the runs of controls stay in the folder.

    Args:
        folder: A study folder; every run must have finished.

    Returns:
        Contents of a JSON file that :func:`read_published` reads.

    Raises:
        CheckpointError: The study has not finished, or is of another schema version.
    """
    study = read_study(folder)
    if study.results is None:
        raise CheckpointError(f"{folder}: must hold the results of a finished study, got none.")
    runs = []
    for name in shown_in_charts(study):
        for run in study.runs_of(name):
            record = vars(run.record)
            # The rest of a model's shape is that of the study's config.
            shape = {key: record["config"]["model"][key] for key in _SHAPE}
            runs.append(
                {
                    "name": run.name,
                    "record": record | {"config": {"model": shape}},
                    "results": {key: run.result(key) for key in _RESULTS},
                    "costs": {key: (run.costs or {}).get(key) for key in _COSTS},
                    "continued": run.continued,
                }
            )
    return {
        "schema": SCHEMA_VERSION,
        "all_records": ALL_RECORDS,
        "study": study.info,
        "results": _without_details(study.results),
        "runs": runs,
    }


def read_published(path: Path) -> TextStudy:
    """Read a study that is shown beside another.

    Args:
        path: A study folder, or the file of a :func:`study_summary`.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    if not path.is_file():
        return read_study(path)
    value = read_versioned(path)
    runs = [StudyRun(**entry | {"record": RunRecord(**entry["record"])}) for entry in value["runs"]]
    return assembled(value["study"], runs, value["results"], path, all_records=value["all_records"])


def _without_details(results: dict[str, Any]) -> dict[str, Any]:
    variants = {
        name: entry
        | {
            "at": {
                at: {key: group[key] for key in _GROUP if key in group}
                for at, group in entry["at"].items()
            }
        }
        for name, entry in results["variants"].items()
    }
    left_out = ("rates", "count_models", "phase")
    return {key: value for key, value in results.items() if key not in left_out} | {
        "variants": variants,
        "differences": [entry for entry in results["differences"] if entry["metric"] == LOSS],
    }


if __name__ == "__main__":
    write_json(PUBLISHED, study_summary(Path(sys.argv[1])))
