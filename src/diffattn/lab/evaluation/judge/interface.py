"""The interface of a judge: settings, the prompt about one output, replies and their verdicts."""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.records.fields import AtLeast, AtMost, check_settings, read_settings, require

PROMPT_VERSION = 2
"""Raised with each change of the prompt. ``session.VERSION`` is for how replies are read."""

# A title in any case, in bold or not, with a colon, or as a heading with the end of its line.
_CONCLUSION = re.compile(r"(?<![a-z])conclusion[*_ \t]*(?:[:\uff1a]|\n)[*_\s]*", re.IGNORECASE)
_CONCLUSION_LINE = re.compile(r"^[#> \t]*[*_]*(?=conclusion)", re.IGNORECASE | re.MULTILINE)
_SPANS = re.compile(r"(?<![a-z])problematic spans[*_ \t]*(?:[:\uff1a]|\n)[*_\s]*", re.IGNORECASE)
_FIRST_WORD = re.compile(r"[\"'`(\[]*(true|false)\b", re.IGNORECASE)
_VERDICT = re.compile(r"\b(True|TRUE|False|FALSE)\b")
_DENIED = re.compile(r"\b(?:not|n't|neither|nor)\s+(?:true|false)\b", re.IGNORECASE)

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


def storable(text: str) -> str:
    """The text with ``?`` for lone surrogates, which JSON can spell but UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()


def judge_messages(row: Mapping[str, Any], document: str) -> Messages:
    """The messages that ask a judge to check one recorded output: the parts and their order are
    those of arXiv:2407.07071, ``step02_eval_gpt4o.py``, in other words."""
    if row["kind"] == "answer":
        thing, truth = "answer", "Answers (a list of valid answers)"
        question = f"\n#Question#: {row['question']}"
        references = json.dumps(row["references"], ensure_ascii=False)
    else:
        thing, truth, question, references = "summary", "Summary", "", "\n".join(row["references"])
    ending = _ENDING.format(thing=thing)
    parts = [
        _TASK.format(thing=thing, ending=ending),
        f"#Document#: {document}{question}",
        f"#Ground Truth {truth}#: {references}",
        f"#Proposed {thing.title()}#: {row['output']}",
        f"Explain first. {ending}",
    ]
    return [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "\n\n".join(parts)},
    ]


def read_verdict(reply: str) -> tuple[bool | None, list[str]]:
    """Read the last conclusion of a reply and its problematic spans.

    Forms are ``**Conclusion: True**``, ``**Conclusion:** True``, ``Conclusion: **TRUE**``, and
    ``## Conclusion`` with the word on the next line. The conclusion ends at ``**`` or the end of
    the line. It must begin with true or false in any case, or hold only one of True and False (or
    in capitals). A denied one ("not True"), both words, and anything else give ``None``. A
    conclusion that the spans quote does not count. Nothing in a reply is executed.
    """
    line = _conclusion(reply).partition("\n")[0]
    words = {word.lower() for word in _VERDICT.findall(line)}
    if first := _FIRST_WORD.match(line):
        words.add(first[1].lower())
    correct = words == {"true"} if len(words) == 1 and not _DENIED.search(line) else None
    spans = _text_after(reply, _SPANS)
    return correct, _strings(spans) if spans else []


def _conclusion(reply: str) -> str:
    """The text after the last "Conclusion" that the problematic spans do not quote.

    The list of spans is skipped. If it is not JSON, it ends before the first line that begins with
    a conclusion outside of brackets and quotes. If none follows, a conclusion before the list
    counts."""
    titles = list(_SPANS.finditer(reply))
    texts = [reply]
    if titles:
        spans = reply[titles[-1].end() :]
        texts = [_beyond_json(spans) or _beyond_lines(spans), reply[: titles[-1].start()], spans]
    conclusions = (_text_after(text, _CONCLUSION) for text in texts)
    return next((text for text in conclusions if text is not None), "")


def _beyond_json(text: str) -> str:
    """The text after the JSON value with which it begins; empty if it does not begin with one."""
    try:
        return text[json.JSONDecoder().raw_decode(text)[1] :]
    except (ValueError, RecursionError):
        return ""


def _beyond_lines(text: str) -> str:
    """The text from the first line that begins with a conclusion, outside of lists and quotes, on;
    empty if there is none."""
    for match in _CONCLUSION_LINE.finditer(text):
        before = text[: match.start()]
        open_quotes = before.count('"') % 2 + before.count("\u201c") - before.count("\u201d")
        if before.count("[") <= before.count("]") and open_quotes <= 0:
            return text[match.start() :]
    return ""


def _text_after(reply: str, title: re.Pattern[str]) -> str | None:
    """The text after the last ``title``, up to ``**`` or the end."""
    ends = [match.end() for match in title.finditer(reply)]
    return reply[ends[-1] :].partition("**")[0].strip() if ends else None


def _strings(text: str) -> list[str]:
    """The strings of a JSON list; if it is not JSON, the quoted strings, else the text itself."""
    try:
        value: Any = json.loads(text)
        spans = [str(span) for span in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):  # not JSON, too long a number, or nested too deeply
        quoted: Sequence[tuple[str, str]] = re.findall(r"\"([^\"]+)\"|'([^']+)'", text)
        spans = [a or b for a, b in quoted] or [text]
    return [storable(span) for span in spans]


class JudgeFailure(DiffAttnError):
    """There is no reply to one request. This is recorded, and the next call asks again."""


class JudgeUnreachable(JudgeFailure):
    """There is no reply after all attempts, so the next request may fail, too."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a judge."""

    text: str
    details: dict[str, Any] = field(default_factory=dict)  # for the log, such as attempts and usage


_Count = Annotated[int, AtLeast(1), AtMost(1_000)]
_Seconds = Annotated[float, AtLeast(0), AtMost(86_400)]


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """Settings of a judge."""

    model: str  # name at the endpoint; without an endpoint a local folder or a hub name
    endpoint: str | None = field(default=None, repr=False)
    """Base URL of an OpenAI-compatible server, for example ``https://api.openai.com/v1``."""
    key_variable: str | None = None
    """Name of the environment variable that holds the key. The key itself is never recorded.
    Default: no key is sent."""
    name: str | None = None
    """Name in the result folders. Default: the model's name, or the last part of its folder."""
    document: Literal["whole", "read"] = "whole"  # as in the reference, or the part that was read
    temperature: Annotated[float, AtLeast(0), AtMost(100)] | None = None
    """Default: not sent, as in the reference; the server decides. Local models are greedy."""
    max_tokens: Annotated[int, AtLeast(1), AtMost(2**31 - 1)] | None = None
    """Of a reply. Default: not sent; 512 for a local model."""
    workers: _Count = 4  # number of parallel requests
    timeout_seconds: Annotated[_Seconds, AtLeast(0.001)] = 120.0  # of one attempt
    max_attempts: _Count = 6  # per request
    first_wait_seconds: _Seconds = 1.0  # doubles each time, unless the server sends Retry-After
    longest_wait_seconds: _Seconds = 120.0  # even if the server asks for more
    give_up_after: Annotated[int, AtLeast(1), AtMost(10**9)] = 8
    """Failed requests in a row; the others are left for the next call."""

    def __post_init__(self) -> None:
        check_settings(self)
        require("judge", self.model != "" and self.name != "", "model and name must be text", "")
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
