"""Where every number came from: hashes, commits, versions, hardware, files."""

import json
from typing import Any

from diffattn.lab.report.page.elements import Code, Element, Fold
from diffattn.lab.report.page.runs import Study, StudyRun
from diffattn.lab.report.page.tables import Table, head_cell, table, word_cell
from diffattn.lab.report.page.wording import count, listing

_NOT_RECORDED = "not recorded"


def provenance(study: Study) -> list[Element]:
    """Facts of a study, a table of its runs, and its resolved config as JSON."""
    config = json.dumps(study.info["config"], indent=2, ensure_ascii=False)
    return [
        _facts(study),
        Fold("Every run", [_runs_table(study)]),
        Fold("Resolved config", [Code(config)]),
    ]


def statement(study: Study) -> str:
    """What the results can and cannot show."""
    if study.results is None:
        return "The study has not finished, so it makes no statement."
    return str(study.results["statement"])


def protocol(study: Study) -> str:
    """Name and version of the protocol that made the results."""
    recorded = (study.results or {}).get("protocol") or {}
    if not recorded:
        return _NOT_RECORDED
    return f"{recorded.get('name')}, version {recorded.get('version')}"


def _facts(study: Study) -> Table:
    info, data = study.info, study.info.get("data") or {}
    facts: list[tuple[str, Any]] = [
        ("Study created", info.get("created")),
        ("Scale", info.get("scale")),
        ("Matched by", info.get("match")),
        ("Seeds", ", ".join(str(seed) for seed in info["seeds"])),
        ("Protocol", protocol(study)),
        ("Config hash", info.get("config_hash")),
    ]
    if info.get("kind") == "recall":
        facts.append(("Data", "made while training, from the seed and the step"))
    else:
        facts += [
            ("Data", data.get("source")),
            ("Data hash", data.get("corpus_hash")),
            ("Training tokens in the data", count(data.get("train_tokens"))),
            ("Validation data", _validation(data)),
            ("Vocabulary", count(data.get("vocab_size"))),
            ("Python of the data", data.get("python")),
        ]
    for name, values in (
        ("Commit", [_commit(run) for run in study.runs]),
        ("Versions", [_pairs(run.record.versions) for run in study.runs]),
        ("Hardware", [_pairs(run.record.hardware) for run in study.runs]),
    ):
        facts += [(name, text) for text in _grouped(study, values)]
    rows = [[head_cell(name), word_cell(str(value or _NOT_RECORDED))] for name, value in facts]
    return table("The study.", ["", ""], rows)


def _runs_table(study: Study) -> Table:
    rows = []
    for run in study.runs:
        record = run.record
        cells = [
            record.seed,
            record.created,
            record.device,
            _pairs(record.backends) or "none",
            (record.commit or _NOT_RECORDED)[:12],
            _dirty(run),
            "yes" if run.results is not None else "no",
            _record_file(study, run),
        ]
        rows.append([head_cell(run.name), *(word_cell(str(cell)) for cell in cells)])
    headers = ["Run", "Seed", "Created", "Device", "Backends", "Commit", "Changed source"]
    return table("The runs.", [*headers, "Finished", "Record"], rows)


def _record_file(study: Study, run: StudyRun) -> str:
    """Where ``run.json`` lies, and the name it holds where that is another."""
    path = f"runs/{run.name}/run.json"
    return path if run.record.name == run.name else f"{path}, recorded as {run.record.name}"


def _grouped(study: Study, values: list[str]) -> list[str]:
    """Each distinct value once; names its runs if there is more than one."""
    names: dict[str, list[str]] = {}
    for run, value in zip(study.runs, values, strict=True):
        names.setdefault(value, []).append(run.name)
    if len(names) == 1:
        return list(names)
    return [f"{value} ({', '.join(runs)})" for value, runs in names.items()]


def _commit(run: StudyRun) -> str:
    if run.record.commit is None:
        return "not recorded: the package did not run from a checkout"
    changed = {"yes": " with uncommitted changes", "no": ", source unchanged", "unknown": ""}
    later = f", continued at {listing(run.continued)}" if run.continued else ""
    return run.record.commit + changed[_dirty(run)] + later


def _dirty(run: StudyRun) -> str:
    return "unknown" if run.record.dirty is None else "yes" if run.record.dirty else "no"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _validation(data: dict[str, Any]) -> str:
    tokens, size = data.get("validation_tokens"), data.get("validation_bytes")
    return f"{count(tokens)} tokens, {count(size)} bytes"
