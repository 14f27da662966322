"""Run protocols on models: item by item, resumable, one folder per model and protocol."""

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
from diffattn.lab.evaluation.pairing import text_hash
from diffattn.lab.evaluation.protocol import Item, Part, Protocol, Summary, shortfall
from diffattn.lab.evaluation.read_data import DATA, claim_data, data_digest, recorded_data
from diffattn.lab.evaluation.selection import ALL, Selection
from diffattn.lab.evaluation.shards import FREE_SETTINGS, LATER_SETTINGS, rows_of_shards
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ModelError
from diffattn.lab.records.claim import claim_run
from diffattn.lab.records.evaluations import ITEMS, EvalResult
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import RunRecord, package_versions

OnProgress = Callable[[int, int], None]
"""``(items done, items in all)``, after every batch."""
OnMessage = Callable[[str], None]
_LASTING = ("ItemError: ", "ConfigError: ")
"""How errors begin that lie in the item: asked again, it would fail again."""


def evaluate(
    model: LanguageModel,
    part: Part,
    folder: Path,
    *,
    selection: Selection = ALL,
    wait: bool = False,
    on_progress: OnProgress = lambda done, total: None,
    on_message: OnMessage = lambda line: None,
) -> EvalResult:
    """Put every item of a protocol to a model, or those that an earlier call has not reached.

    ``folder`` gets ``run.json`` and ``data.json`` (a hash of all that the items are built from)
    before the first item, a line of ``items.jsonl`` per item (its scores, or why it failed), and
    at the end ``result.json`` and ``costs.json``. What finished shares beside it
    (``PART.shard-I-of-N``) have asked with the same settings of the same data is taken from them.
    Items whose failure may pass, such as for lack of memory or of a server's reply, are asked again
    by every later call.

    Args:
        model: The model.
        part: The protocol.
        folder: Where it is recorded; continued if it holds the same evaluation.
        selection: Which items. Default: all.
        wait: Whether to wait for another process that works in ``folder``.
        on_progress: Given the items done and in all.
        on_message: Given one line for a damaged result or row of ``items.jsonl``: what is missing
            is asked again; one where items that failed are; one where there are fewer texts than
            are wanted; and one where an older record does not say all that is compared.

    Raises:
        ConfigError: The protocol cannot be run on this model or data; see its ``batches``.
        CheckpointError: ``folder`` holds another evaluation, or rows of other data, finished or
            not, or what it records of its data is damaged.
        BusyError: Another process works there, and it is not waited for.
        DiffAttnError: No item at all could be asked; the first reason is named.
    """
    folder = Path(folder)
    protocol = part.protocol
    config = {
        "protocol": protocol.name, "version": protocol.version, "variant": part.variant,
        "parameters": _plain(protocol.parameters()), "model": model.facts(),
    } | selection.recorded()  # fmt: skip
    record = RunRecord(
        name=f"{model.label}/{part.variant}",
        config=config,
        seed=int(config["parameters"].get("seed", 0)),
        device=model.device.type,
        versions=package_versions(),
    )
    with sole_writer(folder, wait=wait):
        missing = claim_run(
            folder, record, "an evaluation", free=FREE_SETTINGS, later=LATER_SETTINGS
        )
        if missing:
            on_message(
                f"Its record is older and lacks {', '.join(missing)}: whether they are the same "
                "cannot be told."
            )
        finished = _finished(folder, on_message)
        if finished is not None:
            if recorded_data(folder) is not None:  # else an older record, which cannot be checked
                try:
                    _, data = _batches(model, protocol)
                except DiffAttnError as error:
                    on_message(f"Whether its data are the same was not checked: {error}")
                else:
                    claim_data(folder, data, has_rows=True)
            on_progress(finished.num_items, finished.num_items)
            return finished
        rows = _ask_all(model, protocol, folder, selection, config, on_progress, on_message)
        scored = [row for row in rows if "error" not in row]
        if not scored and not selection.shard:
            raise DiffAttnError(
                f"{part.variant}: one item or more must be scored, got {len(rows)} failures on "
                f"{model.label}, first: {rows[0]['error'] if rows else 'no item'}"
            )
        # Of a share of the items, no number is one of the protocol's.
        summary = Summary(metrics=[]) if selection.shard else protocol.summarise(scored)
        result = EvalResult(
            protocol=protocol.name,
            version=protocol.version,
            source=protocol.source,
            variant=part.variant,
            model=config["model"],
            parameters=config["parameters"],
            choices=dict(protocol.choices),
            metrics=summary.metrics,
            tables=summary.tables,
            num_items=len(rows),
            num_failed=len(rows) - len(scored),
            items=log_facts(folder / ITEMS),
            selection=selection.recorded(),
        )
        result.write(folder)
        fewer = shortfall(summary.tables)
        if fewer and not selection.recorded() and not result.num_failed:
            on_message(fewer)
    return result


def _finished(folder: Path, on_message: OnMessage) -> EvalResult | None:
    """The result of an earlier call; ``None`` if it, or an item that it counts, is damaged, or
    failed in a way that may pass."""
    if not (folder / "result.json").exists():
        return None
    try:
        result = EvalResult.read(folder)
        rows = result.read_items(folder)
    except CheckpointError as error:
        on_message(f"The result is made again from the whole items: {error}")
        return None
    return None if any(map(_may_pass, rows)) else result


