"""The elements of a page. One template renders them to HTML, one function to Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diffattn.lab.report.page.charts import Chart
from diffattn.lab.report.page.tables import Table


@dataclass(frozen=True, slots=True)
class Text:
    """One paragraph of plain text."""

    text: str
    role: Literal["", "lead", "statement", "gap", "remark", "verdict", "verdict uninformative"] = ""
    """How the style sheet shows it."""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences. An empty list is not shown."""

    items: "Sequence[str | Link]"
    title: str = ""
    role: Literal["", "gap", "verdict", "verdict uninformative"] = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another page, with a remark."""

    href: str
    text: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """Names and their explanations."""

    entries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Code:
    """Text in a fixed-width font."""

    text: str


@dataclass(frozen=True, slots=True)
class Equation:
    """Eq. (1) of arXiv:2410.05258v2."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Elements side by side where the page is wide enough."""

    charts: "Sequence[Element]"
    role: Literal["pair", "maps", "answer"] = "pair"


@dataclass(frozen=True, slots=True)
class Fold:
    """Elements that are hidden until the reader opens them."""

    title: str
    content: "Sequence[Element]"


@dataclass(frozen=True, slots=True)
class Part:
    """Elements under a heading of the third level."""

    title: str
    content: "Sequence[Element]"


Element: TypeAlias = Text | Bullets | Terms | Code | Equation | Pair | Fold | Part | Chart | Table


@dataclass(frozen=True, slots=True)
class Section:
    """Elements under a heading of the second level. The page's table of contents lists it."""

    id: str
    title: str
    content: Sequence[Element]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A page."""

    title: str
    lead: Sequence[Element]
    sections: Sequence[Section]
    summary: Table | None = None
    """The table that a terminal or a Markdown file shows in place of the page."""


def shown(*elements: Element | None) -> list[Element]:
    """The elements that hold something."""
    kept: list[Element] = []
    for element in elements:
        match element:
            case None | Text(text="") | Bullets(items=[]) | Pair(charts=[]) | Fold(content=[]):
                continue
            case _:
                kept.append(element)
    return kept


def charts_in(elements: "Iterable[Element]") -> Iterator[Chart]:
    """All charts, also those inside folds, parts and pairs."""
    for element in elements:
        match element:
            case Chart():
                yield element
            case Pair(charts=inside) | Fold(content=inside) | Part(content=inside):
                yield from charts_in(inside)
