"""Write a page: plain values in, one HTML file out."""

from pathlib import Path
from typing import Any

from diffattn.records.io import write_text

_TEMPLATES = Path(__file__).parents[1] / "templates"


def write_page(out: Path, template: str, **values: Any) -> Path:
    """Fill a template and write the page; an existing file is left as it was on failure.

    Args:
        out: File to write; its folder is made if missing.
        template: Name of a file in ``report/templates``.
        values: What the template shows. Every text in them is plain and escaped by the template.
    """
    page = render(template, **values)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
    return out


def render(template: str, **values: Any) -> str:
    """HTML of a page that needs no network."""
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    page = environment.get_template(template).render(plotly=Markup(get_plotlyjs()), **values)
    # JSON can hold half of a surrogate pair, which no UTF-8 file can.
    return page.encode("utf-8", "replace").decode("utf-8")
