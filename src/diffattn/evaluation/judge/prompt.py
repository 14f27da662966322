"""What a judge model is asked about one output, and what its reply says."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def storable(text: str) -> str:
    """JSON can spell lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


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
        spans = [str(span) for span in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):  # no JSON, endless numbers, depth without end
        quoted: Sequence[tuple[str, str]] = re.findall(r"\"([^\"]+)\"|'([^']+)'", text)
        spans = [a or b for a, b in quoted] or [text]
    return tuple(storable(span) for span in spans)
