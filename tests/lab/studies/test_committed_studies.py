"""The committed studies: whole, clean, and their results follow from their runs."""

import json
from functools import cache, partial
from pathlib import Path

import pytest

from diffattn.files.io import read_json
from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.records.fields import checked
from diffattn.lab.records.run import RunRecord, config_hash
from diffattn.lab.records.stored_runs import runs_folder
from diffattn.lab.records.study_results import RESULTS
from diffattn.lab.report.page.study_page import RECALL, TEXT
from diffattn.lab.report.sections.gradient_flow import read_gradient_flow_study
from diffattn.lab.report.sections.practical import read_practical_study
from diffattn.lab.report.sections.recall import read_recall_study
from diffattn.lab.report.sections.scaling import read_scaling_study
from diffattn.lab.report.sections.stability import read_stability_study
from diffattn.lab.report.study.files import read_study
from diffattn.lab.studies.gradient_flow.runs import gradient_flow_study
from diffattn.lab.studies.practical import practical_study
from diffattn.lab.studies.recall.config import recall_study
from diffattn.lab.studies.reproduce import KINDS
from diffattn.lab.studies.scaling import scaling_study
from diffattn.lab.studies.stability import stability_study
from diffattn.lab.studies.study import Runs
from diffattn.lab.studies.text.comparison import comparison
from diffattn.lab.studies.text.summary import study_results
from diffattn.models.config.attention_types import OLD_NAMES
from tools.pages.summaries import committed_summary, recall_summary
from tools.studies.shuffled_keys import shuffled_keys

ROOT = Path(__file__).parents[3]
PUBLISHED_STUDIES = ROOT / "published"
OF_TEXT = ("text", "ablations", "rank", "shuffled")
FITTED = frozenset({"mean", "r2", "max_error", "other_x", "loss", "ratio"})
READERS = {
    "gradient_flow": read_gradient_flow_study,
    "practical": read_practical_study,
    "recall": read_recall_study,
    "scaling": read_scaling_study,
    "stability": read_stability_study,
}


STATISTICS = {"low", "high", "p", "p_holm"}


def count_statistics(computed, committed, *, fitted=frozenset(), rel=1e-9, key=None):
    """The number of statistics in committed results, which must be those that were computed.

    Ends of intervals and p-values may differ by the rounding of the library that computes them,
    at most 1e-10 of a quantile, which the difference of an end from 0 can raise tenfold.
    Everything else is equal. What an optimiser fits is named by ``fitted`` and may differ by
    ``rel``, for it stops where it no longer gains.
    """
    assert type(computed) is type(committed)
    if key in STATISTICS | fitted and isinstance(computed, float):
        assert computed == pytest.approx(committed, rel=rel)
        return 1
    if not isinstance(computed, dict | list):
        assert computed == committed
        return 0
    pairs = list(computed.items() if isinstance(computed, dict) else enumerate(computed))
    assert len(computed) == len(committed)
    again = partial(count_statistics, fitted=fitted, rel=rel)
    return sum(again(value, committed[name], key=name) for name, value in pairs)


@cache
def runs_of(name):
    """The runs of a committed study."""
    folder = runs_folder(PUBLISHED_STUDIES / name)
    names = sorted(path.name for path in folder.iterdir())
    return Runs(folder, {run: read_json(folder / run / "results.json") for run in names})


def of_today(record):
    """A record with today's names of attention types."""
    text = json.dumps(record)
    for old, new in OLD_NAMES.items():
        text = text.replace(f'"attention_type": "{old}"', f'"attention_type": "{new}"')
    return json.loads(text)


@cache
def committed(name, file="results.json"):
    return of_today(read_json(PUBLISHED_STUDIES / name / file))


