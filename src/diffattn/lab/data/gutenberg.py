"""The text of a Project Gutenberg book, without licence, header and trailer."""

import re

_START = re.compile(
    r"^[ \t]*(?:"
    r"\*\*\*[ \t]*START OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
    r"(?:(?:(?!\n[ \t\r]*\n)[^*])*\*\*\*|[^\n]*)"  # the title may run over several lines
    r"|\*END[ *]*THE SMALL PRINT[^\n]*"  # until about 2003
    r")[^\n]*\n",
    re.IGNORECASE | re.MULTILINE,
)
_END = re.compile(
    r"^[ \t]*(?:"
    r"\*\*\*[ \t]*END OF (?:THE |THIS )?PROJECT GUTENBERG E(?:BOOK|TEXT)"
    r"|(?:THE )?END OF (?:THE |THIS )?PROJECT GUTENBERG(?:'S|’S)?[ \t]+\S"
    r")",
    re.IGNORECASE | re.MULTILINE,
)
_CREDITS = re.compile(
    r"\s*(?:Produced by|E-?text prepared by|Transcribed (?:from|by)"
    r"|This e-?(?:book|text) was (?:produced|prepared) by)\b.*?(?:\n[ \t]*\r?\n|\Z)",
    re.IGNORECASE | re.DOTALL,
)


def strip_gutenberg(text: str) -> str:
    """Cut licence, header and trailer off a Project Gutenberg text, and the producer's credits.

    A text without markers, or without anything between them, is returned as it is.
    """
    starts = [match.end() for match in _START.finditer(text)]
    end = _END.search(text, starts[-1] if starts else 0)
    if not starts and end is None:
        return text
    body = text[starts[-1] if starts else 0 : end.start() if end else len(text)]
    credits = _CREDITS.match(body) if starts else None
    body = (body[credits.end() :] if credits else body).strip()
    return body or text
