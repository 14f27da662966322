"""A page of elements as Markdown."""

from collections.abc import Iterable, Iterator

from diffattn.lab.report.page.elements import (
    Bullets,
    Code,
    Document,
    Element,
    Fold,
    Link,
    Part,
    Terms,
    Text,
)
from diffattn.lab.report.page.tables import Table, table_markdown


def document_markdown(document: Document) -> str:
    """Write a page as Markdown. Charts and equations have no place in it."""
    blocks = [f"# {document.title}", *_blocks(document.lead)]
    for section in document.sections:
        blocks += [f"## {section.title}", *_blocks(section.content)]
    return "\n\n".join(blocks) + "\n"


def _blocks(elements: Iterable[Element]) -> Iterator[str]:
    for element in elements:
        if isinstance(element, Text):
            yield (f"**{element.title}** " if element.title else "") + element.text
        elif isinstance(element, Bullets):
            if element.title and element.items:
                yield f"**{element.title}**"
            yield "\n".join(f"- {_item(item)}" for item in element.items)
        elif isinstance(element, Terms):
            yield "\n".join(f"- {name}: {text}" for name, text in element.entries.items())
        elif isinstance(element, Code):
            yield f"```\n{element.text}\n```"
        elif isinstance(element, Table):
            if element.caption:
                yield element.caption
            yield table_markdown(element).rstrip("\n")
        elif isinstance(element, Part | Fold):
            yield f"### {element.title}"
            yield from _blocks(element.content)


def _item(item: str | Link) -> str:
    if isinstance(item, str):
        return item
    return f"[{item.text}]({item.href})" + (f": {item.remark}" if item.remark else "")
