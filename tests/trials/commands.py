"""Commands that are small enough to be stopped at every one of their writes."""

import contextlib
import io
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from small_corpus import WORDS, random_text
from trials.disk import Recorder, State, digest, held, restore
from trials.tracing import recording

TIMES = {"created", "wall_seconds", "cpu_seconds", "step_seconds", "tokens_per_second"}
TIMES |= {"peak_bytes", "mfu", "checksum", "commit", "dirty"}
"""Keys of records whose values differ from run to run, or with the state of the checkout."""
SMALL = (
    "data.vocab_size=270",
    "data.validation_fraction=0.2",
    "model.hidden_size=8",
    "model.head_dim=4",
    "model.num_hidden_layers=1",
    "train.seq_len=16",
    "train.batch_tokens=32",
    "train.evaluation_tokens=32",
    "train.warmup_steps=1",
    "train.log_every=1",
    "train.evaluate_every=2",
)


class Called(NamedTuple):
    code: int
    out: str
    err: str


def run_line(*arguments: object) -> Called:
    """Run one command line in this process, with its own output streams."""
    from diffattn.lab.cli.app import main

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv, code = ["diffattn", *map(str, arguments)], 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return Called(code, out.getvalue(), err.getvalue())


def call(arguments: Sequence[object]) -> str | None:
    """Run a command line in this process; its last line if it fails."""
    try:
        called = run_line(*arguments)
    except Exception as error:
        return f"traceback, {type(error).__name__}: {error}"
    lines = called.err.strip().splitlines() or ["no message"]
    return None if called.code == 0 else f"exit {called.code}: {lines[-1]}"


@dataclass
class Command:
    """A command line, and what lies in its folder before."""

    name: str
    arguments: list[object]
    out: Path
    before: State | None = None
    """``None`` if the folder does not exist."""
    exact: bool = False
    """Whether pages must be equal to the byte."""
    expected: dict[str, object] = field(default_factory=dict)
    outcomes: dict[str, str | None] = field(default_factory=dict)
    """Fault by digest of a state: the same state ends the same way."""

    def start(self) -> None:
        """Put the folder into the state before."""
        shutil.rmtree(self.out, ignore_errors=True)
        if self.before is not None:
            restore(self.before, self.out)

    def run(self) -> str | None:
        return call(self.arguments)

    def recorded(self, state: State | None = None) -> Recorder:
        """Run it from a state, by default that before, and note what the disk held."""
        self.start() if state is None else restore(state, self.out)
        with recording(Recorder(self.out)) as recorder:
            fault = self.run()
        assert fault is None or state is not None, (self.name, fault)
        assert not recorder.unseen, (self.name, recorder.unseen)
        if state is None:
            self.expected = self.results()
        return recorder

    def continued(self, state: State) -> str | None:
        """The fault of running it again from a state: a failure, another result, leftovers."""
        key = digest(state)
        if key not in self.outcomes:
            restore(state, self.out)
            self.outcomes[key] = self.run() or self.difference()
        return self.outcomes[key]

    def difference(self, besides: Collection[str] = ()) -> str | None:
        """What is not as after an undisturbed run, besides some files."""
        results = self.results()
        for path in sorted((results.keys() | self.expected.keys()) - set(besides)):
            if path not in self.expected:
                return f"left over: {path}"
            if path not in results:
                return f"missing: {path}"
            if results[path] != self.expected[path]:
                return f"another result: {path}"
        return None

    def results(self) -> dict[str, object]:
        """What the folder holds, without times."""
        return {path: self._result(path, data) for path, data in held(self.out).items()}

    def _result(self, path: str, data: bytes | None) -> object:
        if data is None or path.endswith(("costs.json", "launches.jsonl")):
            return None
        with contextlib.suppress(ValueError):  # damaged, and not read: its bytes are compared
            if path.endswith(".json"):
                return _timeless(json.loads(data))
            if path.endswith(".jsonl"):
                return [_timeless(json.loads(line)) for line in data.splitlines()]
        if path.endswith(".html") and not self.exact:  # it shows times
            return data.rstrip().endswith(b"</html>")
        return data


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def corpus(folder: Path, files: int = 1) -> Path:
    rng = random.Random(0)
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"{number}.txt").write_text(random_text(rng, 60), encoding="utf-8")
    return folder


def settings(text: Path, steps: int) -> list[str]:
    """Options of a tiny run."""
    changes = [f"data.source={text}", f"train.num_steps={steps}", *SMALL]
    return [part for change in changes for part in ("--set", change)]