@cache
def config_of(name):
    """The recipe, if it is the one that was run: if it moves on, the study must be run again."""
    study = committed(name, "study.json")
    seeds = study["seeds"]
    make = {
        "ablations": lambda: comparison("study", kind=name, seeds=seeds, settings=TIED_START),
        "gradient_flow": lambda: gradient_flow_study("laptop", seeds=seeds, settings=TIED_START),
        "practical": lambda: practical_study("study", seeds=seeds),
        "rank": lambda: comparison("study", kind=name, seeds=seeds, settings=TIED_START),
        "recall": lambda: recall_study("study"),
        "scaling": lambda: scaling_study("laptop", settings=TIED_START),
        "shuffled": shuffled_keys,
        "stability": lambda: stability_study("study", settings=TIED_START),
        "text": lambda: comparison(study["scale"], seeds=seeds, settings=TIED_START),
    }
    config = make[name]()
    assert {key: study[key] for key in config.resolved()} == config.resolved()
    return config


def planned_runs_of(name, config, runs):
    """All runs of a study, but those of the sweep of a study of text."""
    *sweeps, trials = config.waves(runs.results)
    assert name in OF_TEXT or not any(config.missing_tries(runs.results) for _ in sweeps)
    if name not in ("practical", "recall"):
        return trials.runs
    tried = {group: choice.tried for group, choice in config.choices(runs.results).items()}
    return [*config.sweep(tried), *trials.runs]


def test_hashes_know_older_names():
    for old, new in OLD_NAMES.items():
        assert config_hash({"attention_type": old}) == config_hash({"attention_type": new})


@pytest.mark.parametrize("name", [*OF_TEXT, *READERS])
def test_results_follow_from_the_runs(name):
    config = config_of(name)
    fit = {"fitted": FITTED, "rel": 1e-4} if name == "scaling" else {}
    runs = runs_of(name)
    if name in OF_TEXT:
        results = study_results(config, runs, committed(name, "counts.json")["models"])
    else:
        results = KINDS[config.kind][1](config, runs, None, None)
    assert count_statistics(results, committed(name), **fit) > 40
    for written in (results, committed(name)):
        checked(RESULTS[config.kind][0], written, name)
    read = READERS.get(name, read_study)  # as the report does
    assert read(PUBLISHED_STUDIES / name).gaps == ()


@pytest.mark.parametrize("name", [*OF_TEXT, *READERS])
def test_every_run_is_of_the_recipe_and_from_a_clean_commit(name):
    config, runs = config_of(name), runs_of(name)
    planned = planned_runs_of(name, config, runs)
    names = {run.config.name for run in planned}
    assert names <= set(runs.results)
    assert name == "text" or names == set(runs.results)
    records = [RunRecord.read(runs.folder / run.config.name) for run in planned]
    for run, record in zip(planned, records, strict=True):
        assert record.commit
        assert record.dirty is False
        assert of_today(record.config["model"]) == run.config.model.settings()
        measured, train = runs.results[run.config.name], run.config.train
        if name in ("practical", "recall"):
            assert of_today(record.config) == run.config.resolved()
            solved_early = name == "recall" and measured["solved"]
            assert solved_early or measured["steps"] == train.num_steps
        else:
            assert measured["tokens"] == train.num_steps * train.batch_tokens
    if name in OF_TEXT:
        assert all(record.config["data"] == records[0].config["data"] for record in records)
    if name in ("scaling", "stability", "gradient_flow"):
        assert len({record.commit for record in records}) == 1


def test_the_package_carries_summaries_of_the_studies_on_text_and_recall():
    """After a new study write its summary to ``TEXT`` or ``RECALL``."""
    assert read_json(TEXT) == committed_summary(read_study(ROOT / "published" / "text"))
    study = read_recall_study(ROOT / "published" / "recall")
    assert read_json(RECALL) == recall_summary(study, "noisy_recall")


def test_the_laptop_recalls_at_the_rates_that_the_study_chose():
    laptop, task = recall_study("laptop"), committed("recall")["tasks"]["noisy_recall"]
    rates = laptop.choices({})
    for name, model in {**task["types"], **task["controls"]}.items():
        if ("noisy_recall", name) in rates:
            assert rates["noisy_recall", name].rate == model["learning_rate"], name
