"""Whatever stands in a record, its page is made or refused in one line, and nothing in it runs."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from tally import sample, trial
from trials.hostile_values import (
    HOSTILE,
    MARK,
    MARKUP,
    at,
    changed,
    places,
    replaced,
    shown,
    write_record,
)
from trials.made_up_folders import FOLDERS, Folder, read

STRIDE = 11
"""Every value is tried in every eleventh place, every place with every eleventh value."""
MINIMUM = {
    "text study": 2_900,
    "unfinished text study": 550,
    "recall study": 1_000,
    **dict.fromkeys(("stability study", "gradient_flow study", "scaling study"), 750),
    "evaluation": 650,
    "analysis": 2_000,
    "claims": 3_300,
    "benchmarks": 2_500,
}
LOADING = {"src", "href", "srcset", "srcdoc", "action", "formaction", "data", "style", "http-equiv"}
"""Attributes that load, navigate or run what they hold."""


INERT = {"application/json", "application/octet-stream", "text/plain"}
"""Types of script elements that hold data."""


class Suspicious(HTMLParser):
    """What a browser would take from a record for more than text."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag, attrs):
        names = {name for name, _ in attrs}
        if tag == "script" and dict(attrs).get("type") not in INERT:
            self.scripts += 1
        if MARK in tag or any(MARK in name or name.startswith("on") for name in names):
            self.faults.append(f"<{tag} {names}>")
        for name, value in attrs:
            if name in LOADING and MARK in (value or ""):
                self.faults.append(f"{name}={value}")

    def handle_comment(self, data):
        if MARK in data:
            self.faults.append("a comment")


def page_fault(page: str) -> str | None:
    """What of a record is more than text in a page."""
    if "36863" in page:
        return "a template in a record was filled in"
    if MARK not in page:
        return None
    reader = Suspicious()
    reader.feed(page)
    reader.close()
    if reader.scripts != 1:
        return f"{reader.scripts} scripts"
    return reader.faults[0] if reader.faults else None


def outcome(folder: Folder, record: Path) -> str | None:
    """What is wrong with how a hostile record ended."""
    try:
        page = folder.build()
    except CheckpointError as error:
        text = str(error)
        if not any(other.name in text for other in folder.records):
            return f"does not name the file: {text[:200]}"
        return None if len(text) < 1_000 else f"a message of {len(text)} characters"
    except Exception as error:  # any other is the defect that is looked for
        return f"{type(error).__name__}: {str(error)[:200]}"
    return page_fault(page)


def mutations(value, stride: int) -> Iterator[tuple[str, object]]:
    """Changes of one record, and what each is."""
    for index, path in enumerate(places(value)):
        tried = HOSTILE[index % stride :: stride]
        for new in tried:
            yield shown(path, new), replaced(value, path, new)
        if index % 3 == 0:
            yield f"{path} removed", changed(value, path, lambda holder, key: holder.pop(key))
            if isinstance(at(value, path[:-1]), dict):
                text = MARKUP[index // 3 % len(MARKUP)]
                renamed = changed(value, path, lambda d, key: d.update({text: d.pop(key)}))  # noqa: B023
                yield f"{path} renamed to {text}", renamed


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.scheduled), 1201])
@pytest.mark.parametrize("kind", FOLDERS)
def test_hostile_records_make_a_page_or_one_line(kind, step, tmp_path):
    folder = FOLDERS[kind](tmp_path / "folder")
    assert page_fault(folder.build()) is None
    minimum = max(1, MINIMUM[kind] // step)
    with trial(f"hostile records: {kind}{sample(step > 1)}", minimum=minimum) as tally:
        number = 0
        for record in folder.records:
            value = read(record)
            for what, new in mutations(value, STRIDE):
                if number % step == 0:
                    write_record(record, new)
                    tally.check(f"{record.name}: {what}", outcome(folder, record))
                number += 1
            write_record(record, value)
