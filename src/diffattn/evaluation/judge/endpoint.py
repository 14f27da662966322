"""A judge behind an OpenAI-compatible chat endpoint, with retries and limits."""

import email.utils
import http.client
import io
import json
import os
import socket
import time
import urllib.error
import urllib.request
from threading import Event
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.evaluation.judge.interface import JudgeFailure, JudgeSettings, JudgeUnreachable, Reply
from diffattn.evaluation.judge.prompt import Messages

_REFUSALS = {401, 403, 404}
"""Wrong key, model or address: no request will fare better."""
_PASSING = {408, 409, 425, 429}
_PATH = "/chat/completions"
_MOST_BYTES = 8 * 1024 * 1024


class _Passing(Exception):
    """One attempt failed in a way that the next may not."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _TimedBytes(io.RawIOBase):
    """What a socket receives until a point in time, however slowly it drips."""

    def __init__(self, connection: socket.socket, received: Any, until: float) -> None:
        self._connection, self._received, self._until = connection, received, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the reply took longer than timeout_seconds")
        self._connection.settimeout(left)
        count: int | None = self._received.readinto(buffer)
        return count

    def close(self) -> None:
        self._received.close()
        super().close()


def _timed(kind: type[http.client.HTTPConnection]) -> Any:
    """Connections whose timeout holds for a whole response, its headers included: that of the
    standard library restarts with every byte."""

    def connect(host: str, **options: Any) -> http.client.HTTPConnection:
        connection = kind(host, **options)
        until = time.monotonic() + options["timeout"]

        def respond(receiver: socket.socket, **details: Any) -> http.client.HTTPResponse:
            response = http.client.HTTPResponse(receiver, **details)
            received = response.fp.detach()
            response.fp = io.BufferedReader(_TimedBytes(receiver, received, until))
            return response

        connection.response_class = respond  # type: ignore[assignment]  # called like the class
        return connection

    return connect


class _TimedHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens both schemes with :func:`_timed` connections."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_timed(http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_timed(http.client.HTTPSConnection), request)


class EndpointJudge:
    """``POST {endpoint}/chat/completions``.

    Args:
        settings: With an ``endpoint``.

    Raises:
        ConfigError: The endpoint is no plain http(s) URL, or the key's variable is not set.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings, self.workers = settings, settings.workers
        self.url = _chat_url(settings.endpoint or "")
        self._key = _key(settings.key_variable)
        self._opener = urllib.request.build_opener(_NoRedirects, _TimedHandler)

    def facts(self) -> dict[str, Any]:
        """The settings; of the endpoint neither query nor key."""
        return self.settings.facts() | {"endpoint": self._address()}

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
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
                    wait = self.settings.first_wait_seconds * 2 ** (attempt - 1)
            if attempt == self.settings.max_attempts:
                break
            if stop.wait(min(wait, self.settings.longest_wait_seconds)):
                raise JudgeUnreachable(f"{self.settings.model}: given up, last: {reason}")
        raise JudgeUnreachable(
            f"{self.settings.model}: no reply after {self.settings.max_attempts} attempts, "
            f"last: {reason}"
        )

    def _ask(self, messages: Messages) -> tuple[str, dict[str, Any]]:
        """One attempt."""
        body: dict[str, Any] = {"model": self.settings.model, "messages": messages}
        for name in ("temperature", "max_tokens"):
            if getattr(self.settings, name) is not None:
                body[name] = getattr(self.settings, name)
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with self._opener.open(request, timeout=self.settings.timeout_seconds) as response:
                content = _read(response)
        except urllib.error.HTTPError as error:
            with error:
                self._refuse(error)
        except (OSError, http.client.HTTPException) as error:  # a URLError is an OSError
            raise _Passing(self._plain(f"{type(error).__name__}: {error}")) from error
        return self._completion(content)

    def _refuse(self, error: urllib.error.HTTPError) -> None:
        """Raise what a status other than 2xx means."""
        try:
            said = _read(error)[:300].decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, _Passing):
            said = ""  # the status alone must do
        reason = self._plain(f"HTTP {error.code} {said}")
        if error.code in _REFUSALS:
            raise DiffAttnError(
                f"judge: {self._address()} must accept the key and know the model "
                f"{self.settings.model!r}, got {reason}"
            ) from error
        if error.code in _PASSING or error.code >= 500:
            raise _Passing(reason, _retry_after(error.headers.get("Retry-After"))) from error
        raise JudgeFailure(f"{self.settings.model}: {reason}") from error

    def _completion(self, content: bytes) -> tuple[str, dict[str, Any]]:
        """Text and details of a chat completion."""
        try:
            value = json.loads(content)
            choice = value["choices"][0]
            text = choice["message"]["content"]
        except (ValueError, LookupError, TypeError) as error:
            said = content[:200].decode("utf-8", "replace")
            raise _Passing(self._plain(f"no chat completion: {said!r}")) from error
        finish = str(choice.get("finish_reason"))
        if not isinstance(text, str):
            raise JudgeFailure(
                f"{self.settings.model}: a reply without text, finish reason {finish!r}"
            )
        usage = value.get("usage")
        counts = usage.items() if isinstance(usage, dict) else ()
        return _unicode(text), {
            "model": _unicode(str(value.get("model"))),
            "finish_reason": _unicode(finish),
            "usage": {name: count for name, count in counts if isinstance(count, int)},
        }

    def _address(self) -> str:
        """The endpoint without its query, in which some servers take keys."""
        return urlunsplit((*urlsplit(self.url)[:3], "", "")).removesuffix(_PATH)

    def _plain(self, text: str) -> str:
        """One line without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "[key]")
        return " ".join(text.split())


def _read(response: Any) -> bytes:
    """The whole body, but not without bound."""
    content: bytes = response.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise _Passing(f"the reply is longer than {_MOST_BYTES} bytes")
    return content


def _unicode(text: str) -> str:
    """JSON can spell lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


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
    except ValueError:
        return None


def _chat_url(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"judge: endpoint must be a URL such as https://host/v1, got {endpoint!r}."
        )
    if parts.username or parts.password:
        raise ConfigError(
            "judge: endpoint must be without user and password, got some. Use key_variable."
        )
    path = parts.path.rstrip("/")
    if not path.endswith(_PATH):
        path += _PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        got = "other characters" if key else "none"
        raise ConfigError(
            f"judge: the environment variable {variable} must hold a key in ASCII, got {got}."
        )
    return key
