"""Build the self-contained report of a study folder."""

from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from diffattn.records.io import write_text
from diffattn.report.sections import published_section, study_sections
from diffattn.report.study_files import read_study
from diffattn.report.wording import esc

_TEMPLATE = Path(__file__).parent / "templates" / "report.html"
_CHAPTERS = {
    "models": "Models",
    "loss": "Validation loss",
    "curves": "Loss curves",
    "costs": "Speed and memory",
    "lambda": "λ over training",
    "maps": "Attention maps",
    "published": "Published study",
    "provenance": "Provenance",
}


def build_report(study: Path, out: Path | None = None, *, published: Path | None = None) -> Path:
    """Write one HTML file that holds everything a study found and needs no network.

    The same files give the same bytes: nothing in the page depends on when it was built.

    Args:
        study: Study folder with ``study.json``. What else is missing is named in the report.
        out: File to write. Default ``study / "report.html"``.
        published: Another study folder, shown in a section of its own. Default: none.

    Returns:
        The file written.

    Raises:
        CheckpointError: A file is damaged, or of another kind or schema version.
        OSError: The file cannot be written; an existing one is left as it was.
    """
    study = Path(study)
    out = study / "report.html" if out is None else Path(out)
    own = read_study(study)
    body = study_sections(own, "", 2)
    if published is not None:
        other = published_section(own, read_study(published))
        # Provenance of the user's own study comes last, as an appendix.
        cut = body.index('<section id="provenance">')
        body = body[:cut] + other + body[cut:]
    chapters = "".join(
        f'<a href="#{key}">{esc(title)}</a>'
        for key, title in _CHAPTERS.items()
        if key != "published" or published is not None
    )
    page = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=esc(f"Differential attention: study “{own.info.get('scale')}”"),
        plotly=get_plotlyjs(),
        chapters=chapters,
        body=body,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
    return out
