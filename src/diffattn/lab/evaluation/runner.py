"""Run protocols on models in a folder. An interrupted run can be continued."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.files.io import append_jsonl, log_facts, recover_jsonl, write_jsonl
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.compare import compare_folder
from diffattn.lab.evaluation.protocol import SHORT_CONTEXT, Item, Part, Protocol, shortfall
from diffattn.lab.evaluation.selection import DATA, claim_data, data_digest, limited
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ModelError
from diffattn.lab.records.evaluations import (
    EVALUATION_MARKER,
    ITEMS,
    Comparison,
    EvalResult,
    register,
)
from diffattn.lab.records.lock import BusyError, sole_writer
from diffattn.lab.records.run import RunRecord, claim_run, is_claimed
from diffattn.models.loading import bfloat16_advice

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
    ``result.json``. Items that failed for a temporary reason, such as lack of memory, are asked
    again by every later call. For ``limit`` see :func:`limited`.

    Raises:
        ConfigError: The protocol cannot be run on this model or data.
        CheckpointError: ``folder`` holds another evaluation, rows from other data, or damage.
        BusyError: Another process works there, and ``wait`` is false.
        DiffAttnError: No item could be asked; the message gives the first error.
    """
    folder, protocol = Path(folder), part.protocol
    with sole_writer(folder, wait=wait):
        config = _claim(model, part, folder, limit)
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
        result = _result(protocol, folder, config, rows)
        result.write(folder)
        fewer = shortfall(result.tables)
        if fewer and limit is None and not result.num_failed:
            on_message(fewer)
    return result


def _claim(model: LanguageModel, part: Part, folder: Path, limit: int | None) -> dict[str, Any]:
    """Write ``run.json``, or check that it records the same evaluation; return the settings."""
    config: dict[str, Any] = {
        "protocol": part.protocol.name,
        "version": part.protocol.facts.version,
        "variant": part.variant,
        # Through JSON, so that settings can be compared with those of a file.
        "parameters": json.loads(json.dumps(part.protocol.parameters(), default=str)),
        "model": model.facts(),
        **({} if limit is None else {"limit": limit}),
    }
    record = RunRecord(
        name=f"{model.label}/{part.variant}",
        config=config,
        seed=int(config["parameters"].get("seed", 0)),
        device=model.device.type,
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
    protocol: Protocol, folder: Path, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
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
        version=config["version"],
        source=protocol.facts.source,
        variant=config["variant"],
        model=config["model"],
        parameters=config["parameters"],
        choices=dict(protocol.choices),
        metrics=summary.metrics,
        tables=summary.tables,
        num_items=len(rows),
        num_failed=len(rows) - len(scored),
        items=log_facts(folder / ITEMS),
        selection={"limit": config["limit"]} if "limit" in config else {},
    )


def _is_temporary(row: Mapping[str, Any]) -> bool:
    return "error" in row and not str(row["error"]).startswith(_PERMANENT)


def _batches(model: LanguageModel, protocol: Protocol) -> tuple[list[list[Item]], str]:
    batches = protocol.batches(model)
    items = [item for batch in batches for item in batch]
    return batches, data_digest(items, protocol.material(model, items))


