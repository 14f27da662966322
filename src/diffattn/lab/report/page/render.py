"""Write a page: plain values in, one HTML file out."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.files.destination import require_file_destination
from diffattn.files.io import write_text
from diffattn.lab.report.page.elements import Document, Section, kind_of

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = "diffattn report"
"""What a page says made it, unless another command did."""
_TEMPLATES = Path(__file__).parents[1] / "templates"


def beginning(generator: str) -> str:
    """How every page begins that a command has made.

    Args:
        generator: The command; its version may follow.
    """
    return render("head.html.j2", script="", generator=generator)


def write_page(out: Path, template: str, **values: Any) -> Path:
    """Fill a template and write the page; an existing file is left as it was on failure.

    Args:
        out: File to write; its folder is made if missing.
        template: Name of a file in ``report/templates``.
        values: What the template shows. Every text in them is plain and escaped by the template.

    Raises:
        ConfigError: ``out`` is no file and cannot become one.
    """
    require_file_destination(out)
    page = render(template, **values)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
    return out


def write_document(out: Path, document: Document, more: Sequence[Section] = ()) -> Path:
    """Write a page of elements.

    Args:
        out: File to write; its folder is made if missing.
        document: The page.
        more: Sections that stand before the last one, which says where the numbers are from.

    Raises:
        ConfigError: ``out`` is no file and cannot become one.
    """
    *sections, last = document.sections
    sections = [*sections, *more, last]
    return write_page(
        out,
        "document.html.j2",
        title=document.title,
        chapters={section.id: section.title for section in sections},
        document=document,
        sections=sections,
    )


def render(
    template: str,
    *,
    script: str | None = None,
    style: str | None = None,
    generator: str = GENERATOR,
    **values: Any,
) -> str:
    """HTML of a page that needs no network and runs no script but its own.

    Args:
        template: Name of a file in ``report/templates``.
        script: All that runs in the page. Default: :func:`page_script`.
        style: For templates whose policy names their style sheet. Default: the template's.
        generator: What the page says made it.
        values: What the template shows.
    """
    from jinja2 import UndefinedError
    from markupsafe import Markup

    ours = {"script": page_script() if script is None else script, "style": style or ""}
    filled = _environment().get_template(template)
    try:
        page = filled.render(
            **{name: Markup(text) for name, text in ours.items()},
            **{f"{name}_hash": source_hash(text) for name, text in ours.items()},
            generator=generator,
            **values,
        )
    except UndefinedError as error:
        raise LookupError(str(error)) from error
    # JSON can hold half of a surrogate pair, which no UTF-8 file can.
    return page.encode("utf-8", "replace").decode("utf-8")


def page_script() -> str:
    """All that runs in a page: plotly and ours, in one element."""
    from plotly.offline import get_plotlyjs

    return f"\n{get_plotlyjs()}\n{template_text('page.js')}"


def template_text(name: str) -> str:
    """A file of ``report/templates`` as it stands."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def source_hash(script: str) -> str:
    """``sha256-...``: how a content security policy names an inline script."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _environment() -> "Environment":
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["kind_of"] = kind_of
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment
