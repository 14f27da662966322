"""Impossible values of every option and setting: one line, the right status, nothing left."""

import os
import random
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from children import in_child
from diffattn.files.io import log_facts, write_json, write_jsonl
from diffattn.lab.cli.app import main
from diffattn.lab.records.evaluations import EVAL_SCHEMA_VERSION
from evaluation_folders import eval_result
from small_corpus import WORDS
from tally import trial
from trials.wrong_calls import SMALL, Call, calls, changed, each

NO_TEXT = "arguments must be valid UTF-8 without zero bytes"
# What may stand before the line: a stage that needed work before the fault could show.
PROGRESS = re.compile(
    r"\d+ of \d+: |\d+/\d+ steps |training (a |\d)|packing |checking |warning: |"
    r"model\.vocab_size is the data's |[\d,]+ training tokens are read "
)


def run(*arguments, cwd, seconds=60, **environment):
    """``diffattn`` in a fork with limits: exit status or minus the signal, and what it wrote."""
    out, err = cwd / ".stdout", cwd / ".stderr"

    def call():
        os.chdir(cwd)
        os.environ.update({"DIFFATTN_DEBUG": ""} | environment)  # errors as a user sees them
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)
        sys.argv = ["diffattn", *map(str, arguments)]
        for number, path in enumerate((Path(os.devnull), out, err)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate("rww")
        )
        try:
            main()
        except SystemExit as end:
            return end.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()

    kind, value = in_child(call, seconds=seconds)
    written = [path.read_text(errors="replace") for path in (out, err)]
    out.unlink()
    err.unlink()
    if kind == "raised":
        written[1] += value[2]  # the traceback
    status = -getattr(signal, value) if kind == "died" else value if kind == "done" else 1
    return SimpleNamespace(status=status, out=written[0], err=written[1])