def _ask_all(
    model: LanguageModel,
    protocol: Protocol,
    folder: Path,
    limit: int | None,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> list[dict[str, Any]]:
    known, faults = recover_jsonl(folder / ITEMS)
    for fault in faults:
        on_message(f"An item is asked again: {fault}")
    if all("error" in row for row in known):
        (folder / ITEMS).unlink(missing_ok=True)
        known = []
    rows, num_lines = {row["id"]: row for row in known}, len(known)
    try:
        batches, data = _batches(model, protocol)
    except DiffAttnError:
        if not rows:  # nothing was asked, so the folder can be used with other settings
            for name in ("run.json", DATA, ITEMS):
                (folder / name).unlink(missing_ok=True)
        raise
    claim_data(folder, data, has_rows=bool(rows))
    again = [row for row in rows.values() if _is_temporary(row)]
    if again:
        on_message(f"Items that failed are asked again: {len(again)}, first: {again[0]['error']}")
        # They stay in the file until the end: the last line of an item counts.
        rows = {name: row for name, row in rows.items() if not _is_temporary(row)}
    if limit is not None:
        batches = limited(batches, limit)
    wanted = [item.id for batch in batches for item in batch]
    assert len(set(wanted)) == len(wanted), f"{protocol.name}: ids must be unique"
    on_progress(len(rows), len(wanted))
    for batch in batches:
        if all(item.id in rows for item in batch):
            continue
        # Ask the whole batch even if some answers are known: another batch would change the
        # rounding.
        for row in _ask(model, protocol, batch):
            if row["id"] not in rows:
                # An earlier result no longer belongs to these rows.
                (folder / "result.json").unlink(missing_ok=True)
                append_jsonl(folder / ITEMS, row)
                rows[row["id"]] = row
                num_lines += 1
        on_progress(len(rows), len(wanted))
    ordered = [rows[name] for name in wanted]
    if wanted != list(rows) or num_lines != len(rows):  # some were asked again
        write_jsonl(folder / ITEMS, ordered)
    return ordered


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
    """The row of an answer; an error row for NaN, infinity or a lone surrogate."""
    # A score that was not asked for, such as a log-probability, is None.
    scores = {name: value for name, value in answer["scores"].items() if value is not None}
    cluster = {"cluster": item.cluster} if item.cluster else {}
    row = {"id": item.id, **cluster, **answer, "scores": scores}
    try:
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # a UnicodeEncodeError is one
        return {"id": item.id, "error": f"ItemError: no file can hold the answer: {error}"}
    return row


def run_evaluation(
    chosen: Sequence[Part],
    models: Mapping[str, str],
    folder: Path,
    *,
    load: Mapping[str, Any] = {},
    limit: int | None = None,
    on_start: Callable[[str], None] = lambda name: None,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    on_message: Callable[[str], None] = lambda line: None,
) -> tuple[list[EvalResult], Comparison | None]:
    """Evaluate every model with every part; compare the models if there are several.

    Several processes may work in one folder: each part is run by one of them. A part that cannot
    run, or of which no item could be scored, gets a message and is left out. ``models`` maps labels
    to paths, the baseline first; ``load`` are options of :meth:`LanguageModel.load`.
    """
    is_claimed(folder, EVALUATION_MARKER, "an evaluation")  # before a model is loaded
    done: dict[tuple[str, str], EvalResult] = {}
    refused: list[DiffAttnError] = []
    left = {label: list(chosen) for label in models}
    # The second round waits for parts that other processes were running in the first.
    for wait, (label, parts) in itertools.product((False, True), left.items()):
        if not parts:
            continue
        model = _load(label, models[label], load, on_message)
        for part in parts.copy():
            name = f"{label}/{part.variant}"
            register(folder, label, part.variant)
            on_start(name)
            try:
                done[label, part.variant] = evaluate(
                    model,
                    part,
                    folder / name,
                    limit=limit,
                    wait=wait,
                    on_progress=partial(on_progress, name),
                    on_message=partial(lambda name, line: on_message(f"{name}: {line}"), name),
                )
            except BusyError:
                on_message(f"{name}: another process is at work on it, waiting at the end")
                continue
            except CheckpointError:  # the folder holds other files
                raise
            except DiffAttnError as error:
                if len(models) * len(chosen) > 1:
                    on_message(f"{name} cannot run: {error}")
                refused.append(_with_advice(error, model))
            parts.remove(part)
    if not done:
        raise refused[0]
    for (label, variant), result in done.items():
        if result.num_failed:
            failed = f"{result.num_failed} of {result.num_items} items failed"
            on_message(f"{label}/{variant}: {failed}")
    order = [(label, part.variant) for label in models for part in chosen]
    return [done[key] for key in order if key in done], compare_folder(folder)


def _load(
    label: str, path: str, load: Mapping[str, Any], on_message: Callable[[str], None]
) -> LanguageModel:
    model = LanguageModel.load(path, label=label, **load)
    if "example" in model.tokenizer.init_kwargs:
        raise ConfigError(
            f"{label}: must read text to be evaluated, got a model of a recall task. Its "
            "accuracy is in results.json of its run; 'diffattn inspect' shows its maps."
        )
    if advice := bfloat16_advice(model.device, model.network.dtype, "--dtype float32"):
        on_message(f"{label}: {advice}")
    return model


def _with_advice(error: DiffAttnError, model: LanguageModel) -> DiffAttnError:
    """The error, with the protocols that fit a model whose context is short."""
    if not isinstance(error, ConfigError) or model.max_length >= SHORT_CONTEXT:
        return error
    fit = ", ".join(name for name, facts in PROTOCOLS.items() if facts.any_context)
    return ConfigError(
        f"{error} Few prompts fit the {model.max_length} tokens of {model.label}. It can be asked, "
        f"with --quick: {fit}."
    )
