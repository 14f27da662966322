"""Impossible settings of ``diffattn judge``: one line, status 2, nothing written, nothing sent."""

import os
import shutil
import socket
import sys

import pytest

from diffattn.lab.cli.app import main
from tally import trial

SECRET = "sk-proj-Zx81vQm-Jr4"
LONG = "x" * 3000

LOCAL = "http://127.0.0.1:{port}"
ENDPOINTS = [
    *("", " ", "host", "host:8000", "127.0.0.1:{port}/v1", "//127.0.0.1:{port}/v1", "http:"),
    *("http:///v1", "http:127.0.0.1", "https://?q", "ftp://127.0.0.1:{port}/v1"),
    *("file:///etc/passwd", "data:text/plain,a", "unix:///run/a", "javascript:alert(1)"),
    *("1http://a/v1", "http://127.0.0.1:0/v1", "http://127.0.0.1:65536/v1"),
    *("http://127.0.0.1:-1/v1", "http://127.0.0.1:8٠/v1", "http://127.0.0.1:1e3/v1"),
    *(f"{LOCAL}:80/v1", f"{LOCAL}/v 1", f"{LOCAL}/v1\n", f"{LOCAL}/\tv1", f"\n{LOCAL}/v1"),
    *(f"{LOCAL}/v1\r\nX: y", "http://127.0.0.1\x7f/v1", f"{LOCAL}/\x1b[31m", f"{LOCAL}/é"),
    *(f"{LOCAL}/v1?q=é", f"{LOCAL}/\udcff", "http://[::1", "http://::1/v1", "http://[]/v1"),
    *("http://[v1.a]/v1", "http://[::1%25lo]:{port}/v1", "http://[g::1]/v1"),
    *("http://bücher.test/v1", "http://a..b/v1", "http://" + "a" * 64 + ".test/v1"),
    *("http://℀.test/v1", "http://a\u00adb/v1", "http://a\\b/v1", "http://a,b/v1"),
    *('http://"a"/v1', "http://me:{secret}@127.0.0.1:{port}/v1", "http://me:{secret}"),
    *("http://{secret}@127.0.0.1:{port}/v1", "http://@127.0.0.1:{port}/v1"),
    *(LOCAL + "/v1#{secret}", "htp://127.0.0.1:{port}/v1?key={secret}"),
    *("http://[::1?key={secret}", f"{LOCAL}/{LONG}", f"{LOCAL}/v1?{LONG}"),
]
SETTINGS = {
    "temperature": "nan inf -inf NaN Infinity -Infinity -1 -1e-9 1e-320 5e-324 1e-9 101 1e308 "
    "1e999 hot true [] {} [0.1] 10000000000000000000000000000000 0x1 1,5",
    "max_tokens": "0 -1 1.5 1e3 nan inf true x [] 2147483648 1000000000000000000 1e999 0.0",
    "workers": "0 -1 null 1001 10000000000 1.5 4.0 nan true x [] {}",
    "timeout_seconds": "0 -1 -0.0 nan inf -inf 1e308 1e999 86401 1e-320 1e-9 null true x [] {}",
    "max_attempts": "0 -1 1001 1000000000000000000 1.5 null true nan x []",
    "first_wait_seconds": "-1 -1e-320 nan inf 1e308 86401 null true x []",
    "longest_wait_seconds": "-1 nan inf 1e308 1e999 9223372037 null true x []",
    "give_up_after": "0 -1 1.5 1000000001 1000000000000000000 null nan true x []",
    "document": "half null true 1 [] {} Whole",
    "name": '1 1.5 true [] {} ["a"] "" "a\\u0000" "\\ud800" '
    + f"{LONG} {'x' * 151} {'é' * 76}",
    "key_variable": "NO_SUCH_VARIABLE {secret} 1 true [] {} EMPTY_KEY BLANK_KEY LINE_KEY TAB_KEY "
    'SPACE_KEY LATIN_KEY WIDE_KEY NUL_KEY BYTES_KEY LONG_KEY "" "A\\u0000B" "A\\nB" "\\ud800" A=B '
    + LONG,
    "model": "other", "endpoint": "http://a/v1", "worker": "2", "": "1", "api_key": "{secret}",
}  # fmt: skip
KEYS = {
    "EMPTY_KEY": "", "BLANK_KEY": " \n\t", "LINE_KEY": f"{SECRET}\nX: y", "TAB_KEY": f"{SECRET}\tx",
    "SPACE_KEY": f"{SECRET} x", "LATIN_KEY": f"{SECRET}é", "WIDE_KEY": f"{SECRET}\u2013",
    "NUL_KEY": f"{SECRET}\x01", "BYTES_KEY": f"{SECRET}\udcff", "LONG_KEY": SECRET * 1000,
}  # fmt: skip
PROXIES = [
    "socks5://127.0.0.1:{port}", "https://127.0.0.1:{port}", "ftp://127.0.0.1:{port}", "http://",
    "http://:{port}", "127.0.0.1:0", "127.0.0.1:abc", "127.0.0.1:70000", "http://me:{secret}@",
    "http://me:{secret}@127.0.0.1:x", "http://a b", "http://127.0.0.1:{port}\n",
    "http://é:{port}", "//",
    "http://[::1", "me:{secret}@127.0.0.1:99999", "?{secret}",
    "socks5h://me:{secret}@127.0.0.1:{port}",
]  # fmt: skip
USUAL = ["--model", "m", "--endpoint", "http://127.0.0.1:{port}/v1"]


