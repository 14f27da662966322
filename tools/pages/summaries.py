"""Summarise the committed studies for the report pages, in ``report/published``.

``PYTHONPATH=src python -m tools.pages.summaries`` after new runs in ``published/``.
"""

from pathlib import Path
from typing import Any

from diffattn.files.io import write_json
from diffattn.lab.catalog.models import BASELINE, GATE
from diffattn.lab.report.page.runs import Study
from diffattn.lab.report.page.study_page import RECALL, TEXT
from diffattn.lab.report.sections.recall import read_recall_study
from diffattn.lab.report.sections.recall_tables import (
    UNIFORM,
    median_step,
    models_of,
    task_results,
)
from diffattn.lab.report.study.files import COMPARED, TextStudy, read_study, training_budget

PUBLISHED = Path(__file__).parents[2] / "published"
NEW = "first_occurrence"


def committed_summary(study: TextStudy) -> dict[str, Any]:
    """Differences to the Transformer, which pages of other studies show.

    Returns:
        Contents of :data:`diffattn.lab.report.page.study_page.TEXT`.
    """
    every, info = study.entries, study.info
    names = [name for name, variant in every.items() if variant["role"] in COMPARED]
    differences = []
    for name in (*names, GATE):
        entry = study.difference(name, BASELINE)
        new = study.difference(name, BASELINE, metric=NEW)
        if entry is None or new is None:
            continue
        differences.append(
            {
                "variant": name,
                **{key: entry[key] for key in ("mean", "low", "high")},
                "new": new["mean"],
            }
        )
    return {
        "config_hash": info["config_hash"],
        "seeds": len(info["seeds"]),
        "parameters": every[BASELINE]["parameters"],
        "train_tokens": training_budget(info),
        "differences": differences,
    }


def recall_summary(study: Study, task: str) -> dict[str, Any]:
    """Contents of :data:`diffattn.lab.report.page.study_page.RECALL`."""
    keys = ("variant", "baseline", "mean", "low", "high")
    models, shown = models_of(study, task), {*study.types, UNIFORM}
    return {
        "config_hash": study.info["config_hash"],
        "task": task,
        "seeds": len(study.info["seeds"]),
        "steps": {name: median_step(model) for name, model in models.items() if name in shown},
        "differences": [
            {key: row[key] for key in keys}
            for row in task_results(study, task)["differences"]
            if {row["variant"], row["baseline"]} <= shown
        ],
    }


def main() -> None:
    """Write both files."""
    write_json(TEXT, committed_summary(read_study(PUBLISHED / "text")))
    study = read_recall_study(PUBLISHED / "recall")
    write_json(RECALL, recall_summary(study, "noisy_recall"))


if __name__ == "__main__":
    main()
