"""Judges: a model behind an OpenAI-compatible endpoint, a local model, or replies from a file."""

import email.utils
import json
import logging
import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import httpx2

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.io import read_plain_jsonl
from diffattn.lab.evaluation.judge.interface import (
    Judge,
    JudgeFailure,
    JudgeSettings,
    JudgeUnreachable,
    Messages,
    Reply,
    storable,
)

if TYPE_CHECKING:  # an endpoint and recorded replies need no torch
    from diffattn.lab.inference.language_model import LanguageModel

# At lower levels httpx2 logs URLs, whose query may hold a key.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_MOST_BYTES = 8 * 1024 * 1024  # size of the largest answer that is accepted


class _TemporaryFailure(Exception):
    """One attempt failed, but the next one may succeed."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class EndpointJudge(Judge):
    """A client of ``POST {endpoint}/chat/completions``. It uses the environment's proxy, if any."""

    def __init__(self, settings: JudgeSettings) -> None:
        url = settings.url()
        assert url is not None, "a judge at an endpoint has its address"
        super().__init__(settings)
        self.workers = settings.workers
        path = url.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self._url, self._tls = url._replace(path=path).geturl(), ssl.create_default_context()
        self._key = os.environ.get(settings.key_variable or "", "").strip()
        # The user may have typed the key instead of the variable's name, so it is not shown.
        if settings.key_variable is not None and not (self._key.isascii() and self._key):
            raise ConfigError(
                "judge: key_variable must name an environment variable that holds a key, "
                "got another name."
            )

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """Ask until there is a reply, at most ``max_attempts`` times, with growing waits."""
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

    def _post(self, messages: Messages) -> str:
        """The content of an answer with status 2xx; an exception for other statuses, also for
        redirects, which would send the key to another host."""
        settings = self.settings
        options = {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
        sent = {name: value for name, value in options.items() if value is not None}
        try:
            status, headers, content = self._exchange(
                {"model": settings.model, "messages": messages, **sent}
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            raise _TemporaryFailure(self._shown(f"{type(error).__name__}: {error}")) from None
        if status < 300:
            return content
        reason = self._shown(f"HTTP {status} {content}")
        if status in (401, 403, 404):  # a wrong key, model or address: every request would fail
            raise DiffAttnError(
                f"judge: {self.facts()['endpoint']} must accept the key and know the "
                f"model {settings.model!r}, got {reason}"
            )
        if status in (408, 409, 425, 429) or status >= 500:
            raise _TemporaryFailure(reason, _retry_after(headers.get("Retry-After")))
        raise JudgeFailure(f"{settings.model}: {reason}")

    def _exchange(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str]:
        """Status, headers and text of an answer, within limits of time and size."""
        seconds = self.settings.timeout_seconds
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        ends, content = time.monotonic() + seconds, bytearray()
        with httpx2.stream(
            "POST", self._url, json=body, headers=headers, timeout=seconds, verify=self._tls
        ) as answer:
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > _MOST_BYTES:
                    raise OSError(f"the reply is longer than {_MOST_BYTES} bytes")
                if time.monotonic() > ends:  # the client's timeout restarts with every byte
                    raise TimeoutError("no whole answer within timeout_seconds")
        return answer.status_code, answer.headers, content.decode("utf-8", "replace")

    def _read(self, content: str) -> tuple[str, dict[str, Any]]:
        try:
            value = json.loads(content)
            choice = value["choices"][0]
            text = choice["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _TemporaryFailure(f"no completion: {self._shown(content)}") from error
        finish = choice.get("finish_reason")
        if not isinstance(text, str):
            raise JudgeFailure(
                f"{self.settings.model}: a reply without text, finish reason {finish!r}"
            )
        known = {name: value.get(name) for name in ("model", "usage")}
        if len(self._key) >= 8:  # a shorter one, such as ``EMPTY``, may be a usual word
            text = text.replace(self._key, "[key]")
        return storable(text), known | {"finish_reason": finish}

    def _shown(self, text: str) -> str:
        """The beginning of a text on one line, without the key."""
        text = text.replace(self._key, "[key]") if self._key else text
        return " ".join(text.split())[:300]


def _retry_after(value: str | None) -> float | None:
    """Seconds in a Retry-After header, a number or a date; ``None`` if it is missing or unknown."""
    if value is None:
        return None
    try:
        if value.isdecimal():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def chosen_judge(
    settings: JudgeSettings, replies: Path | None, device: str | None, dtype: str
) -> Judge:
    """The judge: recorded ``replies`` if given, else the endpoint if set, else a local model."""
    if replies is not None:
        return RecordedReplies(replies, settings)
    if settings.endpoint is not None:
        return EndpointJudge(settings)
    from diffattn.lab.inference.language_model import LanguageModel

    return LocalJudge(LanguageModel.load(settings.model, device=device, dtype=dtype), settings)


class LocalJudge(Judge):
    """A language model on this machine. It decodes greedily, with its chat template if any."""

    def __init__(self, model: "LanguageModel", settings: JudgeSettings) -> None:
        super().__init__(settings)
        self.model = model

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"weights": self.model.facts()["weights"]}

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        from diffattn.lab.inference.decoding import require_no_special
        from diffattn.lab.inference.network_reader import ItemError

        texts = [message["content"] for message in messages]
        limit, tokenizer = self.settings.max_tokens or 512, self.model.tokenizer
        try:
            if getattr(tokenizer, "chat_template", None):
                for text in texts:  # otherwise a judged output could write its own verdict
                    require_no_special(self.model, text)
                turns = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
                ids = self.model.encode(turns, special=True)  # the template has BOS already
            else:
                ids = self.model.encode_prompt("\n\n".join(texts) + "\n\n")
            (written,) = self.model.generate([ids], max_new_tokens=limit)
        except ItemError as error:
            raise JudgeFailure(f"{self.settings.model}: {error}") from error
        return Reply(written.text, {"finished": written.finished})


class RecordedReplies(Judge):
    """Replies from a file: JSON lines with ``id``, the name of the request, and ``reply``."""

    def __init__(self, path: Path, settings: JudgeSettings) -> None:
        super().__init__(settings)
        self.path = path
        self.replies: dict[str, str] = {}
        for number, row in enumerate(read_plain_jsonl(path), start=1):
            if not all(isinstance(row.get(key), str) for key in ("id", "reply")):
                raise ConfigError(
                    f"{path}:{number}: must hold the texts 'id' and 'reply', got {sorted(row)}."
                )
            self.replies[row["id"]] = storable(row["reply"])

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        if name not in self.replies:
            raise JudgeFailure(f"{self.path}: must hold a reply to {name!r}, got none.")
        return Reply(self.replies[name])