def calls():
    """Arguments after the folder, and what the environment holds."""
    yield from ((["--model", "m", "--endpoint", url], {}) for url in ENDPOINTS)
    for name, values in SETTINGS.items():
        yield from (([*USUAL, "--set", f"{name}={value}"], {}) for value in values.split(" "))
    for proxy in PROXIES:
        yield USUAL, {"http_proxy": proxy}
        yield ["--model", "m", "--endpoint", "https://127.0.0.1:{port}"], {"https_proxy": proxy}
    for model in ("", "\n", "a\tb", "\udcff", "\x1b[31m", "m" * 1001, "m" * 200, "a\u2028b"):
        yield ["--model", model, "--endpoint", "http://127.0.0.1:{port}/v1"], {}
    for arguments in (
        ["--set", "workers"], ["--set", ""], ["--set", "="], ["--set"], ["--nothing"], ["--device"],
        ["--replies", "{folder}"], ["--replies", "{folder}/null"], ["--replies", "{folder}/pipe"],
        ["--requests", "{folder}"], ["--requests", "{folder}/null"],
        ["--requests", "{folder}/pipe"],
    ):  # fmt: skip
        yield ["--model", "m", *arguments], {}
    for arguments in (
        ["--dtype", "int3"],
        ["--device", "toaster"],
        ["--device", ""],
        ["--device", "cpu:x"],
    ):
        yield ["--model", "{folder}", *arguments], {}
    yield [], {}
    yield ["--endpoint", "http://127.0.0.1:{port}/v1"], {}
    yield [*USUAL, "--replies", "x"], {}


def tree(folder):
    """What lies in a folder."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.scheduled)])
def test_impossible_settings(step, outputs, monkeypatch, capsys):
    """All of them by the command line; no connection is made."""
    cases = list(calls())[::step]
    os.mkfifo(outputs / "pipe")
    (outputs / "null").symlink_to("/dev/null")  # should a command replace it, it is not the device
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", 9))])
    monkeypatch.setattr(socket.socket, "connect", sent)
    places = {"port": 9, "folder": outputs, "secret": SECRET}
    minimum = 200 if step == 1 else len(cases)
    with trial("endpoint: impossible settings", minimum=minimum) as tally:
        for arguments, environment in cases:
            words = [filled(text, places) for text in arguments]
            before = tree(outputs)
            monkeypatch.setattr(sys, "argv", ["diffattn", "judge", str(outputs), *words])
            with monkeypatch.context() as patch:
                for name, text in environment.items():
                    patch.setenv(name, filled(text, places))
                fault = ended(capsys)
            if fault is None and tree(outputs) != before:
                fault = "something was written"
            for path in outputs.glob("*/*.judged-*"):  # by a case that failed
                shutil.rmtree(path)
            tally.check(f"{words!r:.200} {environment}", fault)


def sent(*_):
    """In place of a connection."""
    raise AssertionError("something was sent")


def filled(text, places):
    """A text of the tables, with this run's places."""
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def ended(capsys):
    """What is wrong with how the command line ends."""
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    out, err = capsys.readouterr()
    if status != 2:
        return f"status {status}: {(out + err)[:300]}"
    if any(SECRET[i : i + 6] in out + err for i in range(len(SECRET) - 5)):
        return f"shows the key: {out + err}"
    usage = err.startswith("Usage: ")  # of the command line itself: three lines
    if out or (len(err.splitlines()) != 1 and not usage) or len(err) > 1000:
        return f"not one line: {out[:100]!r} {err[:500]!r}"
    return None
