"""Practical studies: the runs of every model on every task, and their results."""

from functools import partial
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FLOOR, type_name
from diffattn.lab.catalog.recipes.practical import LEARNED, PRACTICAL, PRIMARY
from diffattn.lab.data.recall_tasks import ManyShotConfig, guessing_ceilings
from diffattn.lab.records.study_results import PracticalResults
from diffattn.lab.report.page.wording import listing, plural
from diffattn.lab.stats.intervals import mean_interval, mean_of_seeds
from diffattn.lab.stats.paired import holm, paired_t_test
from diffattn.lab.studies.limits import heads_below, spread
from diffattn.lab.studies.recall.config import RecallStudyConfig
from diffattn.lab.studies.study import Results
from diffattn.lab.training.practical_measures import best_accuracy

practical_study = partial(RecallStudyConfig.planned, PRACTICAL, kind="practical")


def practical_results(config: RecallStudyConfig, results: Results) -> PracticalResults:
    """Every measure per task and model with its interval, and differences to softmax attention."""
    rates = {group: choice.rate for group, choice in config.choices(results).items()}
    tasks: dict[str, Any] = {}
    for (task, name), planned in config.groups(rates).items():
        entry = tasks.setdefault(task, {"members": {}, "differences": []})
        runs = [results[run.config.name] for run in planned]
        # A run that diverged has no measures. Then its model has none, and has learned nothing.
        measured = [run["measures"] for run in runs if "measures" in run]
        names = measured[0] if len(measured) == len(runs) else ()
        entry["members"][name] = {
            "learning_rate": planned[0].config.train.learning_rate,
            "parameter_difference": planned[0].facts["parameter_difference"],
            "runs": [run["run"] for run in runs],
            "test_accuracy": mean_of_seeds([run["test_accuracy"] for run in runs]),
            "measures": {key: mean_of_seeds([values[key] for values in measured]) for key in names},
        }
    for run in config.tasks:
        task, settings = tasks[run.task_name], run.task
        task["guesses"] = guessing_ceilings(settings)
        task["best"] = best_accuracy(settings) if isinstance(settings, ManyShotConfig) else {}
        measure, guess = LEARNED[run.task_name]
        for entry in task["members"].values():
            good = entry["measures"].get("vote_23", {"mean": 1.0})["mean"]
            values = entry["measures"].get(measure, {"values": []})["values"]
            entry["learned"] = sum(value > (task["guesses"][guess] + good) / 2 for value in values)
    _compare(config, tasks)
    return {
        "schema": 1,
        "kind": "practical",
        "protocol": {"name": "practical_study", "version": 1},
        "scale": config.scale,
        "tasks": tasks,
        "statement": _statement(config, tasks),
        "complete": True,
    }


def _compare(config: RecallStudyConfig, tasks: dict[str, Any]) -> None:
    """Add differences to softmax attention in the deciding measures; only types are tested."""
    family: list[dict[str, Any]] = []
    for name, task in tasks.items():
        baseline = task["members"][BASELINE]["measures"]
        for model, entry in task["members"].items():
            for measure in PRIMARY[name] if model != BASELINE else ():
                if measure not in entry["measures"] or measure not in baseline:
                    continue
                values, others = (x[measure]["values"] for x in (entry["measures"], baseline))
                differences = [value - other for value, other in zip(values, others, strict=True)]
                p = paired_t_test(differences) if model in config.types else None
                difference: Any = {
                    "type": model,
                    "measure": measure,
                    **mean_interval(differences).recorded(),
                    "p_value": p,
                    "p_holm": None,
                }
                task["differences"].append(difference)
                family += [] if p is None else [difference]
    adjusted = holm([difference["p_value"] for difference in family])
    for difference, p in zip(family, adjusted, strict=True):
        difference["p_holm"] = p


def _statement(config: RecallStudyConfig, tasks: dict[str, Any]) -> str:
    sentences = []
    for name, task in tasks.items():
        learned = {x: entry["learned"] for x, entry in task["members"].items() if x != FLOOR}
        some = [
            f"{type_name(x)} ({count} of {len(config.seeds)})"
            for x, count in learned.items()
            if count < len(config.seeds)
        ]
        which = f"that attend, but {listing(some)}," if some else "that attend"
        title = {"lookup": "Lookup", "many_shot": "Many-shot classification"}[name]
        sentences.append(f"{title}: all models {which} learn it on every seed.")
    size = heads_below(twin.config for twin in config.twins.values())
    rates = "at one learning rate, which need not be the best of any"
    if len(config.learning_rates) > 1:
        rates = "at rates of their own, chosen on another seed"
    return (
        f"{' '.join(sentences)} {size}{spread(len(config.seeds))} All models train for the same "
        f"steps {rates}. With {plural(len(config.seeds), 'seed')} only large "
        "differences can be told from chance. Models and sequences are small: this shows how "
        "small models behave here, not what the papers' models can do."
    )