def model_folder(folder: Path, kind: str) -> Path:
    from model_folders import tiny_folder

    rng = random.Random(0)
    text = " ".join(rng.choice([*WORDS, str(rng.randrange(10**6))]) for _ in range(500))
    return tiny_folder(folder, kind, text, hidden_size=8, head_dim=4, initializer_range=0.5)


def train_command(home: Path) -> Command:
    """Training of six steps, with a checkpoint every two."""
    out, text = home / "train", corpus(home / "train-text")
    arguments = ["train", "smoke", "--attention", "diff", "--out", out, *settings(text, 6)]
    return Command("train", arguments, out)


def pack_command(home: Path) -> Command:
    """Packing of a few files, with a tokenizer trained on them."""
    out, text = home / "pack", corpus(home / "pack-text", 6)
    return Command("pack", ["pack", text, "--out", out, "--vocab-size", "270"], out)


def evaluate_line(out: Path, models: dict[str, Path], protocols: Sequence[str]) -> list[object]:
    """Arguments that evaluate labelled models in few items."""
    changes = ("key_values.samples=2", "hallucination.samples=3", "hallucination.max_new_tokens=4")
    return [
        "evaluate", *protocols, "--quick", "--out", out,
        *(x for change in changes if change.split(".")[0] in protocols for x in ("--set", change)),
        *(x for label, path in models.items() for x in ("--model", f"{label}={path}")),
    ]  # fmt: skip


def evaluate_command(home: Path) -> Command:
    """Two protocols on two models."""
    out = home / "evaluate"
    models = {kind: model_folder(home / "models" / kind, kind) for kind in ("softmax", "diff")}
    arguments = evaluate_line(out, models, ("key_values", "hallucination"))
    return Command("evaluate", arguments, out)


def write_replies(evaluation: Path, home: Path) -> Path:
    """A file of replies to all requests of a judge."""
    asked, replies = home / "asked.jsonl", home / "replies.jsonl"
    assert call(["judge", evaluation, "--requests", asked]) is None
    names = [json.loads(line)["id"] for line in asked.read_text().splitlines()]
    answers = [{"id": name, "reply": "Yes.\n**Conclusion: True**"} for name in names]
    replies.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return replies


def judge_command(home: Path, evaluate: Command) -> Command:
    """Verdicts of a file of replies on an evaluation."""
    out = home / "judge"
    evaluate.start()
    assert evaluate.run() is None
    before = held(evaluate.out)
    restore(before, out)
    arguments = ["judge", out, "--model", "judge", "--replies", write_replies(out, home)]
    return Command("judge", arguments, out, before=before)


def report_command(home: Path, evaluate: Command) -> Command:
    """The page of an evaluation."""
    evaluate.start()
    assert evaluate.run() is None
    out = home / "report"
    return Command("report", ["report", out], out, before=held(evaluate.out), exact=True)


def reproduce_command(home: Path) -> Command:
    """A study of four models of four steps, made in this process: see :func:`in_this_process`."""
    out, text = home / "reproduce", corpus(home / "reproduce-text")
    arguments = ["reproduce", "text", "--scale", "smoke", "--workers", "1", "--out", out]
    return Command("reproduce", [*arguments, *settings(text, 2)], out)


@contextlib.contextmanager
def small_batches() -> Iterator[pytest.MonkeyPatch]:
    """Packings of small texts get checkpoints, in this process; their files are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffattn.lab.data.packing.BATCH_CHARS", 4_000)  # above the longest text
        patch.setattr("diffattn.lab.data.packing._CHECKPOINT_BATCHES", 1)
        yield patch


def in_this_process(
    planned: Sequence,
    data: Path,
    folder: Path,
    *,
    workers: int,
    on_progress: Callable,
    short: bool,
) -> None:
    """In place of ``train_runs``: the points of a worker count with those of its parent."""
    from diffattn.lab.training.prepare import open_data
    from diffattn.lab.training.run import train

    for run in planned:
        name = run.config.name

        def show(step: int, loss: float | None, name: str = name) -> None:
            on_progress(name, {"step": step, "loss": loss})

        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.log").open("w").close()
        of_run = {"facts": run.facts, "on_progress": show}
        train(run.config, open_data(data), folder / name, **of_run)
        on_progress(name, {"done": True})


def nameless(path: str) -> str:
    """A path without the parts of temporary names that differ from process to process."""
    return re.sub(r"\.\d+\.tmp(?=/|$)", "*", path)
