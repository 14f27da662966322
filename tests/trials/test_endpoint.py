"""Servers that hang, flood, repeat the key or answer nonsense: what a judge makes of them."""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from diffattn.errors import DiffAttnError
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.evaluation.judge.endpoint import EndpointJudge
from diffattn.lab.evaluation.judge.interface import JudgeFailure, JudgeSettings
from diffattn.lab.evaluation.judge.session import judge_folder
from tally import trial
from trials.endpoint_cases import echoes, exchanges, leak, odd_answers, usual
from trials.hostile_server import CERTIFICATE, drips, falls_silent, floods, hostile, response, says

LIMIT, PATIENCE = 0.5, 5.0
"""Seconds: of an attempt, and until a test calls it endless, since machines may be busy."""
MESSAGES = [{"role": "user", "content": "Is it so?"}]
TIERS = [40, pytest.param(1, marks=pytest.mark.scheduled)]
"""Every 40th case in every run, all of them in the scheduled one."""


@pytest.fixture(autouse=True)
def _direct(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


def judge(url, **settings):
    values = {"model": "judge", "timeout_seconds": LIMIT, "max_attempts": 1} | settings
    return EndpointJudge(JudgeSettings(endpoint=url, **values))


def endless(exchange):
    """What is wrong with how an attempt at a hostile server ends."""
    began = time.monotonic()
    with hostile(exchange.behaviour, tls=exchange.tls) as port:
        url = f"http{'s' if exchange.tls or exchange.to_tls else ''}://127.0.0.1:{port}/v1"
        try:
            messages = [{"role": "user", "content": "x" * exchange.size}]
            judge(url).reply("name", messages, threading.Event())
            ended = "reply"
        except JudgeFailure:
            ended = "failure"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        seconds = time.monotonic() - began
    if seconds > PATIENCE:
        return f"took {seconds:.1f} s"
    return None if ended in exchange.may_end else f"ended in a {ended}"


@pytest.mark.parametrize("step", TIERS)
def test_every_exchange_ends(step):
    """Whatever a server does or leaves undone, in every part of a response."""
    cases = exchanges()[::step]
    minimum = 90 if step == 1 else len(cases)
    with trial("endpoint: time limits", minimum=minimum) as tally, ThreadPoolExecutor(16) as pool:
        for case, fault in zip(cases, pool.map(endless, cases), strict=True):
            tally.check(case.name, fault)


def test_looking_up_and_connecting_end(monkeypatch):
    """Before a connection stands there is a limit too."""
    with trial("endpoint: limits before a connection", minimum=2) as tally:
        full = socket.create_server(("127.0.0.1", 0), backlog=0)
        with full, contextlib.ExitStack() as waiting:
            for _ in range(4):  # nobody accepts: the next connection waits for an answer
                client = waiting.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            tally.check("connect", slow(f"http://127.0.0.1:{full.getsockname()[1]}/v1"))
        over = threading.Event()

        def look_up(*_, **__):
            over.wait(20)
            return []

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        tally.check("name", slow("http://judge.test/v1"))
        over.set()


def test_a_proxy_ends(monkeypatch):
    """The limit holds for the way through a proxy."""
    accepted = b"HTTP/1.1 200 Connection established\r\n\r\n"
    behaviours = (falls_silent(b""), drips(accepted[:-2], b"X: y\r\n"), floods(accepted, b" "))
    with trial("endpoint: limits of a proxy", minimum=3) as tally:
        for number, behaviour in enumerate(behaviours):
            with hostile(behaviour) as port:
                monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
                tally.check(f"{number}", slow("https://judge.test/v1"))


def slow(url):
    began = time.monotonic()
    try:
        judge(url).reply("name", MESSAGES, threading.Event())
    except JudgeFailure as failure:
        seconds = time.monotonic() - began
        return None if seconds < PATIENCE else f"took {seconds:.1f} s: {failure}"
    return "a reply"


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_behaves(tls):
    """The same servers are heard when they say what they should, in TLS as well."""
    with hostile(says(response(usual("It is."))), tls=tls) as port:
        scheme = "https" if tls else "http"
        asked = judge(f"{scheme}://127.0.0.1:{port}/v1", timeout_seconds=20.0)
        assert asked.reply("name", MESSAGES, threading.Event()).text == "It is."


@pytest.mark.parametrize("step", TIERS)
def test_nothing_repeats_a_secret(step, monkeypatch, caplog, capfd):
    """Neither reply nor failure, nor what is logged, printed or kept in a chain of exceptions."""
    caplog.set_level(logging.DEBUG)
    cases = echoes()[::step]
    minimum = 2400 if step == 1 else len(cases)
    with trial("endpoint: secrets", minimum=minimum) as tally:
        for case in cases:
            monkeypatch.setenv("JUDGE_KEY", case.key)
            with hostile(says(case.content)) as port:
                url = f"http://127.0.0.1:{port}/v1?{case.query}"
                asked = judge(url, key_variable="JUDGE_KEY", timeout_seconds=20.0)
                try:
                    shown = [repr(asked.reply("name", MESSAGES, threading.Event()))]
                except DiffAttnError as error:
                    shown = [*chain(error)]
            printed = capfd.readouterr()
            shown += [printed.out, printed.err, caplog.text, repr(asked.settings)]
            caplog.clear()
            tally.check(case.name, next(filter(None, (leak(case, text) for text in shown)), None))


def chain(error: BaseException | None) -> Iterator[str]:
    """Everything that a traceback or a debugger shows of an exception."""
    while error is not None:
        yield f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("step", TIERS)
def test_odd_answers_are_failures_of_one_item(step, outputs):
    """They are recorded, or read rightly, and the next item is asked."""
    cases = odd_answers()[::step]
    minimum = 110 if step == 1 else len(cases)
    with trial("endpoint: odd answers", minimum=minimum) as tally:
        for number, (name, content, verdict) in enumerate(cases):
            fault = odd(outputs, f"judge-{number}", content, verdict)
            tally.check(name, fault)


def odd(folder, name, content, verdict):
    """What is wrong with an item that got an odd answer, or with the next."""
    answers = iter([content, response(usual("**Conclusion: True**"))])

    def behave(connection, over):
        says(next(answers))(connection, over)

    with hostile(behave) as port:
        settings = JudgeSettings(
            model="judge", endpoint=f"http://127.0.0.1:{port}/v1", name=name, max_attempts=1,
            workers=1, timeout_seconds=20.0, longest_wait_seconds=0.0,
        )  # fmt: skip
        try:
            judge_folder(folder, EndpointJudge(settings), settings)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
    judged = folder / "model" / f"hallucination.judged-{name}"
    first, second = read_jsonl(judged / "items.jsonl")
    if second.get("verdict") is not True:
        return f"the next item: {second}"
    outcome = first.get("verdict", "failed") if "error" not in first else "failed"
    if outcome not in ({True, "failed"} if verdict == "either" else {verdict}):
        return f"{outcome!r}, wanted {verdict!r}: {str(first)[:200]}"
    replies, result = read_jsonl(judged / "replies.jsonl"), read_json(judged / "result.json")
    if "\n" in replies[0].get("error", "") or result["num_failed"] != (outcome == "failed"):
        return f"{result['num_failed']} failures, {replies[0]}"
    return None


def test_the_proxy_of_the_environment(monkeypatch):
    """It gets ``http`` requests whole, and of ``https`` ones no more than the host's name."""
    heard = []

    def behave(connection, over):
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        heard.append(data)
        connection.sendall(response(json.dumps({"error": "pass-word"}).encode(), status="407 No"))

    with hostile(behave) as port:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://me:pass-word@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "elsewhere.test")
        monkeypatch.setenv("JUDGE_KEY", "sk-a-key-of-many-letters")
        for scheme in ("http", "https"):
            asked = judge(f"{scheme}://judge.test/v1?q=secret", key_variable="JUDGE_KEY")
            with pytest.raises(JudgeFailure) as raised:
                asked.reply("name", MESSAGES, threading.Event())
            assert "407" in str(raised.value)
            assert "pass-word" not in "".join(chain(raised.value))
    plain, tunnel = heard
    assert plain.startswith(b"POST http://judge.test/v1/chat/completions?q=secret HTTP/1.1\r\n")
    assert tunnel.startswith(b"CONNECT judge.test:443 HTTP/1.1\r\n")
    assert b"sk-a-key" not in tunnel
    for head in heard:
        assert b"Proxy-Authorization: Basic bWU6cGFzcy13b3Jk\r\n" in head
