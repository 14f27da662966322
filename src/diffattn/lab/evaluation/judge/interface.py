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


class JudgeFailure(DiffAttnError):
    """There is no reply to one request. This is recorded, and the next call asks again."""


class JudgeUnreachable(JudgeFailure):
    """There is no reply after all attempts, so the next request may fail, too."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a judge."""

    text: str
    details: dict[str, Any] = field(default_factory=dict)
    """Details for the log, such as the endpoint's model name, attempts and usage."""


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a judge."""

    limits: ClassVar[dict[str, tuple[float, float]]] = {
        "temperature": (0.0, 100.0), "max_tokens": (1, 2**31 - 1), "workers": (1, 1000),
        "timeout_seconds": (0.001, 86_400.0), "max_attempts": (1, 1000),
        "first_wait_seconds": (0.0, 86_400.0), "longest_wait_seconds": (0.0, 86_400.0),
        "give_up_after": (1, 10**9),
    }  # fmt: skip
    """Setting to its smallest and largest value. The value must be an integer if the limits are."""
    model: str
    """Name of the model at the endpoint; without an endpoint a local folder or a hub name."""
    endpoint: str | None = field(default=None, repr=False)
    """Base URL of an OpenAI-compatible server, for example ``https://api.openai.com/v1``."""
    key_variable: str | None = None
    """Name of the environment variable that holds the key. The key itself is never recorded.
    Default: no key is sent."""
    name: str | None = None
    """Name in the result folders. Default: the model's name, or the last part of its folder."""
    document: str = "whole"
    """Check against the ``"whole"`` document, as in the reference, or the part ``"read"``."""
    temperature: float | None = None
    """Default: not sent, as in the reference; the server decides. Local models are greedy."""
    max_tokens: int | None = None
    """Most tokens of a reply. Default: not sent; 512 for a local model."""
    workers: int = 4  # number of parallel requests
    timeout_seconds: float = 120.0  # of one attempt
    max_attempts: int = 6
    """Attempts per request, after timeouts and other failures that may be temporary."""
    first_wait_seconds: float = 1.0
    """Wait before the second attempt; it doubles each time. A server's Retry-After overrides it."""
    longest_wait_seconds: float = 120.0
    """Longest wait, even if the server asks for more."""
    give_up_after: int = 8
    """After so many failed requests in a row, the other requests are left for the next call."""

    def __post_init__(self) -> None:
        for name, (low, high) in self.limits.items():
            value = getattr(self, name)
            if value is None and name in ("temperature", "max_tokens"):
                continue
            kinds = int if isinstance(high, int) else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                noun = "a whole number" if kinds is int else "a number"
                shown = "a longer number" if len(repr(value)) > 40 else repr(value)
                raise ConfigError(
                    f"judge: {name} must be {noun} from {low} to {high}, got {shown}."
                )
        for name in ("model", "name", "key_variable"):
            value = getattr(self, name)
            if (value is not None or name == "model") and (not value or not isinstance(value, str)):
                raise ConfigError(f"judge: {name} must be text, got something else.")
        if self.document not in ("whole", "read"):
            raise ConfigError("judge: document must be 'whole' or 'read', got something else.")
        self.url()

    def url(self) -> SplitResult | None:
        """The parts of the endpoint's URL; ``None`` without an endpoint; raises if it is wrong."""
        if self.endpoint is None:
            return None
        try:
            url = urlsplit(self.endpoint)
            sound = url.scheme in ("http", "https") and url.hostname and url.port != 0
        except ValueError:
            sound = False
        # The value may hold a key, so no message shows it.
        if not sound or "@" in url.netloc or url.fragment:
            raise ConfigError(
                "judge: endpoint must be a URL such as https://host/v1, without user, "
                "password and fragment, got something else. A key goes by key_variable."
            )
        return url

    @property
    def folder_name(self) -> str:
        """The name in the result folders; see ``name``. Unsafe characters become hyphens."""
        name = self.name
        if name is None:
            is_folder = self.endpoint is None and os.path.isdir(self.model)
            name = Path(self.model).resolve().name if is_folder else self.model
        return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "judge"

    def facts(self) -> dict[str, Any]:
        """The settings that decide a verdict, without the query of the URL: it may hold a key."""
        kept = ("model", "document", "temperature", "max_tokens")
        url = self.url()
        place = url and f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}"
        values = {name: getattr(self, name) for name in kept} | {"prompt": PROMPT_VERSION}
        return values | {"endpoint": place and place.removesuffix("/chat/completions")}


class Judge(ABC):
    """A model that answers messages with text."""

    workers = 1  # number of requests that may run in parallel

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings

    def facts(self) -> dict[str, Any]:
        """Description for records, without a key."""
        return self.settings.facts()

    @abstractmethod
    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """Answer one request. The caller sets ``stop`` when it gives up; then waits end early.

        Raises:
            JudgeFailure: There is no reply to this request.
            DiffAttnError: No request would get a reply, for example because the key is wrong.
        """


def judge_settings(model: str, endpoint: str | None, changes: Sequence[str]) -> JudgeSettings:
    """Settings of a judge at an endpoint, or of a local model, with changes ``KEY=VALUE``."""
    known = [f.name for f in fields(JudgeSettings) if f.name not in ("model", "endpoint")]
    # JudgeSettings checks the types: its messages show no value, which may be a key.
    values = read_settings(changes, dict.fromkeys(known, Any))
    return JudgeSettings(model=model, endpoint=endpoint, **values)
