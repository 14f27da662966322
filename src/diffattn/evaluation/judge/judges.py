"""Judges: a model behind an endpoint, a local model, or replies from a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.evaluation.judge.prompt import PROMPT_VERSION, Messages
from diffattn.inference.language_model import LanguageModel
from diffattn.inference.network_reader import ItemError
from diffattn.inference.prompting import require_no_special
from diffattn.records.io import read_jsonl

_LOCAL_TOKENS = 512


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
    """Requests that may run at once."""

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
    """Requests at once."""
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
    known = [one.name for one in fields(JudgeSettings) if one.name not in ("model", "endpoint")]
    values: dict[str, Any] = {}
    for change in changes:
        key, separator, text = change.partition("=")
        if not separator or key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"judge: --set must be KEY=VALUE, KEY in {{{', '.join(known)}}}, got {change!r}."
                f"{hint}"
            )
        try:
            values[key] = json.loads(text)
        except json.JSONDecodeError:
            values[key] = text
    try:
        return JudgeSettings(model=model, endpoint=endpoint, **values)
    except TypeError as error:  # a value of the wrong type
        raise ConfigError(f"judge: settings must have the right types, got {error}.") from error


def chosen_judge(
    settings: JudgeSettings,
    *,
    replies: Path | None = None,
    device: str | None = None,
    dtype: str = "float32",
) -> "Judge":
    """The judge that the settings mean: recorded replies, an endpoint, or a local model.

    Args:
        settings: How a judge is asked.
        replies: File of replies; then nobody is asked.
        device: Of a local model. Default: CUDA if there is any.
        dtype: Of a local model's weights.

    Raises:
        ConfigError: The endpoint, its key, the replies or an option is wrong.
        CheckpointError: There is no such model or file.
    """
    if replies is not None:
        return RecordedReplies(replies, settings)
    if settings.endpoint is not None:
        from diffattn.evaluation.judge.endpoint import EndpointJudge

        return EndpointJudge(settings)
    return LocalJudge(LanguageModel.load(settings.model, device=device, dtype=dtype), settings)


class LocalJudge:
    """A causal language model on this machine, greedy, by its chat template if it has one."""

    workers = 1

    def __init__(self, model: LanguageModel, settings: JudgeSettings) -> None:
        self.model, self.settings = model, settings

    def facts(self) -> dict[str, Any]:
        """The settings, and which weights."""
        return self.settings.facts() | {"weights": self.model.facts()["weights"]}

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """Greedy reply to one request."""
        tokenizer = self.model.tokenizer
        if getattr(tokenizer, "chat_template", None):
            try:
                for message in messages:
                    require_no_special(self.model, message["content"])
            except ItemError as error:  # what is judged could otherwise write its own verdict
                raise JudgeFailure(f"{self.settings.model}: {error}") from error
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = self.model.encode(text, special=True)  # the template writes BOS itself
        else:
            ids = self.model.encode_prompt("\n\n".join(m["content"] for m in messages) + "\n\n")
        limit = self.settings.max_tokens or _LOCAL_TOKENS
        try:
            (found,) = self.model.generate([ids], max_new_tokens=limit)
        except ItemError as error:
            raise JudgeFailure(f"{self.settings.model}: {error}") from error
        return Reply(found.text, {"finished": found.finished})


class RecordedReplies:
    """Replies that were obtained elsewhere: JSON lines with ``id`` and ``reply``.

    Raises:
        ConfigError: A line has other fields.
        CheckpointError: The file is missing or damaged.
    """

    workers = 1

    def __init__(self, path: Path, settings: JudgeSettings) -> None:
        self.path, self.settings = path, settings
        self.replies: dict[str, str] = {}
        for number, row in enumerate(read_jsonl(path), start=1):
            if not isinstance(row.get("id"), str) or not isinstance(row.get("reply"), str):
                raise ConfigError(
                    f"{path}:{number}: must hold the texts 'id' and 'reply', got {sorted(row)}."
                )
            self.replies[row["id"]] = row["reply"]

    def facts(self) -> dict[str, Any]:
        """The settings."""
        return self.settings.facts()

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """The reply of this name."""
        if name not in self.replies:
            raise JudgeFailure(f"{self.path}: must hold a reply to {name!r}, got none.")
        return Reply(self.replies[name])
