"""What hostile endpoints do and say, as tables and generators."""

import base64
import itertools
import json
import random
import urllib.parse
from collections.abc import Callable
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


def exchanges() -> list[Exchange]:
    """Silence, drips, floods, ends and resets in every part of a response."""
    reply = usual("It is.")
    shapes = {
        "length": response(reply),
        "chunks": chunked(reply),
        "close": b"HTTP/1.0 200 OK\r\n\r\n" + reply,
        "continue": b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + response(reply),
        "refusal": response(b'{"error": "no"}', status="500 Error"),
    }
    cases = []
    for name, content in shapes.items():
        for at in sorted({*range(0, len(content), 9), len(content) - 1}):
            tls = at % 2 == 1
            part, whole = content[:at], (("failure", "reply") if at > 30 else ("failure",))
            cases += [
                Exchange(f"{name}: silent after {at}", falls_silent(part), tls=tls),
                Exchange(f"{name}: closed after {at}", says(part), whole, tls=tls),
                Exchange(f"{name}: reset after {at}", resets(part), whole, tls=tls),
            ]
    head = b"HTTP/1.1 200 OK\r\n"
    body = head + b"Transfer-Encoding: chunked\r\n\r\n"
    parts = {
        "status line": (b"", b"HTTP/1.1 200 OK and so on"), "blank": (b"", b" "),
        "reason": (b"HTTP/1.1 200 ", b"O"), "header name": (head, b"X"),
        "header value": (head + b"X: ", b"y"), "header lines": (head, b"X: y\r\n"),
        "folded header": (head + b"X: y", b"\r\n z"), "early newlines": (b"", b"\r\n"),
        "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "continue with headers": (b"", b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n"),
        "body": (head + b"\r\n", b" "), "body of a length": (response(b"", length=10**6), b" "),
        "body of any length": (response(b"", length=10**30), b" "),
        "chunk size": (body, b"0"), "chunk extension": (body + b"5;", b"a=b;"),
        "chunk data": (body + b"ffffffff\r\n", b" "), "chunks": (body, b"1\r\n \r\n"),
        "chunks with extensions": (body, b"1;a=b\r\n \r\n"),
        "chunk end": (body + b"1\r\n ", b" "), "trailer": (body + b"0\r\nX: ", b"y"),
        "trailers": (body + b"0\r\n", b"X: y\r\n"), "negative chunk": (body + b"-1\r\n", b" "),
        "refusal": (b"HTTP/1.1 500 Error\r\n\r\n", b" "),
        "redirect": (b"HTTP/1.1 302 Found\r\nLocation: /\r\n", b"X: y\r\n"),
        "compressed": (head + b"Content-Encoding: gzip\r\n\r\n", b"\x1f\x8b\x08\x00" + b"\0" * 60),
    }  # fmt: skip
    for (name, (before, piece)), tls in itertools.product(parts.items(), (False, True)):
        how = "in TLS " if tls else ""
        cases += [
            Exchange(f"{name} {how}drips", drips(before, piece), tls=tls),
            Exchange(f"{name} {how}floods", floods(before, piece), tls=tls),
        ]
    cases += [
        Exchange("accepts, no more", never_reads),
        Exchange("accepts, no TLS", never_reads, to_tls=True),
        Exchange("TLS: plain answer", says(shapes["length"]), to_tls=True),
        Exchange("TLS: drips", drip_handshake, to_tls=True),
        Exchange("TLS: closes", lambda connection, over: None, to_tls=True),
        Exchange("reads nothing of much", never_reads, size=16_000_000),
        Exchange("reads nothing of much in TLS", never_reads, tls=True, size=16_000_000),
        Exchange("reads much slowly", reads_slowly, size=16_000_000),
        Exchange("reads much slowly in TLS", reads_slowly, tls=True, size=16_000_000),
        Exchange("body beyond the limit", says(response(b" " * (8 * 2**20 + 1) + reply))),
        Exchange("length beyond memory", falls_silent(response(reply, length=10**15))),
        Exchange("length too short", says(response(reply, length=9))),
        Exchange("length too long", says(response(reply, length=999)), ("failure", "reply")),
        Exchange("length negative", says(response(reply, length=-5)), ("failure", "reply")),
        Exchange("chunk of size -5", says(body + b"-5\r\n" + reply)),
        Exchange("chunk of size -10**30", says(body + b"-" + b"f" * 30 + b"\r\n" + reply)),
        Exchange("chunk of size 10**30", says(body + b"f" * 30 + b"\r\n" + reply)),
        *(
            Exchange(f"redirect {status}",
                     says(response(b"", status=f"{status} Go", headers="Location: /v1\r\n")))
            for status in (300, 301, 302, 303, 304, 307, 308)
        ),
    ]  # fmt: skip
    return cases


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
        if shown := next((one for one in spelt if one in text), None):
            at = text.index(shown)
            return f"shows {shown!r} in {text[max(0, at - 60) : at + 60]!r}"
    return None


