"""What a judge is: how it is asked, what it answers, and how it fails."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from threading import Event
from typing import Any, Protocol

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.evaluation.judge.prompt import PROMPT_VERSION, Messages
from diffattn.records.settings import parse_value, read_settings


class JudgeFailure(DiffAttnError):
    """No reply to one request. It is recorded, and asked for again by the next call."""


class JudgeUnreachable(JudgeFailure):
    """No reply after all attempts: the next request may fare no better."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a judge wrote."""

    text: str
    details: dict[str, Any] = field(default_factory=dict)
    """For the log: model named by the endpoint, attempts, usage."""


class Judge(Protocol):
    """Messages to text."""

    workers: int
    """Requests that may run in parallel."""

    def facts(self) -> dict[str, Any]:
        """What a record says of the judge. Never a key."""
        ...

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """Answer one request.

        Args:
            name: Of the request, unique within an evaluation folder.
            messages: ``role`` and ``content``.
            stop: Set when the caller gives up; long waits end early.

        Raises:
            JudgeFailure: There is no reply to this request.
            DiffAttnError: There will be none to any.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """How a judge is asked."""

    model: str
    """Name of the model at the endpoint; without one, a local model folder or hub name."""
    endpoint: str | None = None
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
        if not self.model:
            raise ConfigError("judge: model must be named, got none.")
        if self.document not in ("whole", "read"):
            raise ConfigError(f"judge: document must be 'whole' or 'read', got {self.document!r}.")
        for name in ("workers", "max_attempts", "give_up_after"):
            self._require_count(name)
        if self.max_tokens is not None:
            self._require_count("max_tokens")
        if not isinstance(self.temperature, int | float | None):
            raise ConfigError(f"judge: temperature must be a number, got {self.temperature!r}.")
        if self.timeout_seconds <= 0 or self.first_wait_seconds < 0:
            raise ConfigError(
                "judge: timeout_seconds must be positive and first_wait_seconds not negative, "
                f"got {self.timeout_seconds}, {self.first_wait_seconds}."
            )

    def _require_count(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"judge: {name} must be a number from 1 on, got {value!r}.")

    def facts(self) -> dict[str, Any]:
        """What decides a verdict: pace and key are left out."""
        kept = ("model", "endpoint", "document", "temperature", "max_tokens")
        values = asdict(self)
        return {name: values[name] for name in kept} | {"prompt": PROMPT_VERSION}


def judge_settings(model: str, endpoint: str | None, changes: Sequence[str]) -> JudgeSettings:
    """Settings from what a user types.

    Args:
        model: Name of the judge.
        endpoint: Its server, or ``None`` for a local model.
        changes: ``KEY=VALUE``; values are JSON, else text.

    Raises:
        ConfigError: An unknown key or a value that cannot be.
    """
    known = [f.name for f in fields(JudgeSettings) if f.name not in ("model", "endpoint")]
    values = {key: parse_value(key, text) for key, text in read_settings(changes, known).items()}
    try:
        return JudgeSettings(model=model, endpoint=endpoint, **values)
    except TypeError as error:  # a value of the wrong type
        raise ConfigError(f"judge: settings must have the right types, got {error}.") from error
