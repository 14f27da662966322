"""The interface of a judge: settings, replies and failures."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Event
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.evaluation.judge.prompt import PROMPT_VERSION, Messages
from diffattn.lab.records.settings import read_settings

_LIMITS = {
    "temperature": (0.0, 100.0), "max_tokens": (1, 2**31 - 1), "workers": (1, 1000),
    "timeout_seconds": (0.001, 86_400.0), "max_attempts": (1, 1000),
    "first_wait_seconds": (0.0, 86_400.0), "longest_wait_seconds": (0.0, 86_400.0),
    "give_up_after": (1, 10**9),
}  # fmt: skip
"""Whole numbers where the limits are."""


class JudgeFailure(DiffAttnError):
    """No reply to one request. It is recorded, and the next call asks again."""


class JudgeUnreachable(JudgeFailure):
    """No reply after all attempts: the next request may fail too."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The text of a judge."""

    text: str
    details: dict[str, Any] = field(default_factory=dict)
    """For the log: model named by the endpoint, attempts, usage."""


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a judge."""

    who: ClassVar[str] = "judge"
    """Name at the beginning of error messages."""
    model: str
    """Name of the model at the endpoint; without one, a local model folder or hub name."""
    endpoint: str | None = field(default=None, repr=False)
    """Base URL of an OpenAI-compatible server, for example ``https://api.openai.com/v1``."""
    key_variable: str | None = None
    """Name of the environment variable that holds the key. The key itself is never recorded.
    Default: no key is sent."""
    name: str | None = None
    """Names the result folders. Default: the model's name, of a local folder its last part."""
    document: str = "whole"
    """Check against the ``"whole"`` document, as the reference does, or the part ``"read"``."""
    temperature: float | None = None
    """Default: not sent, so the server's own, as in the reference. Local models are greedy."""
    max_tokens: int | None = None
    """Of a reply. Default: not sent; 512 for a local model."""
    workers: int = 4
    """Requests in parallel."""
    timeout_seconds: float = 120.0
    """For one whole attempt."""
    max_attempts: int = 6
    """Per request, for failures that may pass: no connection, time-outs, 408, 409, 429, 5xx,
    replies that are no chat completion."""
    first_wait_seconds: float = 1.0
    """Before the second attempt; doubles each time. A server's Retry-After is kept to."""
    longest_wait_seconds: float = 120.0
    """No wait is longer, whatever a server asks for."""
    give_up_after: int = 8
    """Requests in a row whose attempts all failed, after which the rest is left for the next
    call."""

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            self._require_number(name, low, high)
        for name in ("model", "name", "key_variable"):
            value = getattr(self, name)
            if (value is not None or name == "model") and (not value or not isinstance(value, str)):
                raise ConfigError(f"{self.who}: {name} must be text, got something else.")
        if self.document not in ("whole", "read"):
            raise ConfigError("judge: document must be 'whole' or 'read', got something else.")
        self.url()

    def _require_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is None and name in ("temperature", "max_tokens"):
            return
        kinds = int if isinstance(high, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            noun = "a whole number" if kinds is int else "a number"
            shown = "a longer number" if len(repr(value)) > 40 else repr(value)
            raise ConfigError(
                f"{self.who}: {name} must be {noun} from {low} to {high}, got {shown}."
            )

    def url(self) -> SplitResult | None:
        """The endpoint's parts."""
        if self.endpoint is None:
            return None
        try:
            url = urlsplit(self.endpoint)
            sound = url.scheme in ("http", "https") and url.hostname and url.port != 0
        except ValueError:
            sound = False
        # What was typed may hold a key, so no message shows it.
        if not sound or "@" in url.netloc or url.fragment:
            raise ConfigError(
                f"{self.who}: endpoint must be a URL such as https://host/v1, without user, "
                "password and fragment, got something else. A key goes by key_variable."
            )
        return url

    @property
    def folder_name(self) -> str:
        """Names the result folders: as set, else the model, of a local folder its last part."""
        name = self.name
        if name is None:
            is_folder = self.endpoint is None and os.path.isdir(self.model)
            name = Path(self.model).resolve().name if is_folder else self.model
        return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "judge"

    def facts(self) -> dict[str, Any]:
        """The settings that decide a verdict, without the endpoint's query: it may hold a key."""
        kept = ("model", "document", "temperature", "max_tokens")
        url = self.url()
        place = url and f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"
        values = {name: getattr(self, name) for name in kept} | {"prompt": PROMPT_VERSION}
        return values | {"endpoint": place and place.removesuffix("/chat/completions")}


class Judge(ABC):
    """Messages to text."""

    workers = 1
    """Requests that may run in parallel."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings

    def facts(self) -> dict[str, Any]:
        """Description for records, without a key."""
        return self.settings.facts()

    @abstractmethod
    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """Answer one request, whose name is unique within an evaluation folder.

        ``stop`` is set when the caller gives up; long waits end early.

        Raises:
            JudgeFailure: There is no reply to this request.
            DiffAttnError: There will be no reply to any request.
        """


def judge_settings(model: str, endpoint: str | None, changes: Sequence[str]) -> JudgeSettings:
    """Settings of a judge at a server, or of a local model, with changes ``KEY=VALUE``."""
    known = [f.name for f in fields(JudgeSettings) if f.name not in ("model", "endpoint")]
    # Their types are checked below, by messages that show no value: it may be a key.
    values = read_settings(changes, dict.fromkeys(known, Any))
    return JudgeSettings(model=model, endpoint=endpoint, **values)
