"""The prompt that asks a judge about one output, and how its verdict is read."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

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
    """The messages that ask a judge to check one recorded output against a document.

    Source: arXiv:2407.07071, ``step02_eval_gpt4o.py``: the same parts in the same order, reworded.
    """
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
