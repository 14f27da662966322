"""Ask a judge about the recorded outputs of an evaluation folder. It can be continued."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.io import append_jsonl, log_facts, recover_jsonl, write_jsonl
from diffattn.lab.evaluation.judge.interface import (
    Judge,
    JudgeFailure,
    JudgeUnreachable,
    Messages,
    Reply,
    judge_messages,
    read_verdict,
)
from diffattn.lab.evaluation.metrics import Row, metric
from diffattn.lab.records.evaluations import (
    ITEMS,
    JUDGED_PROTOCOL,
    EvalResult,
    evaluation_marker,
    register,
    text_read,
)
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import RunRecord, claim_run
from diffattn.lab.stats.intervals import wilson_interval

PROTOCOL = "hallucination_judge"
VERSION = 3  # raised with each change of how replies are read
SOURCE = "arXiv:2410.05258v2, Table 4; arXiv:2407.07071"
CHOICES = {
    "document": "the whole document, as the reference; or the part the model has read",
    "prompt": "the reference's parts in its order, in our words; problematic spans as JSON",
    "reading": "the last conclusion that is not quoted in the problematic spans, in bold or not, "
    "in any case, up to '**' or the line's end: True or False; else not correct and counted as "
    "unparsable",
    "empty output": "not correct, without asking",
    "temperature": "not sent unless set, as in the reference: verdicts vary from call to call",
}


BEGINNING = '{"request": "'  # the characters with which every file of requests begins


@dataclass(frozen=True, slots=True)
class Request:
    """The request to judge one output."""

    name: str  # ``<label>/<variant>/<item>``
    item: str
    messages: Messages
    digest: str  # hash of the messages; a reply counts only for a request with the same hash

    def plain(self) -> dict[str, Any]:
        """The request as a JSON object, whose text begins with :data:`BEGINNING`."""
        return {"request": self.digest, "id": self.name, "messages": self.messages}


@dataclass(frozen=True, slots=True)
class Outputs:
    """The recorded outputs of one model on one dataset."""

    label: str
    variant: str
    folder: Path
    result: EvalResult

    def requests(self, document: str) -> list[Request]:
        """One request per non-empty output. For ``document`` see ``JudgeSettings``."""
        requests = []
        for row in self.rows():
            if row["output"]:
                text = row["document"]
                if document == "read":
                    text = text_read(text, row["read"])
                messages = judge_messages(row, text)
                digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]
                name = f"{self.label}/{self.variant}/{row['id']}"
                requests.append(Request(name, row["id"], messages, digest))
        return requests

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in self.result.read_items(self.folder) if "error" not in row]


def recorded_outputs(folder: Path) -> list[Outputs]:
    """The finished parts of ``JUDGED_PROTOCOL`` in an evaluation folder; raises without any."""
    marker, recorded = evaluation_marker(folder), []
    for label in marker["models"]:
        for variant in marker["variants"]:
            part = folder / label / variant
            if (part / "result.json").exists():
                result = EvalResult.read(part)
                if result.protocol == JUDGED_PROTOCOL:
                    recorded.append(Outputs(label, variant, part, result))
    if not recorded:
        raise ConfigError(
            f"{folder}: must hold a finished evaluation by {JUDGED_PROTOCOL!r}, got none."
        )
    return recorded


@dataclass
class _Asker:
    """Asks a judge until ``give_up_after`` requests in a row get no reply."""

    judge: Judge
    unanswered: int = 0

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply | JudgeFailure]]:
        """Yield each request with its reply or failure, in the order in which they arrive."""
        most = self.judge.settings.give_up_after
        if self.unanswered >= most:
            return
        stop, left = Event(), iter(requests)
        running: dict[Future[Reply], Request] = {}
        with ThreadPoolExecutor(self.judge.workers) as pool:

            def start(count: int) -> None:
                for request in islice(left, count):
                    job = pool.submit(self.judge.reply, request.name, request.messages, stop)
                    running[job] = request

            try:
                start(self.judge.workers)
                while running:
                    for job in wait(running, return_when=FIRST_COMPLETED).done:
                        request = running.pop(job)
                        try:
                            answer: Reply | JudgeFailure = job.result()
                        except JudgeFailure as failure:
                            answer = failure
                        is_lost = isinstance(answer, JudgeUnreachable)
                        self.unanswered = self.unanswered + 1 if is_lost else 0
                        yield request, answer
                        if self.unanswered >= most:
                            stop.set()
                        if not stop.is_set():
                            start(1)
            finally:
                stop.set()  # also after an interruption, so that no thread waits for a server


def judge_folder(
    folder: Path,
    judge: Judge,
    *,
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[list[EvalResult], list[str]]:
    """Judge all recorded outputs that have no reply yet; also a sentence per part without a
    verdict.

    For each model and dataset, ``<label>/<variant>.judged-<name>/`` gets ``run.json``,
    ``requests.jsonl``, ``replies.jsonl`` (one line per reply or failure, written at once), and
    ``items.jsonl`` and ``result.json``, which every call rewrites. ``on_progress`` is called with
    the name of a part, its requests asked, and its requests in all.
    """
    results, missing = [], []
    asker = _Asker(judge)
    for outputs in recorded_outputs(folder):
        variant = f"{outputs.variant}.judged-{judge.settings.folder_name}"
        report = partial(on_progress, f"{outputs.label}/{variant}")
        result = _judge_outputs(outputs, variant, asker, report)
        if isinstance(result, str):
            missing.append(result)
        else:
            results.append(result)
            register(folder, outputs.label, variant)
    if not results:
        raise DiffAttnError(missing[0])
    return results, missing


def _judge_outputs(
    outputs: Outputs, variant: str, asker: _Asker, on_progress: Callable[[int, int], None]
) -> EvalResult | str:
    """Judge one part; a sentence if there is no verdict to report."""
    folder = outputs.folder.parent / variant
    with sole_writer(folder):
        config = {"protocol": PROTOCOL, "version": VERSION, "judge": asker.judge.facts()}
        record = RunRecord(name=f"{outputs.label}/{variant}", config=config, seed=0)
        hint = "Choose another name (--set name=...)."
        claim_run(folder, record, "verdicts of the same judge", hint=hint)
        requests = outputs.requests(asker.judge.settings.document)
        write_jsonl(folder / "requests.jsonl", [request.plain() for request in requests])
        rows, _ = recover_jsonl(folder / "replies.jsonl")  # a damaged reply is asked for again
        replies = {(row["id"], row["request"]): row["reply"] for row in rows if "reply" in row}
        left = [request for request in requests if (request.name, request.digest) not in replies]
        known = len(requests) - len(left)
        on_progress(known, len(requests))
        reasons: dict[str, str] = {}
        for done, (request, reply) in enumerate(asker.ask(left), start=known + 1):
            line: dict[str, Any] = {"id": request.name, "request": request.digest}
            if isinstance(reply, Reply):
                replies[request.name, request.digest] = reply.text
                line |= {"reply": reply.text, **reply.details}
            else:
                line["error"] = reasons[request.name] = str(reply)
            append_jsonl(folder / "replies.jsonl", line)
            on_progress(done, len(requests))
        by_item = {request.item: request for request in requests}
        rows = [_row(row, by_item.get(row["id"]), replies, reasons) for row in outputs.rows()]
        write_jsonl(folder / ITEMS, rows)
        result = _result(outputs, variant, asker.judge, rows, log_facts(folder / ITEMS))
        if isinstance(result, EvalResult):
            result.write(folder)
    return result


def _row(
    row: Row,
    request: Request | None,
    replies: Mapping[tuple[str, str], str],
    reasons: Mapping[str, str],
) -> dict[str, Any]:
    known = {"id": row["id"]}
    if request is None:
        return known | {"output": "", "verdict": None, "empty": True, "scores": {"accuracy": 0.0}}
    reply = replies.get((request.name, request.digest))
    if reply is None:
        reason = reasons.get(request.name, "not asked: the judge had failed too often before")
        return known | {"error": reason}
    correct, spans = read_verdict(reply)
    return known | {
        "output": row["output"],
        "verdict": correct,
        "problematic_spans": spans,
        "empty": False,
        "scores": {"accuracy": float(correct is True)},
    }


def _result(
    outputs: Outputs, variant: str, judge: Judge, rows: Sequence[Row], items: dict[str, Any]
) -> EvalResult | str:
    scored = [row for row in rows if "error" not in row]
    failed = [row for row in rows if "error" in row]
    if all(row["empty"] for row in scored) and (failed or not rows):
        first = failed[0]["error"] if failed else "no output"
        return (
            f"{outputs.label}/{variant}: one verdict or more is needed, got {len(failed)} "
            f"failures, first: {first}"
        )
    unparsable = [row["id"] for row in scored if row["verdict"] is None and not row["empty"]]
    counts = {
        "accuracy": sum(row["verdict"] is True for row in scored),
        "unparsable": len(unparsable),
        "empty": sum(row["empty"] for row in scored),
    }
    metrics = []
    for name, count in counts.items():
        is_shown = name == "accuracy" or (name == "unparsable" and count > 0)
        better, interval = name == "accuracy", wilson_interval(count, len(scored))
        metrics.append(metric(name, interval, headline=is_shown, higher_is_better=better))
    return EvalResult(
        protocol=PROTOCOL,
        version=VERSION,
        source=SOURCE,
        variant=variant,
        model=outputs.result.model,
        parameters={"judge": judge.facts(), "hallucination": outputs.result.parameters},
        choices=CHOICES,
        metrics=metrics,
        tables={"unparsable": unparsable},
        num_items=len(rows),
        num_failed=len(failed),
        items=items,
        selection=outputs.result.selection,
    )
