"""The question about one output to a judge model, and the verdict in its reply."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROMPT_VERSION = 2
"""Raised with any change of the prompt. The protocol's version covers the reading of replies."""

# A title in any case with a colon (or the line's end, as below a heading), set in bold or not.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The verdict of a reply."""

    correct: bool | None
    """``None``: the reply has no conclusion that can be read."""
    problematic_spans: tuple[str, ...]


def storable(text: str) -> str:
    """The text without lone surrogates, which JSON can spell and no file can hold."""
    return text.encode("utf-8", "replace").decode()


def judge_messages(row: Mapping[str, Any], document: str) -> Messages:
    """The chat that asks for a verdict on one recorded output, checked against a document.

    Source: arXiv:2407.07071, ``step02_eval_gpt4o.py``: its parts in its order, in other words.
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
    """Read the last conclusion of a reply, however it is set: ``**Conclusion: True**``,
    ``**Conclusion:** True``, ``Conclusion: **TRUE**``, ``## Conclusion`` and the word below. A
    conclusion within the problematic spans is one that they quote.

    True or False in any case must stand first, or one of them alone, spelled so, in what follows up
    to ``**`` or the end of the line; a denied one ("not True") and anything else is no verdict.
    Nothing in a reply is ever run.
    """
    spans = _after(reply, _SPANS)
    return Verdict(
        correct=_correct(_conclusion(reply).partition("\n")[0]),
        problematic_spans=_strings(spans) if spans else (),
    )


def _conclusion(reply: str) -> str:
    """The text after the last title of a conclusion that the problematic spans do not quote.

    The list of spans is left out. Where it is no JSON it ends before the first line that begins
    with a conclusion, outside of brackets and quotes; without one a conclusion before it counts.
    """
    titles = list(_SPANS.finditer(reply))
    texts = [reply]
    if titles:
        spans = reply[titles[-1].end() :]
        texts = [_beyond_json(spans) or _beyond_lines(spans), reply[: titles[-1].start()], spans]
    conclusions = (_after(text, _CONCLUSION) for text in texts)
    return next((text for text in conclusions if text is not None), "")


def _beyond_json(text: str) -> str:
    """The text after the JSON value that it begins with; empty if it begins with none."""
    try:
        return text[json.JSONDecoder().raw_decode(text)[1] :]
    except (ValueError, RecursionError):
        return ""


def _beyond_lines(text: str) -> str:
    """The text from the first line on that begins with a conclusion and lies in no list or quote;
    empty if there is none."""
    for match in _CONCLUSION_LINE.finditer(text):
        before = text[: match.start()]
        open_quotes = before.count('"') % 2 + before.count("\u201c") - before.count("\u201d")
        if before.count("[") <= before.count("]") and open_quotes <= 0:
            return text[match.start() :]
    return ""


def _correct(line: str) -> bool | None:
    words = {word.lower() for word in _VERDICT.findall(line)}
    first = _FIRST_WORD.match(line)
    if first:
        words.add(first[1].lower())
    return words == {"true"} if len(words) == 1 and not _DENIED.search(line) else None


def _after(reply: str, title: re.Pattern[str]) -> str | None:
    """The text after the last ``title``, up to ``**`` or the end."""
    ends = [match.end() for match in title.finditer(reply)]
    return reply[ends[-1] :].partition("**")[0].strip() if ends else None


def _strings(text: str) -> tuple[str, ...]:
    """The strings of a JSON list; else the quoted strings; else the text itself."""
    try:
        value: Any = json.loads(text)
        spans = [str(span) for span in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):  # no JSON, endless numbers, depth without end
        quoted: Sequence[tuple[str, str]] = re.findall(r"\"([^\"]+)\"|'([^']+)'", text)
        spans = [a or b for a, b in quoted] or [text]
    return tuple(storable(span) for span in spans)
