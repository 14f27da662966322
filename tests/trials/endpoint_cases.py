"""What hostile endpoints do and say, as tables and generators."""

import base64
import itertools
import json
import random
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trials.hostile_server import (
    Behaviour,
    chunked,
    drips,
    falls_silent,
    floods,
    never_reads,
    resets,
    response,
    says,
)

KEY = "sk-proj-Zx81vQm-Jr4_TtY7uWc2Lp9Ga"
TOKEN = "tok.Qe5%2FNb8+RsV3xKd6Hf1"
FIXED = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def usual(text: Any, **fields: Any) -> bytes:
    """A chat completion."""
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return json.dumps({"model": "judge-1", "choices": [choice]} | fields).encode()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A connection that should end in time."""

    name: str
    behaviour: Behaviour
    may_end: tuple[str, ...] = ("failure",)
    tls: bool = False
    to_tls: bool = False
    """The client expects TLS, the server does not speak it."""
    size: int = 100
    """Of the request."""


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
REPLY = usual("It is.")
ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "status line": (b"", b"HTTP/1.1 200 OK and so on"),
    "header lines": (HEAD, b"X: y\r\n"),
    "body": (HEAD + b"\r\n", b" "),
    "chunks": (CHUNKS, b"1;a=b\r\n \r\n"),
    "refusal": (b"HTTP/1.1 500 Error\r\n\r\n", b" "),
}
"""The start of a response, and the piece that is sent again and again."""


def exchanges() -> list[Exchange]:
    """Silence, drips, floods, ends and resets in every part of a response."""
    return [*_cut_responses(), *_endless_responses(), *_wrong_lengths(), *_silent_servers()]


def _cut_responses() -> Iterator[Exchange]:
    shapes = {"length": response(REPLY), "chunks": chunked(REPLY)}
    for name, content in shapes.items():
        for number, at in enumerate(sorted({*range(0, len(content), 17), len(content) - 1})):
            tls = number % 2 == 1
            part, whole = content[:at], (("failure", "reply") if at > 30 else ("failure",))
            yield Exchange(f"{name}: silent after {at}", falls_silent(part), tls=tls)
            yield Exchange(f"{name}: closed after {at}", says(part), whole, tls=tls)
            yield Exchange(f"{name}: reset after {at}", resets(part), whole, tls=tls)


def _endless_responses() -> Iterator[Exchange]:
    for (name, (before, piece)), tls in itertools.product(ENDLESS.items(), (False, True)):
        how = "in TLS " if tls else ""
        yield Exchange(f"{name} {how}drips", drips(before, piece), tls=tls)
        yield Exchange(f"{name} {how}floods", floods(before, piece), tls=tls)


def _wrong_lengths() -> Iterator[Exchange]:
    either = ("failure", "reply")
    yield Exchange("body beyond the limit", says(response(b" " * (8 * 2**20 + 1) + REPLY)))
    yield Exchange("length beyond memory", falls_silent(response(REPLY, length=10**15)))
    yield Exchange("length too short", says(response(REPLY, length=9)))
    yield Exchange("length too long", says(response(REPLY, length=999)), either)
    redirect = response(b"", status="307 Go", headers="Location: /v1\r\n")
    yield Exchange("redirect", says(redirect))


def _silent_servers() -> Iterator[Exchange]:
    yield Exchange("accepts, no more", never_reads)
    yield Exchange("accepts, no TLS", never_reads, to_tls=True)
    yield Exchange("TLS: drips", drip_handshake, to_tls=True)
    for tls in (False, True):
        yield Exchange(f"reads nothing, TLS {tls}", never_reads, tls=tls, size=16_000_000)
        yield Exchange(f"reads slowly, TLS {tls}", reads_slowly, tls=tls, size=16_000_000)


def drip_handshake(connection: Any, over: Any) -> None:
    """A TLS record that never ends."""
    connection.sendall(b"\x16\x03\x03\x40\x00")
    while not over.wait(0.1):
        connection.sendall(b"\x02")


def reads_slowly(connection: Any, over: Any) -> None:
    """A little now and then, so that sending never stands still."""
    while not over.wait(0.02):
        connection.recv(20_000)


@dataclass(frozen=True, slots=True)
class Echo:
    """A server that repeats a secret."""

    name: str
    content: bytes
    key: str
    query: str
    pieces: frozenset[str]
    """What nothing may hold."""


ENCODINGS: dict[str, Callable[[str], list[str]]] = {
    "plain": list,
    "upper": lambda s: list(s.upper()),
    "percent": lambda s: [urllib.parse.quote(c, safe="") for c in s],
    "percent, all": lambda s: [f"%{ord(c):02X}" for c in s],
    "percent, lower": lambda s: [f"%{ord(c):02x}" for c in s],
    "percent, twice": lambda s: [f"%25{ord(c):02X}" for c in s],
    "quoted-printable": lambda s: [f"={ord(c):02X}" for c in s],
    "JSON": lambda s: [f"\\u{ord(c):04x}" for c in s],
    "JSON, upper": lambda s: [f"\\u{ord(c):04X}" for c in s],
    "JSON, twice": lambda s: [f"\\\\u{ord(c):04x}" for c in s],
    "JSON, mixed": lambda s: [c if i % 2 else f"\\u{ord(c):04x}" for i, c in enumerate(s)],
    "slashes": lambda s: [c if c.isalnum() else f"\\{c}" for c in s],
    "bytes": lambda s: [f"\\x{ord(c):02x}" for c in s],
    "HTML": lambda s: [f"&#{ord(c)};" for c in s],
    "HTML, hexadecimal": lambda s: [f"&#x{ord(c):x};" for c in s],
    "HTML, named": lambda s: [c.replace("&", "&amp;") for c in s],
    "hexadecimal": lambda s: [f"{ord(c):02x}" for c in s],
    "hexadecimal, upper": lambda s: [f"{ord(c):02X}" for c in s],
    "spaced": lambda s: [c + (" " if i % 5 == 4 else "") for i, c in enumerate(s)],
    "lines": lambda s: [c + ("\r\n " if i % 16 == 15 else "") for i, c in enumerate(s)],
    "base64": lambda s: based(s, ""),
    "base64 of Bearer": lambda s: based(s, "Bearer "),
    "base64 of user:key": lambda s: based(s, "user:"),
    "base64, URL": lambda s: based(s, "", urlsafe=True),
}


def based(text: str, before: str, *, urlsafe: bool = False) -> list[str]:
    """Base64, in parts of about a character each."""
    code = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    whole = code((before + text).encode()).decode()
    return [whole[i : i + 4] for i in range(0, len(whole), 4)]


def places(text: str) -> dict[str, bytes]:
    """Where a server can put a text."""
    raw = text.encode()
    line = text.replace("\r\n", "")
    quoted = json.dumps(text)[1:-1].encode()
    return {
        "400": response(raw, status="400 Bad"), "401": response(raw, status="401 No"),
        "429": response(raw, status="429 Busy"), "500": response(raw, status="500 Error"),
        "no JSON": response(raw), "JSON error": response(b'{"error": "' + quoted + b'"}'),
        "reason": response(raw, status=f"500 {line}"),
        "no HTTP": raw + b"\r\n\r\n", "no status": f"HTTP/1.1 {line}\r\n\r\n".encode(),
        "header": response(b"", status="500 E", headers=f"Retry-After: {line}\r\nX: {line}\r\n"),
        "redirect": response(raw, status="302 Go", headers=f"Location: http://a/{line}\r\n"),
        "bad chunk": FIXED.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + raw + b"\r\n",
        "reply": response(usual(text)), "model": response(usual("So.", model=text)),
        "finish": response(json.dumps({"choices": [
            {"message": {"content": None}, "finish_reason": text}]}).encode()),
        "finish of a reply": response(json.dumps({"choices": [
            {"message": {"content": "So."}, "finish_reason": text}]}).encode()),
        "usage": response(usual("So.", usage={text: 1, "total_tokens": 2})),
        "cut": response(raw, length=len(raw) + 10), "cut in error": response(
            raw, status="500 E", length=len(raw) + 10),
    }  # fmt: skip


def echoes() -> list[Echo]:
    """Secrets x encodings x places x where the text is cut and where a message may cut it."""
    cases = []
    secrets = {"key": KEY, "query": TOKEN, "query, decoded": urllib.parse.unquote(TOKEN)}
    cuts = [(0, 0), (1, 9), (250, 0), (280, 7), (294, 0), (297, 5), (4085, 0), (4088, 12)]
    generator = random.Random(0)
    for (what, secret), (how, encode) in itertools.product(secrets.items(), ENCODINGS.items()):
        parts, based = encode(secret), how.startswith("base64")
        of_secret = parts[3:] if how.endswith(("Bearer", "user:key")) else parts
        for place in places(""):
            before, missing = generator.choice(cuts)
            kept = parts[: len(parts) - missing] if missing < len(parts) - 2 else parts[:-1]
            text = "x" * before + " the key " + "".join(kept) + (" is wrong" if not missing else "")
            size = 12 if place == "reply" else 6
            pieces = {secret} if place == "reply" else set(windows(list(secret), 6))
            pieces |= set(windows(of_secret, size // 3 if based else size))
            name = f"{what}, {how}, {place}, {before} before, {missing} missing"
            cases.append(echo(name, places(text)[place], pieces))
        for place, size in {"500": 4, "no JSON": 4, "reply": 6}.items():
            for end in range(size, len(parts), 4) if of_secret is parts else ():
                piece = "".join(parts[:end])
                content = places(f"The key is {piece}")[place]
                cases.append(echo(f"{what}, {how}, {place}, {end} at the end", content, {piece}))
    return cases


def echo(name: str, content: bytes, pieces: set[str]) -> Echo:
    """A case with the secrets of all."""
    return Echo(name, content, KEY, f"v=1&token={TOKEN}", frozenset(pieces))


def windows(parts: list[str], size: int) -> list[str]:
    """Every so many parts in a row."""
    return ["".join(parts[i : i + size]) for i in range(len(parts) - size + 1)]


def leak(echo: Echo, text: str) -> str | None:
    """What of the secret a text shows."""
    for piece in echo.pieces:
        spelt = {piece, json.dumps(piece)[1:-1], repr(piece)[1:-1], piece.strip()}
        if shown := next((spelling for spelling in spelt if spelling in text), None):
            at = text.index(shown)
            return f"shows {shown!r} in {text[max(0, at - 60) : at + 60]!r}"
    return None


TRUE = "**Conclusion: True**"
GOOD = usual(TRUE).decode()
CHOICE = {"message": {"content": TRUE}}


def odd_answers() -> list[tuple[str, bytes, Any]]:
    """Answers, and the verdict that the item gets: ``"failed"`` or the verdict in the reply."""
    cases = []
    for name, body, verdict in (*_no_completions(), *_odd_completions()):
        content = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        cases.append((name, response(content), verdict))
        if name in ("deep list", "invalid UTF-8", "NUL", "HTML"):
            cases += [
                (f"{name}, {status}", response(content, status=status), "failed")
                for status in ("500 Error", "400 Bad", "302 Found", "204 None", "999 ?")
            ]
    for after in RETRY_AFTER:
        content = response(b"busy", status="503 Busy", headers=f"Retry-After: {after}\r\n")
        cases.append((f"Retry-After {after[:40]!r}", content, "failed"))
    return cases


def _no_completions() -> Iterator[tuple[str, str | bytes, Any]]:
    """Bodies in which no completion can be read."""
    long = "9" * 5_000
    texts: dict[str, str | bytes] = {
        "deep list": "[" * 100_000 + "]" * 100_000,
        "half deep": "[" * 100_000,
        "long number": long,
        "long number inside": GOOD[:-1] + f', "x": {long}}}',
        "NaN": "NaN",
        "surrogate in an error": json.dumps({"error": "\ud800"}),
        "longest reply": usual(TRUE * 2**17),
        "invalid UTF-8": b'{"choices": "\xff\xfe"}',
        "overlong": GOOD.replace("Concl", "\0").encode().replace(b"\\u0000", b"\xc0\x80"),
        "NUL": "\0",
        "raw NUL in reply": GOOD.replace("Concl", "\0Concl"),
        "half a BOM": b"\xef\xbb" + GOOD.encode(),
        "latin-1": GOOD.replace("judge-1", "é").encode("latin-1"),
        "HTML": "<!doctype html><h1>It works!</h1>",
        "nothing": "",
        "half": GOOD[: len(GOOD) // 2],
        "two": GOOD * 2,
        "stream": f"data: {GOOD}\n\ndata: [DONE]\n\n",
        "key twice, the last wrong": GOOD[:-1] + ', "choices": []}',
    }
    yield from ((name, text, "failed") for name, text in texts.items())
    for value in (None, True, 0, "choices", [], {}, [[]]):
        yield f"{value!r} at the top", json.dumps(value), "failed"
    for value in ([], {}, "abc", 1, None, [None], [[]], [{}], [{"message": "a"}], {"0": CHOICE}):
        yield f"choices {value!r}", json.dumps({"choices": value}), "failed"
    for value in (None, 1.5, True, [{"type": "text", "text": TRUE}], {"text": TRUE}):
        yield f"content {type(value).__name__}", usual(value), "failed"


def _odd_completions() -> Iterator[tuple[str, str | bytes, Any]]:
    """Bodies that hold a reply, beside or within something odd."""
    spans, deep = TRUE + "\nProblematic Spans: ", "[" * 100_000 + "]" * 100_000
    texts: dict[str, str | bytes] = {
        "number of 4,000": GOOD[:-1] + f', "usage": {{"total_tokens": {"9" * 4_000}}}}}',
        "negative usage": usual(TRUE, usage={"total_tokens": -1}),
        "NaN inside": usual(TRUE, usage={"total_tokens": float("nan")}),
        "text as usage": usual(TRUE, usage="much"),
        "surrogate in reply": usual("\ud800" + TRUE),
        "surrogate in model": usual(TRUE, model="\udfff"),
        "deep spans": usual(spans + deep),
        "spans of numbers": usual(spans + f"[{'9' * 5_000}]"),
        "not a number in spans": usual(spans + "[NaN, null]"),
        "many quotes": usual(spans + "'\"" * 100_000),
        "many backslashes": usual(TRUE + "\\" * 1_000_000),
        "many escapes": usual(TRUE + "%" * 300_000 + "&#" * 300_000),
        "NUL in reply": usual("\0" + TRUE),
        "BOM": "\ufeff" + GOOD,
        "UTF-16": GOOD.encode("utf-16"),
        "key twice": GOOD.replace('"model"', '"choices": [], "model"'),
        "model a list": usual(TRUE, model=[]),
        "long model": usual(TRUE, model="m" * 10**6),
        "finish a list": json.dumps({"choices": [CHOICE | {"finish_reason": [1]}]}),
        "two choices": json.dumps({"choices": [CHOICE, {}]}),
        "lines in a reply": usual("a\u2028b\x85c\r\nd " + TRUE),
    }
    yield from ((name, text, True) for name, text in texts.items())
    yield "depth 400", GOOD[:-1] + ', "x": ' + "[" * 400 + "]" * 400 + "}", True
    for n in (700, 940, 980):
        body = usual(TRUE, model=None).decode()
        yield f"model of depth {n}", body.replace("null", "[" * n + "]" * n, 1), "either"
        yield f"spans of depth {n}", usual(spans + "[" * n + "]" * n), True
    yield "empty content", usual(""), None
    yield "a false one", usual("**Conclusion: False**"), False


RETRY_AFTER = (
    *("0", "-5", "nan", "inf", "1e308", "9" * 5_000, "0x10", "٣", "", ",", "soon", "\x00", "é"),
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Sat, 01 Jan 10000 00:00:00 GMT",
    "Mon, 01 Jan 0000 00:00:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 -2359",
    "Mon, 01 Jan 0001 00:00:00 +2359",
    "Thu, 32 Jan 2026 25:61:61 GMT",
    "Thu, 01 Jan 2026 00:00:00 +99999999999999",
    "Thu, 01 Jan 2026 " + "9" * 5_000,
    "2026-01-01T00:00:00Z",
    "1 1 1 1 1 1",
)
