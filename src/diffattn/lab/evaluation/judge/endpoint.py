"""A judge behind an OpenAI-compatible chat endpoint, with retries and limits."""

import asyncio
import email.utils
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any
from urllib.parse import unquote

import httpx2

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.evaluation.judge.interface import (
    JudgeFailure,
    JudgeSettings,
    JudgeUnreachable,
    Reply,
    login,
    proxy_for,
)
from diffattn.lab.evaluation.judge.prompt import storable
from diffattn.lab.evaluation.judge.redaction import Redaction

MOST_BYTES = 8 * 1024 * 1024
"""Largest answer."""
FAILURES = (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL)
"""What :func:`exchange` raises where there is no whole answer."""

for _name in ("httpx2", "httpcore2"):
    # Below this level they log URLs and headers, which may hold a key.
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server."""

    status: int
    retry_after: str | None
    content: bytes


def exchange(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    seconds: float,
    tls: ssl.SSLContext,
    proxy: str | None = None,
) -> Answer:
    """``POST`` a body. Redirects are not followed: they would carry the key to another host.

    ``seconds`` limit all of it: name look-up, connection, TLS, request and answer.

    Raises:
        FAILURES: There was no whole answer. The text may hold what the server sent.
    """
    headers = {
        "User-Agent": "diffattn",
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Type": "application/json",
        **headers,
    }

    async def post() -> Answer:
        # The client's own timeout restarts with every byte; this one covers the whole exchange.
        async with (
            asyncio.timeout(seconds),
            httpx2.AsyncClient(timeout=None, verify=tls, proxy=proxy, trust_env=False) as client,
            client.stream("POST", url, headers=headers, content=body) as response,
        ):
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MOST_BYTES:
                    raise OSError(f"the reply is longer than {MOST_BYTES} bytes")
            retry_after = response.headers.get("Retry-After")
            return Answer(response.status_code, retry_after, bytes(content))

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(post())
    finally:
        # A cancelled TLS handshake leaves its connection open; one more step of the loop closes it.
        for transport in list(getattr(loop, "_transports", {}).values()):
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()  # unlike asyncio.run, it does not wait for the look-up of a name


_REFUSALS = {401, 403, 404}
"""Wrong key, model or address: every other request would fail too."""
_TEMPORARY = {408, 409, 425, 429}
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
_MOST_CHARACTERS = 2**20
"""Of a reply; a longer one is no verdict, and would take long to search."""
_MOST_TOKENS = 2**53
_KEY = re.compile(r"[!-~]{1,4096}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(-\w+)?", re.ASCII)
"""A value in a query such as ``api-version=2024-10-21`` is no secret and may stand in replies."""
_LEAST_SECRET = 6
"""A shorter value in a query is no secret either."""


class _TemporaryFailure(Exception):
    """One attempt failed; the next may succeed."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class EndpointJudge:
    """``POST {endpoint}/chat/completions``, through the proxy that the environment names, if any.

    A subclass may ask for something else than a chat: it overrides ``path``, ``kind``,
    :meth:`body` and :meth:`text_of`.
    """

    path, kind = "/chat/completions", "chat completion"

    def __init__(self, settings: JudgeSettings) -> None:
        url = settings.url()
        if url is None:
            raise ConfigError("judge: endpoint must be set, got none.")
        self.settings, self.workers = settings, settings.workers
        path = url.path.rstrip("/").removesuffix(self.path) + self.path
        self._url, self._tls = url._replace(path=path).geturl(), ssl.create_default_context()
        proxy = proxy_for(url)
        self._proxy = proxy and proxy.geturl()
        self._key = _read_key(settings.who, settings.key_variable)
        account = (proxy and login(proxy)) or ""
        password = account.partition(":")[2]
        secrets = [self._key or "", account, password, *_secrets(url.query, settings.model)]
        self._redaction = Redaction(secrets, [url.query])

    def facts(self) -> dict[str, Any]:
        """The settings, without the endpoint's query and without the key."""
        return self.settings.facts()

    def body(self, messages: Any) -> dict[str, Any]:
        """The request, without model and settings."""
        return {"messages": messages}

    @staticmethod
    def text_of(choice: dict[str, Any]) -> Any:
        """The text of the first choice of an answer; KeyError or TypeError if there is none."""
        return choice["message"]["content"]

    def reply(self, name: str, messages: Any, stop: Event) -> Reply:
        """Ask until there is a reply, with exponential waits, at most ``max_attempts`` times."""
        settings = self.settings
        for attempt in range(1, settings.max_attempts + 1):
            try:
                text, details = self._read(self._post(messages))
                return Reply(text, details | {"attempts": attempt})
            except _TemporaryFailure as failure:
                reason, wait = str(failure), failure.wait_seconds
            if wait is None:
                wait = settings.first_wait_seconds * 2.0 ** (attempt - 1)
            is_last = attempt == settings.max_attempts
            if not is_last and stop.wait(min(wait, settings.longest_wait_seconds)):
                raise JudgeUnreachable(f"{settings.model}: given up, last: {reason}")
        raise JudgeUnreachable(
            f"{settings.model}: no reply after {settings.max_attempts} attempts, last: {reason}"
        )

    def _post(self, messages: Any) -> bytes:
        """The content of an answer with status 2xx.

        Failures are raised outside of ``except``: a chained exception would keep the request.
        """
        body: dict[str, Any] = {"model": self.settings.model, **self.body(messages)}
        for name in ("temperature", "max_tokens"):
            if getattr(self.settings, name) is not None:
                body[name] = getattr(self.settings, name)
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        seconds, content = self.settings.timeout_seconds, json.dumps(body).encode()
        answer: Answer | str
        try:
            answer = exchange(
                self._url, headers, content, seconds=seconds, tls=self._tls, proxy=self._proxy
            )
        except TimeoutError:
            answer = "TimeoutError: no whole answer within timeout_seconds"
        except FAILURES as error:
            answer = self._redaction.message(f"{type(error).__name__}: {error}")
        if isinstance(answer, str):
            raise _TemporaryFailure(answer)
        if answer.status >= 300:
            self._refuse(answer)
        return answer.content

    def _refuse(self, answer: Answer) -> None:
        """Raise the error of a status other than 2xx."""
        reason = self._redaction.message(f"HTTP {answer.status} {_readable(answer.content)}")
        if answer.status in _REFUSALS:
            raise DiffAttnError(
                f"{self.settings.who}: {self.facts()['endpoint']} must accept the key and know the "
                f"model {self.settings.model!r}, got {reason}"
            )
        if answer.status in _TEMPORARY or answer.status >= 500:
            raise _TemporaryFailure(reason, _retry_after(answer.retry_after))
        raise JudgeFailure(f"{self.settings.model}: {reason}")

    def _read(self, content: bytes) -> tuple[str, dict[str, Any]]:
        """Text and details of a completion."""
        value: dict[str, Any] | None
        try:
            value = json.loads(content)
            text = self.text_of(value["choices"][0])
        except (ValueError, LookupError, TypeError, RecursionError):
            value = None
        if value is None:
            raise _TemporaryFailure(
                f"no {self.kind}: {self._redaction.message(_readable(content))}"
            )
        model, finish = self.settings.model, self._name(value["choices"][0].get("finish_reason"))
        if not isinstance(text, str):
            raise JudgeFailure(f"{model}: a reply without text, finish reason {finish!r}")
        if len(text) > _MOST_CHARACTERS:
            raise JudgeFailure(f"{model}: a reply of more than {_MOST_CHARACTERS} characters")
        kept = self._redaction.reply(storable(text))
        if kept is None:
            raise JudgeFailure(f"{model}: a reply that repeats the key")
        usage = value.get("usage")
        counts = {name: usage.get(name) for name in _USAGE} if isinstance(usage, dict) else {}
        return kept, {
            "model": self._name(value.get("model")),
            "finish_reason": finish,
            "usage": {
                name: count
                for name, count in counts.items()
                if type(count) is int and 0 <= count <= _MOST_TOKENS
            },
        }

    def _name(self, value: Any) -> str | None:
        return self._redaction.name(storable(value)) if isinstance(value, str) else None


def _readable(content: bytes) -> str:
    """The beginning of an answer, for messages."""
    return content[:8192].decode("utf-8", "replace")


def _retry_after(value: str | None) -> float | None:
    """Seconds that a server asks to wait, given as a number or as a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _read_key(who: str, variable: str | None) -> str | None:
    """The key. No message names the variable: a key may have been typed in its place."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not _KEY.fullmatch(key):
        got = "other characters, or more than 4096" if key else "none"
        raise ConfigError(
            f"{who}: key_variable must name an environment variable that holds a key in printable "
            f"ASCII, got {got}."
        )
    return key


def _secrets(query: str, model: str) -> Iterator[str]:
    """Values of a URL's query that may be secret."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        for text in (value or name, unquote(value or name)):
            if len(text) >= _LEAST_SECRET and not _DATE.fullmatch(text) and text not in model:
                yield text