def _may_pass(row: Mapping[str, Any]) -> bool:
    """Whether an item failed for another reason than what it is."""
    return "error" in row and not str(row["error"]).startswith(_LASTING)


def _batches(model: LanguageModel, protocol: Protocol) -> tuple[list[list[Item]], str]:
    """All items, and the digest of what they are built from."""
    every = protocol.batches(model)
    everything = [item for batch in every for item in batch]
    return every, data_digest(everything, protocol.material(model, everything))


def _ask_all(
    model: LanguageModel,
    protocol: Protocol,
    folder: Path,
    selection: Selection,
    config: Mapping[str, Any],
    on_progress: OnProgress,
    on_message: OnMessage,
) -> list[dict[str, Any]]:
    """Rows of all items, in their order; what finished shares have asked is not asked again."""
    path = folder / ITEMS
    known, faults = recover_jsonl(path)
    for fault in faults:
        on_message(f"An item is asked again: {fault}")
    rows = {row["id"]: row for row in known}
    if all("error" in row for row in rows.values()):  # what was wrong may be put right by now
        path.unlink(missing_ok=True)
        known, rows = [], {}
    num_lines = len(known)

    def add(row: dict[str, Any]) -> None:
        nonlocal num_lines
        # From here on an earlier result is no longer of these rows.
        (folder / "result.json").unlink(missing_ok=True)
        append_jsonl(path, row)
        rows[row["id"]] = row
        num_lines += 1

    try:
        every, data = _batches(model, protocol)
    except DiffAttnError:
        if not rows:  # nothing was asked: the folder stays free for settings that can run
            for name in ("run.json", DATA, ITEMS):
                (folder / name).unlink(missing_ok=True)
        raise
    claim_data(folder, data, has_rows=bool(rows))
    again = [row for row in rows.values() if _may_pass(row)]
    if again:
        on_message(f"Items that failed are asked again: {len(again)}, first: {again[0]['error']}")
        # In the file they stay until all is done: what comes later in it counts.
        rows = {name: row for name, row in rows.items() if not _may_pass(row)}
    taken = [] if selection.shard else rows_of_shards(folder, config, data, on_message)
    batches = selection.of(every)
    wanted = [item.id for batch in batches for item in batch]
    assert len(set(wanted)) == len(wanted), f"{protocol.name}: ids must be unique"
    for row in taken:
        if row["id"] in wanted and row["id"] not in rows and not _may_pass(row):
            add(row)
    if not path.exists():  # a share may have no item
        write_jsonl(path, [])
    costs = _earlier_costs(folder)
    began, done_before = time.monotonic(), len(rows)
    on_progress(len(rows), len(wanted))
    for batch in batches:
        if all(item.id in rows for item in batch):
            continue
        # The whole batch, although some are known: in other company an answer is rounded otherwise.
        answers = _ask(model, protocol, batch)
        for row in answers:
            if row["id"] in rows:
                _require_same_text(folder, row, rows[row["id"]])
        for row in answers:
            if row["id"] not in rows:
                add(row)
        on_progress(len(rows), len(wanted))
    if len(rows) > done_before or not (folder / "costs.json").exists():
        costs["wall_seconds"] += time.monotonic() - began
        costs["items"] += len(rows) - done_before
        write_json(folder / "costs.json", costs)
    ordered = [rows[name] for name in wanted]
    if wanted != list(rows) or num_lines != len(rows):  # some were asked again
        write_jsonl(path, ordered)
    return ordered


def _require_same_text(folder: Path, row: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse to go on where an item that is asked again holds another text than it did."""
    now, before = text_hash(row), text_hash(known)
    if None not in (now, before) and now != before:
        raise CheckpointError(
            f"{folder}: item {row['id']!r} must hold the text that it was asked with ({before}), "
            f"got another ({now}). Choose another --out."
        )


def _ask(model: LanguageModel, protocol: Protocol, items: Sequence[Item]) -> list[dict[str, Any]]:
    """One row per item. If asking together fails, each is asked alone, so that one bad item
    takes no other down."""
    try:
        answers = protocol.ask(model, items)
    except ModelError:  # no other item would fare better
        raise
    # Whatever a bad item brings about is recorded under its name, counted and shown.
    except Exception as error:
        if len(items) > 1:
            return [row for item in items for row in _ask(model, protocol, [item])]
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [{"id": items[0].id, "error": reason}]
    assert len(answers) == len(items), f"{protocol.name}: one row per item"
    for answer in answers:  # what a served model cannot tell is no score
        scores = answer["scores"]
        answer["scores"] = {name: value for name, value in scores.items() if value is not None}
    return [
        _writable({"id": item.id, **({"cluster": item.cluster} if item.cluster else {}), **answer})
        for item, answer in zip(items, answers, strict=True)
    ]


def _writable(row: dict[str, Any]) -> dict[str, Any]:
    """The row, or its failure if a file cannot hold it: a loss that is not a number, or text with
    half a character."""
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # a UnicodeEncodeError is one
        return {"id": row["id"], "error": f"ItemError: no file can hold the answer: {error}"}
    return row


def _earlier_costs(folder: Path) -> dict[str, Any]:
    """Time goes into a file of its own: it varies from run to run."""
    path = folder / "costs.json"
    return read_json(path) if path.exists() else {"schema": 1, "wall_seconds": 0.0, "items": 0}


def _plain(value: Any) -> Any:
    """As JSON will give it back, so that records can be compared with settings."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
