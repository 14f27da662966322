"""The summary of a published study that the package carries, to be shown beside other studies.

``python -m diffattn.report.study.published FOLDER`` writes it.
"""

import sys
from pathlib import Path
from typing import Any, TypedDict

from diffattn.records.io import write_json
from diffattn.records.run import SCHEMA_VERSION, RunRecord
from diffattn.report.page.runs import Study, StudyRun, read_checked, require_attention_type
from diffattn.report.study.files import (
    StudyInfo,
    StudyResults,
    read_study,
    require_one_run_per_value,
)

PUBLISHED = Path(__file__).parents[1] / "published" / "text.json"
ALL_RECORDS = "published/text"
"""Folder of the repository with every record of the study."""
_SHAPE = ("attention_type", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
_RESULTS = ("validation_loss", "validation_bits_per_byte", "lam")
_COSTS = ("tokens_per_second", "peak_bytes", "wall_seconds")


class _PublishedRun(TypedDict):
    record: RunRecord
    results: dict[str, Any]
    costs: dict[str, Any]


class _Published(TypedDict):
    all_records: str
    study: StudyInfo
    results: StudyResults
    runs: list[_PublishedRun]


def study_summary(folder: Path) -> dict[str, Any]:
    """What a page shows beside another study: models, losses, differences, costs, provenance.

    Args:
        folder: A study folder; every run must have finished.

    Returns:
        Contents of a JSON file that :func:`read_published` reads.
    """
    study = read_study(folder)
    runs = []
    for run in study.runs:
        record = vars(run.record)
        # The rest of a model's shape is that of the study's config.
        shape = {key: record["config"]["model"][key] for key in _SHAPE}
        runs.append(
            {
                "record": record | {"config": {"model": shape}},
                "results": {key: run.result(key) for key in _RESULTS},
                "costs": {key: (run.costs or {}).get(key) for key in _COSTS},
            }
        )
    return {
        "schema": SCHEMA_VERSION,
        "all_records": ALL_RECORDS,
        "study": study.info,
        "results": study.results,
        "runs": runs,
    }


def read_published(path: Path) -> Study:
    """Read a study that is shown beside another.

    Args:
        path: A study folder, or the file of a :func:`study_summary`.

    Raises:
        CheckpointError: A file is damaged, of another kind or of another schema version.
    """
    if not path.is_file():
        return read_study(path)
    value = read_checked(path, _Published)
    require_one_run_per_value(value["results"], path)
    runs = [StudyRun(**entry) for entry in value["runs"]]
    for run in runs:
        require_attention_type(run.record, path)
    return Study(
        info=value["study"],
        runs=tuple(runs),
        results=value["results"],
        all_records=value["all_records"],
    )


if __name__ == "__main__":
    write_json(PUBLISHED, study_summary(Path(sys.argv[1])))