def odd_answers() -> list[tuple[str, bytes, Any]]:
    """Answers, and the verdict that the item gets: ``"failed"`` or what stands in the reply."""
    true = "**Conclusion: True**"
    deep, long = "[" * 100_000 + "]" * 100_000, "9" * 5_000
    good = usual(true).decode()
    failed, passed = "failed", True
    choice = {"message": {"content": true}}
    bodies: list[tuple[str, str | bytes, Any]] = [
        ("deep list", deep, failed),
        ("deep object", '{"a":' * 100_000 + "1" + "}" * 100_000, failed),
        ("half deep", "[" * 100_000, failed),
        *((f"depth {n}", good[:-1] + ', "x": ' + "[" * n + "]" * n + "}", passed) for n in (9,
        400)),
        *((f"model of depth {n}", usual(true, model=None).decode().replace(
            '"model": null', f'"model": {"[" * n + "]" * n}'), "either") for n in (700, 900, 940,
            960, 980)),
        ("long number", long, failed),
        ("long number inside", good[:-1] + f', "x": {long}}}', failed),
        ("long float", good[:-1] + f', "x": {long}.5e{"9" * 50}}}', passed),
        ("number of 4,000", good[:-1] + f', "usage": {{"total_tokens": {"9" * 4_000}}}}}', passed),
        ("negative usage", usual(true, usage={"total_tokens": -1}), passed),
        ("NaN", "NaN", failed), ("Infinity", "-Infinity", failed),
        ("NaN inside", usual(true, usage={"total_tokens": float("nan")}), passed),
        ("infinite inside", usual(true, usage={"total_tokens": float("inf")}), passed),
        ("true as usage", usual(true, usage={"total_tokens": True}), passed),
        ("text as usage", usual(true, usage="much"), passed),
        ("surrogate in usage", usual(true, usage={"\ud800": 1}), passed),
        ("surrogate in reply", usual("\ud800" + true), passed),
        ("surrogate in model", usual(true, model="\udfff"), passed),
        ("surrogate in finish", json.dumps({"choices": [choice | {"finish_reason": "\ud800"}]}),
        passed),
        ("surrogate in an error", json.dumps({"error": "\ud800"}), failed),
        ("surrogate in spans", usual(true + '\nProblematic Spans: ["\\ud800"]'), passed),
        ("deep spans", usual(true + "\nProblematic Spans: " + deep), passed),
        *((f"spans of depth {n}", usual(true + "\nProblematic Spans: " + "[" * n + "]" * n), passed)
          for n in (500, 900, 930, 945, 960, 975, 990)),
        ("spans of numbers", usual(true + f"\nProblematic Spans: [{long}]"), passed),
        ("spans that are none", usual(true + "\nProblematic Spans: {}"), passed),
        ("not a number in spans", usual(true + "\nProblematic Spans: [NaN, null]"), passed),
        ("many quotes", usual(true + "\nProblematic Spans: " + "'\"" * 100_000), passed),
        ("many backslashes", usual(true + "\\" * 1_000_000), passed),
        ("many escapes", usual(true + "%" * 300_000 + "&#" * 300_000), passed),
        ("longest reply", usual(true * 2**17), failed),
        ("long entity", usual(true + "&#" + "1" * 5_000 + ";"), passed),
        ("invalid UTF-8", b'{"choices": "\xff\xfe"}', failed),
        ("binary", bytes(range(256)), failed),
        ("overlong", good.replace("Concl", "\0").encode().replace(b"\\u0000", b"\xc0\x80"), failed),
        ("NUL", "\0", failed), ("NUL in reply", usual("\0" + true), passed),
        ("raw NUL in reply", good.replace("Concl", "\0Concl"), failed),
        ("BOM", "\ufeff" + good, passed), ("UTF-16", good.encode("utf-16"), passed),
        ("UTF-32", good.encode("utf-32-le"), passed),
        ("half a BOM", b"\xef\xbb" + good.encode(), failed),
        ("latin-1", good.replace("judge-1", "é").encode("latin-1"), failed),
        ("HTML", "<!doctype html><h1>It works!</h1>", failed), ("nothing", "", failed),
        ("blank", " \n ", failed), ("half", good[: len(good) // 2], failed),
        ("two", good * 2, failed),
        ("stream", f"data: {good}\n\ndata: [DONE]\n\n", failed),
        ("single quotes", good.replace('"', "'"), failed),
        *((f"{value!r} at the top", json.dumps(value), failed)
          for value in (None, True, 0, "choices", [], {}, [1], [[]], {"choices": None})),
        *((f"choices {value!r}", json.dumps({"choices": value}), failed)
          for value in ([], {}, "abc", 1, None, True, [None], [[]], ["a"], [1], [{}],
                        [{"message": None}], [{"message": []}], [{"message": "a"}],
                        [{"message": {}}],
                        [{"text": true}], {"0": choice})),
        *((f"content {type(value).__name__}", usual(value), failed)
          for value in (None, 1, 1.5, True, [], [{"type": "text", "text": true}], {"text": true})),
        ("empty content", usual(""), None), ("another key", usual(true, choices2=[]), passed),
        ("key twice", good.replace('"model"', '"choices": [], "model"'), passed),
        ("key twice, the last wrong", good[:-1] + ', "choices": []}', failed),
        ("model a number", usual(true, model=5), passed),
        ("model a list", usual(true, model=[]), passed),
        ("long model", usual(true, model="m" * 10**6), passed),
        ("lines in model", usual(true, model="a\nb\u2028c"), passed),
        ("finish a list", json.dumps({"choices": [choice | {"finish_reason": [1]}]}), passed),
        ("no finish", json.dumps({"choices": [choice]}), passed),
        ("two choices", json.dumps({"choices": [choice, {}]}), passed),
        ("lines in a reply", usual("a\u2028b\x85c\r\nd " + true), passed),
        ("a false one", usual("**Conclusion: False**"), False),
        ("no verdict", usual("Well."), None),
    ]  # fmt: skip
    cases = []
    for name, body, verdict in bodies:
        content = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        cases.append((name, response(content), verdict))
        if name in ("deep list", "invalid UTF-8", "binary", "NUL", "HTML", "BOM"):
            cases += [
                (f"{name}, {status}", response(content, status=status), failed)
                for status in ("500 Error", "400 Bad", "302 Found", "204 None", "599 ?", "999 ?")
            ]
    for after in (
        "0", "-5", "nan", "inf", "-inf", "1e308", "9" * 5_000, "0x10", "1_0", "٣", "", " ",
        ",", ";",
        "soon", "Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 01 Jan 10000 00:00:00 GMT",
        "Mon, 01 Jan 0001 00:00:00 GMT", "Mon, 01 Jan 0000 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Mon, 01 Jan 0001 00:00:00 +2359", "Mon, 01 Jan 0001 00:00:00 -0000",
        "Fri, 31 Dec 9999 23:59:59 -0000",
        "Thu, 32 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 2026 25:61:61 GMT",
        "Thu, 01 Jan 2026 00:00:00 +9999",
        "Thu, 01 Jan 2026 00:00:00 +99999999999999", "Thu, 01 Jan 99999999999999 00:00:00 GMT",
        "1 Jan",
        "Thu, 01 Jan 2026 " + "9" * 5_000, "2026-01-01T00:00:00Z", "Thu,", "1 1 1 1 1 1",
        ":::", "- - - -",
        "Mon, 01 Jan 1 00:00:00", "01 Jan 69 00:00", "\x00", "é", "=?utf-8?q?a?=",
    ):  # fmt: skip
        content = response(b"busy", status="503 Busy", headers=f"Retry-After: {after}\r\n")
        cases.append((f"Retry-After {after[:40]!r}", content, failed))
    return cases
