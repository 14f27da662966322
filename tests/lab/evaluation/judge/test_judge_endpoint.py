"""An endpoint may be slow, busy, broken or wrong: what is retried, and what is told."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from threading import Event

import pytest

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.evaluation.judge.interface import JudgeFailure, JudgeSettings
from diffattn.lab.evaluation.judge.judges import EndpointJudge
from judge_server import TRUE, completion, judge_server

OK = (200, completion(), {})
BROKEN = (500, {"error": "broken"}, {})
MESSAGES = [{"role": "user", "content": "Is it — so?"}]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def judge(url, **settings):
    values = {"first_wait_seconds": 0.001, "timeout_seconds": 5.0, "max_attempts": 3} | settings
    return EndpointJudge(JudgeSettings(model="judge", endpoint=url, **values))


def ask(url, **settings):
    return judge(url, **settings).reply("name", MESSAGES, Event())


def test_a_reply(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with judge_server(OK) as (url, asked):
        reply = ask(url + "/?version=1", key_variable="MY_KEY", temperature=0, max_tokens=9)
        facts = judge(url + "?key=secret", key_variable="MY_KEY").facts()
    assert reply.text == TRUE
    assert reply.details == {
        "model": "judge-2024", "finish_reason": "stop", "usage": {"total_tokens": 7}, "attempts": 1,
    }  # fmt: skip
    (request,) = asked
    assert request["path"] == "/v1/chat/completions?version=1"
    assert request["headers"]["Authorization"] == "Bearer secret"
    assert request["body"] == {
        "model": "judge", "messages": MESSAGES, "temperature": 0, "max_tokens": 9,
    }  # fmt: skip
    assert "secret" not in str(facts)
    assert facts["endpoint"] == url


@pytest.mark.parametrize(
    "failure",
    [
        BROKEN,
        (503, b"<html>busy</html>", {}),
        (429, {"error": "slow down"}, {"Retry-After": "0"}),
        (200, b"no json at all", {}),
        (200, {"choices": []}, {}),
        (200, b"[" * 100_000, {}),
        (200, b'{"choices": "\xff\xfe"}', {}),
    ],
    ids=str,
)
def test_failures_that_may_pass_are_retried(failure):
    with judge_server(failure, failure, OK) as (url, asked):
        assert ask(url).details["attempts"] == 3
    assert len(asked) == 3


def test_attempts_end():
    with judge_server(BROKEN) as (url, asked):
        with pytest.raises(JudgeFailure, match=r"no reply after 3 attempts, last: HTTP 500 .*brok"):
            ask(url)
        assert len(asked) == 3
        assert set(asked[0]["body"]) == {"model", "messages"}  # nothing is sent unasked
        assert "Authorization" not in asked[0]["headers"]
    with pytest.raises(JudgeFailure, match="ConnectError"):
        ask(url)  # the server is gone


def test_waits_double_and_keep_to_the_server(monkeypatch):
    waits = []
    stop = Event()
    monkeypatch.setattr(stop, "wait", lambda seconds: waits.append(seconds))
    busy = (429, {}, {"Retry-After": "7"})
    later = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    script = [BROKEN, BROKEN, busy, (503, {}, {"Retry-After": later}),
              (429, {}, {"Retry-After": "soon"}), OK]  # fmt: skip
    with judge_server(*script) as (url, _):
        settings = {"first_wait_seconds": 2.0, "longest_wait_seconds": 60.0, "max_attempts": 9}
        reply = judge(url, **settings).reply("name", MESSAGES, stop)
    assert reply.details["attempts"] == 6
    assert waits == [2.0, 4.0, 7.0, 60.0, 32.0]


@pytest.mark.parametrize("answer", [30.0, "drip"])
def test_an_endpoint_that_hangs(answer):
    with judge_server(answer) as (url, _):
        began = time.monotonic()
        # Its time ends the attempt, not the server, which sends no chat completion in the end.
        with pytest.raises(JudgeFailure, match=r"no reply after 1 attempts, last: .*Timeout"):
            ask(url, timeout_seconds=0.2, max_attempts=1)
        assert time.monotonic() - began < 20  # it would have hung for longer


def test_a_reply_without_end_is_not_kept():
    long = (200, b" " * (8 * 2**20 + 1), {})
    with (
        judge_server(long) as (url, _),
        pytest.raises(JudgeFailure, match="last: OSError: the reply is longer than 8388608 bytes"),
    ):
        ask(url, max_attempts=1)


def test_a_caller_that_gives_up_does_not_wait():
    stop = Event()
    stop.set()
    with judge_server(BROKEN) as (url, asked):
        with pytest.raises(JudgeFailure, match="given up, last: HTTP 500"):
            judge(url, first_wait_seconds=1e4).reply("name", MESSAGES, stop)
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("text", "kept"), [("EMPTY", "EMPTY"), ("sk-secret", "[key]"), ("a\ud800b", "a?b")]
)
def test_a_reply_that_repeats_the_key_or_that_no_file_can_hold(text, kept, monkeypatch):
    """The keys that local servers want are words of a reply."""
    monkeypatch.setenv("MY_KEY", "EMPTY" if text == "EMPTY" else "sk-secret")
    with judge_server((200, completion(f"The text says {text}."), {})) as (url, _):
        assert ask(url, key_variable="MY_KEY").text == f"The text says {kept}."


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_ends_everything_and_shows_no_key(status, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    body = {"error": "key sk-secret is wrong"}
    with judge_server((status, body, {})) as (url, asked):
        with pytest.raises(DiffAttnError, match=r"must accept the key.*\[key\] is wrong") as raised:
            ask(url, key_variable="MY_KEY")
        assert not isinstance(raised.value, JudgeFailure)
        assert "sk-secret" not in str(raised.value)
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {"error": "too long"}, {}), "HTTP 400 .*too long"),
        ((307, b"", {"Location": "http://127.0.0.1:1/"}), "HTTP 307"),
        ((200, completion(None), {}), "a reply without text, finish reason 'stop'"),
    ],
)
def test_failures_of_one_request_are_not_retried(answer, message):
    with judge_server(answer) as (url, asked):
        with pytest.raises(JudgeFailure, match=message):
            ask(url)
        assert len(asked) == 1


URL, KEY = (
    "endpoint must be a URL such as .*, without user, password",
    "must name an environment va",
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoint": "api.openai.com/v1"}, URL), ({"endpoint": "http://[::1"}, URL),
        ({"endpoint": "http://a:0/v1"}, URL), ({"endpoint": "https://me:secret@host/v1"}, URL),
        ({"endpoint": "https://host/v1#secret"}, URL),
        ({"key_variable": "NO_SUCH_KEY"}, KEY), ({"key_variable": "ODD_KEY"}, KEY),
    ],
)  # fmt: skip
def test_wrong_settings(settings, message, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    monkeypatch.setenv("ODD_KEY", "é")
    with pytest.raises(ConfigError, match=message) as raised:
        EndpointJudge(JudgeSettings(**({"model": "m", "endpoint": "https://host/v1"} | settings)))
    assert "secret" not in str(raised.value)
