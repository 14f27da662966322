"""The origin of every number: hashes, commits, versions, hardware, files."""

import json
from collections.abc import Mapping
from typing import Any

from diffattn.lab.report.page.elements import Code, Element, Fold
from diffattn.lab.report.page.runs import Study, StudyRun
from diffattn.lab.report.page.tables import Table, table, word_cell
from diffattn.lab.report.page.wording import count, listing

_NOT_RECORDED = "not recorded"


def provenance(study: Study) -> list[Element]:
    """Show facts of a study, a table of its runs, and its resolved config as JSON."""
    settings = study.info.get("config", study.info.get("tasks"))
    config = json.dumps(settings, indent=1, ensure_ascii=False)
    return [
        Fold("Data, versions and machine", [_facts(study)]),
        Fold("Every run", [_runs_table(study)]),
        Fold("Resolved config", [Code(config)]),
    ]


def statement(study: Study) -> str:
    """The study's recorded statement about its limits."""
    if study.results is None:
        return "The study has not finished, so it makes no statement."
    return str(study.results["statement"])


def _facts(study: Study) -> Table:
    info, data = study.info, study.info.get("data") or {}
    protocol = (study.results or {}).get("protocol") or {}
    facts: dict[str, Any] = {
        "Study created": info.get("created"),
        "Scale": info.get("scale"),
        "Matched by": info.get("match"),
        "Seeds": ", ".join(map(str, info["seeds"])),
        "Protocol": protocol and f"{protocol.get('name')}, version {protocol.get('version')}",
        "Config hash": info.get("config_hash"),
    }
    if info.get("kind") in ("recall", "practical"):
        facts["Data"] = "made while training, from the seed and the step"
    else:
        sizes = [count(data.get(f"validation_{unit}")) for unit in ("tokens", "bytes")]
        facts |= {
            "Data": data.get("source"),
            "Data hash": data.get("corpus_hash"),
            "Training tokens in the data": count(data.get("train_tokens")),
            "Validation data": "{} tokens, {} bytes".format(*sizes),
            "Vocabulary": count(data.get("vocab_size")),
            "Python of the data": data.get("python"),
        }
    rows = [(name, str(value or _NOT_RECORDED)) for name, value in facts.items()]
    for name, values in (
        ("Commit", {run.name: _commit(run) for run in study.runs}),
        ("Versions", {run.name: _pairs(run.record.versions) for run in study.runs}),
        ("Hardware", {run.name: _pairs(run.record.hardware) for run in study.runs}),
    ):
        rows += [(name, text or _NOT_RECORDED) for text in _distinct(values)]
    return table("The study.", ["", ""], ((name, word_cell(text)) for name, text in rows))


def _distinct(values: Mapping[str, str]) -> list[str]:
    """Each distinct value once; with the names of its runs if there are several."""
    names: dict[str, list[str]] = {}
    for run, value in values.items():
        names.setdefault(value, []).append(run)
    if len(names) == 1:
        return list(names)
    return [f"{value} ({', '.join(runs)})" for value, runs in names.items()]


def _runs_table(study: Study) -> Table:
    rows = [
        (
            run.name,
            str(run.record.seed),
            run.record.created,
            run.record.device,
            _pairs(run.record.backends) or "none",
            (run.record.commit or _NOT_RECORDED)[:12],
            _source_changed(run),
            "yes" if run.results is not None else "no",
            _record_file(run),
        )
        for run in study.runs
    ]
    headers = ["Run", "Seed", "Created", "Device", "Backends", "Commit", "Changed source"]
    return table("The runs.", [*headers, "Finished", "Record"], rows)


def _record_file(run: StudyRun) -> str:
    """The path of ``run.json``, and the name in the record if it differs from the folder's."""
    path = f"runs/{run.name}/run.json"
    return path if run.record.name == run.name else f"{path}, recorded as {run.record.name}"


def _commit(run: StudyRun) -> str:
    if run.record.commit is None:
        return "not recorded: the package did not run from a checkout"
    changed = {"yes": " with uncommitted changes", "no": ", source unchanged", "unknown": ""}
    later = f", continued at {listing(run.continued)}" if run.continued else ""
    return run.record.commit + changed[_source_changed(run)] + later


def _source_changed(run: StudyRun) -> str:
    return {None: "unknown", True: "yes", False: "no"}[run.record.dirty]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