def write_outputs(folder):
    """An evaluation folder with two outputs to be judged."""
    part = folder / "model" / "hallucination"
    rows = [
        {"id": f"item-{i}", "kind": "summary", "document": "A cat sat.", "references": ["Cat."],
         "output": f"A cat {i}.", "read": 1, "scores": {}}
        for i in range(2)
    ]  # fmt: skip
    write_jsonl(part / "items.jsonl", rows)
    facts = log_facts(part / "items.jsonl")
    eval_result("hallucination", model={"label": "model"}, num_items=2, items=facts).write(part)
    write_json(
        folder / "evaluation.json",
        {"schema": EVAL_SCHEMA_VERSION, "kind": "evaluation folder", "models": ["model"],
         "variants": ["hallucination"]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the calls name: texts, folders, packed tokens, a model."""
    root = tmp_path_factory.mktemp("files")
    generator = random.Random(0)
    lines = [" ".join(generator.choices(WORDS, k=12)) for _ in range(300)]
    (root / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    (root / "empty").mkdir()
    (root / "folder").mkdir()
    (root / "folder" / "thesis.bin").write_bytes(b"\xff\x00")
    (root / "empty.txt").touch()
    os.mkfifo(root / "pipe")
    (root / "null").symlink_to("/dev/null")
    write_outputs(root / "judged")
    (root / "binary.txt").write_bytes(b"\xff\xfe\x00 text")
    for name, content in {
        "nested": b'{"text": {"text": "a"}}',
        "deep": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "list": b'["text"]',
        "number": b'{"text": ' + b"9" * 5_000 + b"}",
        "big": b'{"a": ' + b"9" * 5_000 + b', "text": "a"}',
        "half": b'{"text": "a',
        "null": b'{"text": null}',
        "surrogate": b'{"text": "\\ud800 a"}',
        "blank": b"\n\n",
        "rows": b'{"text": "a b", "nested": {"text": "a"}, "list": ["a"], "number": 1}',
    }.items():
        (root / f"{name}.jsonl").write_bytes(content + b"\n")
    arguments = [part.replace("{files}", str(root)) for part in changed(SMALL)]
    done = run("train", "smoke", "--out", "run", *arguments, cwd=root)
    assert done.status == 0, done
    (root / "run" / "model").rename(root / "model")
    (root / "run" / "data").rename(root / "data")
    shutil.rmtree(root / "run")
    return root


def fault(call, ended, left):
    """What is wrong with the end of a wrong call; ``left`` is what it left in its folder."""
    lines = ended.err.splitlines()
    if ended.status < 0:
        return f"ended by signal {-ended.status}"
    if "Traceback" in ended.err or re.search(r"unexpected [A-Z]\w+[:.] ", ended.err):
        return f"a traceback: {lines[-1]}"
    if ended.status != call.status:
        return f"status {ended.status} instead of {call.status}: {ended.err[-300:]!r}"
    *before, last = lines or [""]
    if not last.startswith("diffattn: ") or not all(PROGRESS.match(line) for line in before):
        return f"not one line: {ended.err[-300:]!r}"
    if any(SECRET[i : i + 6] in ended.err for i in range(len(SECRET) - 5)):
        return f"shows the key: {ended.err!r}"
    if ended.out:
        return f"output: {ended.out[-200:]!r}"
    general = NO_TEXT in last or "memory must hold" in last
    if call.names.lower() not in last.lower() and not general:
        return f"{call.names!r} is not named: {last!r}"
    if left:
        return f"left {left}"
    return None


def filled(text, files):
    """A text of the tables with this run's folder, and the key that no message may show."""
    return text.replace("{files}", str(files)).replace("{secret}", SECRET)


def try_all(files, folder, tally, chosen):
    """Make every call in an empty folder, in which the corrected call must work."""
    before = contents(files)
    for number, call in enumerate(chosen):
        here = folder / str(number)
        here.mkdir()
        arguments = [filled(part, files) for part in call.arguments]
        environment = {name: filled(text, files) for name, text in call.environment}
        ended = run(*arguments, cwd=here, seconds=30, **environment)
        left = sorted(path.relative_to(here).as_posix() for path in here.rglob("*"))
        if left and arguments[0] == "evaluate":  # the folder may be an evaluation's already
            corrected = run(*evaluation(files), cwd=here)
            left = left if corrected.status else []
        tally.check(str(call), fault(call, ended, left))
        shutil.rmtree(here)
    assert contents(files) == before


def evaluation(files):
    """A right call of ``evaluate``, and a short one."""
    return (
        "evaluate", "word_perplexity", "--quick", "--max-length", "512", "--out", "out",
        "--model", str(files / "model"), "--set", f"word_perplexity.texts={files / 'corpus.txt'}",
    )  # fmt: skip


def contents(folder):
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


SECRET = "sk-proj-Zx81vQm-Jr4"
LOCAL = "http://127.0.0.1:9"
ENDPOINTS = [
    *("", "host", "host:8000", "127.0.0.1:9/v1", "//127.0.0.1:9/v1", "http:", "http:///v1"),
    *("ftp://127.0.0.1:9/v1", "file:///etc/passwd", "http://127.0.0.1:0/v1", "http://[::1"),
    *("http://127.0.0.1:65536/v1", "http://127.0.0.1:1e3/v1", LOCAL + "/v1#{secret}"),
    *("http://me:{secret}@127.0.0.1:9/v1", "htp://127.0.0.1:9/v1?key={secret}"),
]
JUDGE_SETTINGS = {
    "temperature": "nan inf -1 101 1e999 hot true [] {}",
    "max_tokens": "0 -1 1.5 nan true x [] 2147483648",
    "workers": "0 -1 null 1001 1.5 nan true x [] {}",
    "timeout_seconds": "0 -1 nan inf 86401 null true x [] {}",
    "max_attempts": "0 -1 1001 1.5 null true nan x []",
    "first_wait_seconds": "-1 nan inf 86401 null true x []",
    "longest_wait_seconds": "-1 nan inf 9223372037 null true x []",
    "give_up_after": "0 -1 1.5 1000000001 null nan true x []",
    "document": "half null true 1 [] {} Whole",
    "name": '1 1.5 true [] {} ["a"] ""',
    "key_variable": 'NO_SUCH_VARIABLE {secret} 1 true [] {} EMPTY_KEY BLANK_KEY LATIN_KEY ""',
    "model": "other", "endpoint": "http://a/v1", "worker": "2", "": "1", "api_key": "{secret}",
}  # fmt: skip
KEYS = {"EMPTY_KEY": "", "BLANK_KEY": " \n\t", "LATIN_KEY": f"{SECRET}é"}
JUDGE = ["--model", "m", "--endpoint", "http://127.0.0.1:9/v1"]


def judge_calls() -> list[Call]:
    """Refused before anything is written or sent."""
    judge = ("judge", "{files}/judged")
    environment = tuple(KEYS.items())
    wrong = [Call((*judge, "--model", "m", "--endpoint", url)) for url in ENDPOINTS]
    for name, values in JUDGE_SETTINGS.items():
        wrong += [
            Call((*judge, *JUDGE, "--set", f"{name}={value}"), environment=environment)
            for value in values.split(" ")
        ]
    files = ("{files}/judged", "{files}/null", "{files}/pipe")
    for option in ("--replies", "--requests"):
        wrong += each(files, *judge, "--model", "m", option, "@")
    for option, values in {
        "--set": ("workers", "", "="), "--dtype": ("int3",), "--device": ("toaster", "", "cpu:x"),
    }.items():  # fmt: skip
        wrong += each(values, *judge, "--model", "{files}/judged", option, "@")
    rest = ((), ("--set",), ("--nothing",), JUDGE[2:], (*JUDGE, "--replies", "x"))
    return wrong + [Call((*judge, *words)) for words in rest]


@pytest.mark.scheduled
def test_every_wrong_call_is_one_line(files, tmp_path):
    with trial("wrong calls of the command line", minimum=3_200) as tally:
        try_all(files, tmp_path, tally, [*calls(), *judge_calls()])
