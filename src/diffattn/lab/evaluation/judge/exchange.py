"""One HTTP request and its response, within a limit of time and size for everything together.

The limit of the standard library's clients, and of those that build on them, starts anew with
every byte, and holds neither for looking up a name nor for what comes before and after a body.
"""

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from threading import Thread
from typing import Any
from urllib.parse import SplitResult

from diffattn.lab.evaluation.judge.address import login

MOST_BYTES = 8 * 1024 * 1024
"""Received in one exchange."""
FAILURES = (OSError, http.client.HTTPException, ValueError, OverflowError)
"""What ends an exchange; the last two are chunk sizes that the standard library does not check."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    status: int
    retry_after: str | None
    content: bytes


def exchange(
    url: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
    *,
    seconds: float,
    proxy: SplitResult | None = None,
) -> Answer:
    """``POST`` a body. Redirects are not followed: they would carry the key to another host.

    Args:
        url: As :func:`~diffattn.lab.evaluation.judge.address.checked_url` returns it.
        headers: Beside those that every request has.
        body: JSON.
        seconds: For everything: name, connection, TLS, request and response.
        proxy: It sees requests to ``http`` URLs; those to ``https`` URLs pass through it in TLS.

    Raises:
        FAILURES: There was no whole answer. The text may hold what the server sent.
    """
    host, port = _place(url)
    target = f"{url.path}?{url.query}" if url.query else url.path
    headers = {
        "Host": url.netloc, "User-Agent": "diffattn", "Accept-Encoding": "identity",
        "Connection": "close", "Content-Type": "application/json",
        "Content-Length": str(len(body)), **headers,
    }  # fmt: skip
    with closing(_Wire(*_place(proxy or url), seconds)) as wire:
        if proxy is not None:
            text = login(proxy)
            basic = {"Proxy-Authorization": f"Basic {_base64(text)}"} if text else {}
            if url.scheme == "https":
                name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                wire.send(_head(f"CONNECT {name}", {"Host": name} | basic))
                response = wire.response("CONNECT")
                if response.status != http.client.OK:
                    raise OSError(f"the proxy refused with status {response.status}")
            else:
                target, headers = f"http://{url.netloc}{target}", headers | basic
        if url.scheme == "https":
            wire.secure(host)
        wire.send(_head(f"POST {target}", headers) + body)
        response = wire.response("POST")
        try:
            content = response.read(MOST_BYTES)
        except FAILURES:
            if response.status < http.client.MULTIPLE_CHOICES:
                raise
            content = b""  # the status alone must do
        return Answer(response.status, response.headers.get("Retry-After"), content)


class _Wire:
    """A connection whose every use ends at one point in time, and after so many bytes."""

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self._until, self._received = time.monotonic() + seconds, 0
        failure = OSError("the host has no address")
        for family, kind, protocol, _, address in _addresses(host, port, self._seconds_left()):
            self._socket = socket.socket(family, kind, protocol)
            try:
                self._socket.settimeout(self._seconds_left())
                self._socket.connect(address)
                return
            except OSError as error:
                self._socket.close()
                failure = error
        raise failure

    def secure(self, host: str) -> None:
        """Speak TLS from here on."""
        context = ssl.create_default_context()
        self._socket.settimeout(self._seconds_left())
        self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def send(self, content: bytes) -> None:
        """Send all of it."""
        left = memoryview(content)
        while left:
            self._socket.settimeout(self._seconds_left())
            left = left[self._socket.send(left) :]

    def receive(self, buffer: Any) -> int:
        """Fill a part of the buffer."""
        self._socket.settimeout(self._seconds_left())
        count = self._socket.recv_into(buffer)
        self._received += count
        if self._received > MOST_BYTES:
            raise OSError(f"the reply is longer than {MOST_BYTES} bytes")
        return count

    def response(self, method: str) -> http.client.HTTPResponse:
        """The head of what comes next."""
        response = http.client.HTTPResponse(self, method=method)  # type: ignore[arg-type]
        response.begin()
        return response

    def makefile(self, mode: str) -> io.BufferedReader:
        """What a response reads from."""
        return io.BufferedReader(_Received(self))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _seconds_left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Received(io.RawIOBase):
    """The bytes of one response; closing it leaves the connection open."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive(buffer)


def _addresses(host: str, port: int, seconds: float) -> list[Any]:
    """Look up a name, in a thread: the system may take minutes, and has no limit to set."""
    addresses: Future[list[Any]] = Future()

    def look_up() -> None:
        try:
            addresses.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            addresses.set_exception(error)

    Thread(target=look_up, daemon=True).start()
    return addresses.result(seconds)


def _place(url: SplitResult) -> tuple[str, int]:
    return url.hostname or "", url.port or _PORTS[url.scheme]


def _head(what: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{what} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
