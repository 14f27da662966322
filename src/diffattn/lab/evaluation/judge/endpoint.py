"""A judge behind an OpenAI-compatible chat endpoint, with retries and limits."""

import email.utils
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from http.client import MULTIPLE_CHOICES
from threading import Event
from typing import Any
from urllib.parse import unquote

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.evaluation.judge.address import login, proxy_for
from diffattn.lab.evaluation.judge.exchange import FAILURES, Answer, exchange
from diffattn.lab.evaluation.judge.interface import (
    JudgeFailure,
    JudgeSettings,
    JudgeUnreachable,
    Reply,
)
from diffattn.lab.evaluation.judge.prompt import storable
from diffattn.lab.evaluation.judge.redaction import Redaction

_REFUSALS = {401, 403, 404}
"""Wrong key, model or address: no request will fare better."""
_PASSING = {408, 409, 425, 429}
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
_LONGEST = 2**20
"""Characters of a reply; more is no verdict, and would take long to look through."""
_MOST_TOKENS = 2**53
_KEY = re.compile(r"[!-~]{1,4096}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(-\w+)?", re.ASCII)
"""Such a value in a query (``api-version=2024-10-21``) is no secret, and may stand in replies."""
_SHORT = 6
"""So is a shorter one."""


class _Passing(Exception):
    """One attempt failed in a way that the next may not."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class EndpointJudge:
    """``POST {endpoint}/chat/completions``, through the proxy that the environment names, if any.

    A subclass may ask for something else than a chat: it says where, what is sent, and where the
    text stands in an answer.

    Args:
        settings: With an ``endpoint``.

    Raises:
        ConfigError: There is no endpoint, the key's variable is not set, or the proxy is no URL.
    """

    path, kind = "/chat/completions", "chat completion"

    def __init__(self, settings: JudgeSettings) -> None:
        url = settings.url()
        if url is None:
            raise ConfigError("judge: endpoint must be set, got none.")
        path = url.path.rstrip("/")
        self.settings, self.workers = settings, settings.workers
        self._url = url._replace(path=path if path.endswith(self.path) else path + self.path)
        self._proxy = proxy_for(url)
        self._key = _key(settings.who, settings.key_variable)
        account = (self._proxy and login(self._proxy)) or ""
        password = account.partition(":")[2]
        secrets = [self._key or "", account, password, *_values(url.query, settings.model)]
        self._redaction = Redaction(secrets, [url.query])

    def facts(self) -> dict[str, Any]:
        """The settings; of the endpoint neither query nor key."""
        return self.settings.facts()

    def body(self, messages: Any) -> dict[str, Any]:
        """What is sent, without model and settings."""
        return {"messages": messages}

    @staticmethod
    def text_of(choice: dict[str, Any]) -> Any:
        """The text of the first choice of an answer; KeyError or TypeError if it has no place."""
        return choice["message"]["content"]

    def reply(self, name: str, messages: Any, stop: Event) -> Reply:
        """Ask until there is a reply, with exponential waits, at most ``max_attempts`` times."""
        reason = ""
        for attempt in range(1, self.settings.max_attempts + 1):
            try:
                text, details = self._ask(messages)
                return Reply(text, details | {"attempts": attempt})
            except _Passing as failure:
                reason = str(failure)
                wait = failure.wait_seconds
                if wait is None:
                    wait = self.settings.first_wait_seconds * 2.0 ** (attempt - 1)
            if attempt == self.settings.max_attempts:
                break
            if stop.wait(min(wait, self.settings.longest_wait_seconds)):
                raise JudgeUnreachable(f"{self.settings.model}: given up, last: {reason}")
        raise JudgeUnreachable(
            f"{self.settings.model}: no reply after {self.settings.max_attempts} attempts, "
            f"last: {reason}"
        )

    def _ask(self, messages: Any) -> tuple[str, dict[str, Any]]:
        """One attempt."""
        answer = self._answer(messages)
        if isinstance(answer, str):
            raise _Passing(answer)
        if answer.status >= MULTIPLE_CHOICES:
            self._refuse(answer)
        return self._completion(answer.content)

    def _answer(self, messages: Any) -> Answer | str:
        """What the server answers, or why there is nothing. No exception holds what was sent."""
        body: dict[str, Any] = {"model": self.settings.model, **self.body(messages)}
        for name in ("temperature", "max_tokens"):
            if getattr(self.settings, name) is not None:
                body[name] = getattr(self.settings, name)
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        seconds = self.settings.timeout_seconds
        content = json.dumps(body).encode()
        try:
            return exchange(self._url, headers, content, seconds=seconds, proxy=self._proxy)
        except TimeoutError:
            return "TimeoutError: no whole answer within timeout_seconds"
        except FAILURES as error:
            return self._redaction.message(f"{type(error).__name__}: {error}")

    def _refuse(self, answer: Answer) -> None:
        """Raise what a status other than 2xx means."""
        reason = self._redaction.message(f"HTTP {answer.status} {_readable(answer.content)}")
        if answer.status in _REFUSALS:
            raise DiffAttnError(
                f"{self.settings.who}: {self.facts()['endpoint']} must accept the key and know the "
                f"model {self.settings.model!r}, got {reason}"
            )
        if answer.status in _PASSING or answer.status >= 500:
            raise _Passing(reason, _retry_after(answer.retry_after))
        raise JudgeFailure(f"{self.settings.model}: {reason}")

    def _completion(self, content: bytes) -> tuple[str, dict[str, Any]]:
        """Text and details of a chat completion."""
        value = _completion(content, self.text_of)
        if value is None:
            raise _Passing(f"no {self.kind}: {self._redaction.message(_readable(content))}")
        text = self.text_of(value["choices"][0])
        finish = self._name(value["choices"][0].get("finish_reason"))
        if not isinstance(text, str):
            raise JudgeFailure(
                f"{self.settings.model}: a reply without text, finish reason {finish!r}"
            )
        if len(text) > _LONGEST:
            raise JudgeFailure(f"{self.settings.model}: a reply of more than {_LONGEST} characters")
        kept = self._redaction.reply(storable(text))
        if kept is None:
            raise JudgeFailure(f"{self.settings.model}: a reply that repeats the key")
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
        """A word of the server, if it is one."""
        return self._redaction.name(storable(value)) if isinstance(value, str) else None


def _completion(content: bytes, text_of: Callable[[dict[str, Any]], Any]) -> dict[str, Any] | None:
    """A completion, if it is one."""
    try:
        value: dict[str, Any] = json.loads(content)
        text_of(value["choices"][0])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return value


def _readable(content: bytes) -> str:
    """The beginning of what a server sent, of which messages show less."""
    return content[:8192].decode("utf-8", "replace")


def _retry_after(value: str | None) -> float | None:
    """Seconds that a server asks to wait, given as such or as a date."""
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


def _key(who: str, variable: str | None) -> str | None:
    """The key. The variable is not named: a key may have been typed in its place."""
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


def _values(query: str, model: str) -> Iterator[str]:
    """What of a URL's query may be a secret."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        for text in (value or name, unquote(value or name)):
            if len(text) >= _SHORT and not _DATE.fullmatch(text) and text not in model:
                yield text
