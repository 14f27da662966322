"""Write a page: plain values in, one HTML file out."""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.errors import DiffAttnError
from diffattn.files.destination import require_file_destination
from diffattn.files.io import write_text
from diffattn.lab.report.page.elements import Document, Section, charts_in

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = "diffattn report"
"""Default name of the command that made a page, as the page states it."""
_TEMPLATES = Path(__file__).parents[1] / "templates"


def beginning(generator: str) -> str:
    """The first characters of all pages that a command makes, up to its name."""
    return render("head.html.j2", script="", generator=generator)


def write_document(out: Path, document: Document, more: Sequence[Section] = ()) -> Path:
    """Write a page of elements. ``more`` sections come before the last one, the provenance."""
    *sections, last = document.sections
    sections = [*sections, *more, last]
    elements = [*document.lead, *(each for section in sections for each in section.content)]
    figures = {chart.element_id: chart.figure for chart in charts_in(elements)}
    code = _chart_script()
    return write_page(
        out,
        "page.html.j2",
        document=document,
        sections=sections,
        script=template_text("loader.js"),
        code_hash=source_hash(code),
        packed_code=_pack(code),
        packed_figures=_pack(json.dumps(figures, allow_nan=False, separators=(",", ":"))),
    )


def write_page(out: Path, template: str, **values: Any) -> Path:
    """Fill a template as :func:`render` does, and write the page.

    The folder is made if missing. An existing file is left as it was on failure.
    """
    require_file_destination(out)
    page = render(template, **values)
    write_text(out, page)
    return out


def render(
    template: str, *, script: str, style: str = "", generator: str = GENERATOR, **values: Any
) -> str:
    """Fill a template. The page needs no network and runs no script from elsewhere.

    Texts are escaped, but ``script`` and ``style``, whose hashes a template can name.
    """
    from jinja2 import UndefinedError
    from markupsafe import Markup

    for name, text in (("script", script), ("style", style)):
        values |= {name: Markup(text), f"{name}_hash": source_hash(text)}
    try:
        page = _environment().get_template(template).render(generator=generator, **values)
    except UndefinedError as error:
        raise LookupError(str(error)) from error
    # JSON can hold half of a surrogate pair, which no UTF-8 file can.
    return page.encode("utf-8", "replace").decode("utf-8")


@lru_cache(2)  # the code is the same in all pages, and packing it takes half a second
def _pack(text: str) -> str:
    """Gzip, then base 64, for an inert script element; ``unpack`` of ``loader.js`` inverts it."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


def _chart_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise DiffAttnError(
            "report: a page needs plotly, got none. Run: pip install 'diffattn[lab]'"
        ) from error
    return f"\n{get_plotlyjs()}\n{template_text('page.js')}"


def template_text(name: str) -> str:
    """Read a file of ``report/templates``."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def source_hash(script: str) -> str:
    """Name an inline script as a content security policy does: ``sha256-...``."""
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
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment
