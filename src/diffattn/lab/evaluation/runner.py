"""Run one protocol on one model in a folder. An interrupted run can be continued."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, DiffAttnError
from diffattn.files.io import (
    append_jsonl,
    log_facts,
    read_json,
    recover_jsonl,
    write_json,
    write_jsonl,
)
from diffattn.lab.evaluation.protocol import Item, Part, Protocol, shortfall
from diffattn.lab.evaluation.read_data import DATA, claim_data, data_digest
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ModelError
from diffattn.lab.records.evaluations import ITEMS, EvalResult
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import RunRecord, claim_run, package_versions

OnProgress = Callable[[int, int], None]
OnMessage = Callable[[str], None]
_PERMANENT = ("ItemError: ", "ConfigError: ")
"""Beginnings of errors that an item would raise again if it were asked again."""
_FREE_SETTINGS = ("model.path",)
"""Settings that may change when a run continues: the weights' hash, not the path, must agree."""


def evaluate(
    model: LanguageModel,
    part: Part,
    folder: Path,
    *,
    limit: int | None = None,
    wait: bool = False,
    on_progress: OnProgress = lambda done, total: None,
    on_message: OnMessage = lambda line: None,
) -> EvalResult:
    """Ask a model every item of a protocol, except items that an earlier call has asked.

    ``folder`` gets ``run.json`` and ``data.json`` (a hash of the data of the items) before the
    first item, one line of ``items.jsonl`` per item (its scores, or its error), and at the end
    ``result.json`` and ``costs.json``. Items that failed for a temporary reason, such as lack of
    memory, are asked again by every later call. For ``limit`` see :func:`limited`. ``on_progress``
    gets the items done and the items in all; ``on_message`` one line for each item that is asked
    again, and for data that were not checked.

    Raises:
        ConfigError: The protocol cannot be run on this model or data; see its ``batches``.
        CheckpointError: ``folder`` holds another evaluation, rows from other data, or damage.
        BusyError: Another process works there, and ``wait`` is false.
        DiffAttnError: No item could be asked; the message gives the first error.
    """
    folder, protocol = Path(folder), part.protocol
    with sole_writer(folder, wait=wait):
        selection = {} if limit is None else {"limit": limit}
        config = _claim(model, part, folder, selection)
        finished = _finished(folder, on_message)
        if finished is not None:
            try:
                _, data = _batches(model, protocol)
            except DiffAttnError as error:
                on_message(f"Whether its data are the same was not checked: {error}")
            else:
                claim_data(folder, data, has_rows=True)
            on_progress(finished.num_items, finished.num_items)
            return finished
        rows = _ask_all(model, protocol, folder, limit, on_progress, on_message)
        result = _result(protocol, folder, selection, config, rows)
        result.write(folder)
        fewer = shortfall(result.tables)
        if fewer and not selection and not result.num_failed:
            on_message(fewer)
    return result


def _claim(
    model: LanguageModel, part: Part, folder: Path, selection: Mapping[str, Any]
) -> dict[str, Any]:
    """Write ``run.json``, or check that it records the same evaluation; return the settings."""
    config: dict[str, Any] = {
        "protocol": part.protocol.name,
        "version": part.protocol.version,
        "variant": part.variant,
        # Through JSON, so that settings can be compared with those of a file.
        "parameters": json.loads(json.dumps(part.protocol.parameters(), default=str)),
        "model": model.facts(),
        **selection,
    }
    record = RunRecord(
        name=f"{model.label}/{part.variant}",
        config=config,
        seed=int(config["parameters"].get("seed", 0)),
        device=model.device.type,
        versions=package_versions(),
    )
    claim_run(folder, record, "an evaluation", free=_FREE_SETTINGS)
    return config


def _finished(folder: Path, on_message: OnMessage) -> EvalResult | None:
    """The result of an earlier call; ``None`` if missing, damaged, or with temporary errors."""
    if not (folder / "result.json").exists():
        return None
    try:
        result = EvalResult.read(folder)
        rows = result.read_items(folder)
    except CheckpointError as error:
        on_message(f"The result is made again from the whole items: {error}")
        return None
    return None if any(map(_is_temporary, rows)) else result


def _result(
    protocol: Protocol,
    folder: Path,
    selection: dict[str, Any],
    config: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> EvalResult:
    scored = [row for row in rows if "error" not in row]
    if not scored:
        raise DiffAttnError(
            f"{config['variant']}: one item or more must be scored, got {len(rows)} failures on "
            f"{config['model']['label']}, first: {rows[0]['error'] if rows else 'no item'}"
        )
    summary = protocol.summarise(scored)
    return EvalResult(
        protocol=protocol.name,
        version=protocol.version,
        source=protocol.source,
        variant=config["variant"],
        model=config["model"],
        parameters=config["parameters"],
        choices=dict(protocol.choices),
        metrics=summary.metrics,
        tables=summary.tables,
        num_items=len(rows),
        num_failed=len(rows) - len(scored),
        items=log_facts(folder / ITEMS),
        selection=selection,
    )


def _is_temporary(row: Mapping[str, Any]) -> bool:
    """Whether an item failed for a reason that may be temporary."""
    return "error" in row and not str(row["error"]).startswith(_PERMANENT)


def _batches(model: LanguageModel, protocol: Protocol) -> tuple[list[list[Item]], str]:
    """All items in batches, and the digest of their data."""
    batches = protocol.batches(model)
    items = [item for batch in batches for item in batch]
    return batches, data_digest(items, protocol.material(model, items))


class _Log:
    """The rows of ``items.jsonl``: id to row. If all items of a call failed, it begins anew."""

    def __init__(self, folder: Path, on_message: OnMessage) -> None:
        known, faults = recover_jsonl(folder / ITEMS)
        for fault in faults:
            on_message(f"An item is asked again: {fault}")
        if all("error" in row for row in known):
            (folder / ITEMS).unlink(missing_ok=True)
            known = []
        self.folder, self.num_lines = folder, len(known)
        self.rows = {row["id"]: row for row in known}

    def add(self, row: dict[str, Any]) -> None:
        # An earlier result no longer belongs to these rows.
        (self.folder / "result.json").unlink(missing_ok=True)
        append_jsonl(self.folder / ITEMS, row)
        self.rows[row["id"]] = row
        self.num_lines += 1


def _ask_all(
    model: LanguageModel,
    protocol: Protocol,
    folder: Path,
    limit: int | None,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> list[dict[str, Any]]:
    """Rows of all selected items, in their order."""
    log = _Log(folder, on_message)
    try:
        batches, data = _batches(model, protocol)
    except DiffAttnError:
        if not log.rows:  # nothing was asked, so the folder can be used with other settings
            for name in ("run.json", DATA, ITEMS):
                (folder / name).unlink(missing_ok=True)
        raise
    claim_data(folder, data, has_rows=bool(log.rows))
    again = [row for row in log.rows.values() if _is_temporary(row)]
    if again:
        on_message(f"Items that failed are asked again: {len(again)}, first: {again[0]['error']}")
        # They stay in the file until the end: the last line of an item counts.
        log.rows = {name: row for name, row in log.rows.items() if not _is_temporary(row)}
    if limit is not None:
        batches = limited(batches, limit)
    wanted = [item.id for batch in batches for item in batch]
    assert len(set(wanted)) == len(wanted), f"{protocol.name}: ids must be unique"
    began, done_before = time.monotonic(), len(log.rows)
    on_progress(len(log.rows), len(wanted))
    for batch in batches:
        if any(item.id not in log.rows for item in batch):
            # Ask the whole batch even if some answers are known: another batch would change
            # the rounding.
            for row in _ask(model, protocol, batch):
                if row["id"] not in log.rows:
                    log.add(row)
            on_progress(len(log.rows), len(wanted))
    _add_costs(folder, time.monotonic() - began, len(log.rows) - done_before)
    ordered = [log.rows[name] for name in wanted]
    if wanted != list(log.rows) or log.num_lines != len(log.rows):  # some were asked again
        write_jsonl(folder / ITEMS, ordered)
    return ordered


def limited(batches: Sequence[Sequence[Item]], limit: int) -> list[list[Item]]:
    """At most ``limit`` items, spread over all batches, the same for every model.

    Clusters are kept whole, as their items are compared with one another. The list of clusters is
    cut into equal blocks, and the cluster with the smallest hash of each block is taken if it fits.
    Only the first cluster may be cut, if it has more items than ``limit``.
    """

    def digest(name: str) -> bytes:
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()

    clusters: dict[str, list[str]] = {}
    for item in itertools.chain.from_iterable(batches):
        clusters.setdefault(item.cluster or item.id, []).append(item.id)
    names, num_items = list(clusters), sum(map(len, batches))
    wanted = max(1, min(len(names), limit * len(names) // max(1, num_items)))
    edges = [len(names) * i // wanted for i in range(wanted + 1)]
    chosen: list[str] = []
    for first, end in itertools.pairwise(edges):
        cluster = clusters[min(names[first:end], key=digest)]
        if not chosen or len(chosen) + len(cluster) <= limit:
            chosen += cluster
    kept = set(chosen[:limit])
    parts = [[item for item in batch if item.id in kept] for batch in batches]
    return [part for part in parts if part]


def _ask(model: LanguageModel, protocol: Protocol, items: Sequence[Item]) -> list[dict[str, Any]]:
    """One row per item. If asking them together fails, each item is asked alone."""
    try:
        answers = protocol.ask(model, items)
    except ModelError:  # every other item would fail too
        raise
    # Every error of a bad item is recorded under its name, counted and shown.
    except Exception as error:
        if len(items) > 1:
            return [row for item in items for row in _ask(model, protocol, [item])]
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [{"id": items[0].id, "error": reason}]
    return [_row(item, answer) for item, answer in zip(items, answers, strict=True)]


def _row(item: Item, answer: dict[str, Any]) -> dict[str, Any]:
    """The row of an answer; an error row for NaN, infinity or a lone surrogate, which no file
    can hold."""
    # A score that was not asked for, such as a log-probability, is None.
    scores = {name: value for name, value in answer["scores"].items() if value is not None}
    cluster = {"cluster": item.cluster} if item.cluster else {}
    row = {"id": item.id, **cluster, **answer, "scores": scores}
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # a UnicodeEncodeError is one
        return {"id": item.id, "error": f"ItemError: no file can hold the answer: {error}"}
    return row


def _add_costs(folder: Path, seconds: float, items: int) -> None:
    """Add to ``costs.json``, which is a separate file because times vary from run to run."""
    path = folder / "costs.json"
    costs = read_json(path) if path.exists() else {"schema": 1, "wall_seconds": 0.0, "items": 0}
    if items or not path.exists():
        sums = {"wall_seconds": costs["wall_seconds"] + seconds, "items": costs["items"] + items}
        write_json(path, costs | sums)
