"""What a judge is: how it is asked, in what words, what it answers, and how it fails."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from threading import Event
from typing import Any, Protocol

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.records.settings import parse_value, read_settings

PROMPT_VERSION = 1
"""Raised with any change of the prompt or of how replies are read."""
Messages = list[dict[str, str]]

_TASK = (
    "Below are a document and a proposed {thing}. Decide whether everything that the proposed "
    "{thing} says can be inferred from the document alone. If it says anything that the document "
    "does not, it is false. It may differ from the ground truth and still be true, as long as "
    "nothing in it is false.\n"
    "Explain your decision by what the document says, and use no other knowledge.\n{ending}"
)
_ENDING = (
    "Then conclude with **Conclusion: True** if the document supports all of the proposed "
    "{thing}, or with **Conclusion: False** if any of it is wrong or unsupported. If it is false, "
    "also copy the wrong parts of the proposed {thing} as **Problematic Spans: "
    '["...", "..."]**, a JSON list of strings.'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a reply says."""

    correct: bool | None
    """``None``: the reply has no conclusion that can be read."""
    problematic_spans: tuple[str, ...]


def judge_messages(row: Mapping[str, Any], document: str) -> Messages:
    """The chat that asks for a verdict on one recorded output.

    Source: arXiv:2407.07071, ``step02_eval_gpt4o.py``: its parts in its order, in other words.

    Args:
        row: A row of the protocol ``hallucination``.
        document: What the output is checked against.
    """
    is_answer = row["kind"] == "answer"
    thing, title = ("answer", "Answer") if is_answer else ("summary", "Summary")
    truth = "Answers (a list of valid answers)" if is_answer else title
    references = row["references"]
    ending = _ENDING.format(thing=thing)
    parts = [
        _TASK.format(thing=thing, ending=ending),
        f"#Document#: {document}" + (f"\n#Question#: {row['question']}" if is_answer else ""),
        f"#Ground Truth {truth}#: "
        + (json.dumps(references, ensure_ascii=False) if is_answer else "\n".join(references)),
        f"#Proposed {title}#: {row['output']}",
        f"Explain first. {ending}",
    ]
    return [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def read_verdict(reply: str) -> Verdict:
    """Read the last conclusion of a reply: what stands between ``Conclusion: `` and ``**``.

    It must hold one of the words True and False; anything else is no verdict. Nothing in a reply
    is ever run.
    """
    said = set(re.findall(r"\b(True|False)\b", _after(reply, "Conclusion: ") or ""))
    correct = said == {"True"} if len(said) == 1 else None
    spans = _after(reply, "Problematic Spans: ")
    return Verdict(correct=correct, problematic_spans=_strings(spans) if spans else ())


def _after(reply: str, title: str) -> str | None:
    """What follows the last ``title``, up to ``**`` or the end."""
    _, separator, rest = reply.rpartition(title)
    return rest.partition("**")[0].strip() if separator else None


def _strings(text: str) -> tuple[str, ...]:
    """A JSON list; else what stands in quotes; else the text itself."""
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        quoted: Sequence[tuple[str, str]] = re.findall(r"\"([^\"]+)\"|'([^']+)'", text)
        value = [a or b for a, b in quoted] or [text]
    if not isinstance(value, list):
        value = [value]
    return tuple(str(span) for span in value)


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
