"""Records of made-up content, as the package writes them."""

import json
from dataclasses import asdict

from diffattn.files.io import log_facts, sealed
from diffattn.lab.records.run import RunRecord


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    """Bytes of every file below it, by path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def snapshot(folder):
    """Also when each was changed."""
    bytes_of = contents(folder)
    return {path: (bytes_of[path], (folder / path).stat().st_mtime_ns) for path in bytes_of}


def the_row(rows, **fields):
    (row,) = [row for row in rows if fields.items() <= row.items()]
    return row


def write_record(path, value):
    """Without the flush to disk of ``records.io``, which costs more than the tests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sealed(value)), encoding="utf-8")


def write_rows(path, rows):
    lines = [json.dumps(sealed({"row": number, **row})) for number, row in enumerate(rows)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def read_record(path):
    value = json.loads(path.read_text(encoding="utf-8"))
    del value["checksum"]
    return value


def change_record(path, **fields):
    """Set fields of a record; ``None`` removes one."""
    value = read_record(path) | fields
    write_record(path, {key: item for key, item in value.items() if item is not None})


def replace_in_record(path, old, new):
    """Replace text in a record, as someone could who also knows its checksum."""
    write_record(path, json.loads(json.dumps(read_record(path)).replace(old, new)))


def write_finished(run, results, rows):
    """``metrics.jsonl`` of a finished run, and ``results.json`` that counts it."""
    write_rows(run / "metrics.jsonl", rows)
    write_record(run / "results.json", results | {"metrics": log_facts(run / "metrics.jsonl")})


def write_run(run, config, seed, result, *, model, cost, rows=None, dirty=False, backends=None):
    """A finished run, of one logged step by default, on hardware whose name is markup.

    Returns the content of ``results.json`` and of ``costs.json``.
    """
    record = RunRecord(
        name=run.name, config=config, seed=seed, model=model, created="2001-02-03T04:05:07+00:00",
        commit="c0ffee" * 7, dirty=dirty, versions={"python": "3.11.7"}, backends=backends or {},
        hardware={"processor": "Made-up <b>chip</b>"},
    )  # fmt: skip
    start = {"schema": 1, "run": run.name}
    result, cost = start | result, start | cost
    write_record(run / "run.json", asdict(record))
    write_finished(run, result, rows or [{"step": 1, "train_loss": 6.0}])
    write_record(run / "costs.json", cost)
    return result, cost


def write_items(part, rows):
    """Other ``items.jsonl`` of a finished evaluation, whose result counts them."""
    write_rows(part / "items.jsonl", rows)
    change_record(part / "result.json", items=log_facts(part / "items.jsonl"))
