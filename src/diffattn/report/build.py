"""Build the self-contained report of a study folder."""

from collections.abc import Sequence
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from diffattn.records.io import write_text
from diffattn.report.benchmarks.section import benchmark_section
from diffattn.report.benchmarks.tables import read_results
from diffattn.report.page.wording import esc
from diffattn.report.recall.files import is_recall_study, read_recall_study
from diffattn.report.recall.sections import CHAPTERS as RECALL_CHAPTERS
from diffattn.report.recall.sections import recall_sections
from diffattn.report.recall.tables import recall_markdown
from diffattn.report.study.files import read_study
from diffattn.report.study.sections import published_section, study_sections
from diffattn.report.study.tables import markdown_table

_TEMPLATE = Path(__file__).parent / "templates" / "report.html"
_CHAPTERS = {
    "models": "Models",
    "loss": "Validation loss",
    "curves": "Loss curves",
    "costs": "Speed and memory",
    "lambda": "λ over training",
    "maps": "Attention maps",
    "published": "Published study",
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}


def build_report(
    study: Path,
    out: Path | None = None,
    *,
    published: Path | None = None,
    benchmarks: Sequence[Path] = (),
) -> Path:
    """Write one HTML file that holds everything a study found and needs no network.

    The same files give the same bytes: nothing in the page depends on when it was built.

    Args:
        study: Study folder with ``study.json``. What else is missing is named in the report.
        out: File to write. Default ``study / "report.html"``.
        published: Another study of models on text, shown beside one of that kind in a section of
            its own. Default: none.
        benchmarks: Records of ``diffattn bench``, or folders of them. Default: none.

    Returns:
        The file written.

    Raises:
        CheckpointError: A file is damaged, or of another kind or schema version.
        OSError: The file cannot be written; an existing one is left as it was.
    """
    study = Path(study)
    out = study / "report.html" if out is None else Path(out)
    measured = benchmark_section(read_results(benchmarks))
    others = ""
    if is_recall_study(study):
        own, titles = read_recall_study(study), RECALL_CHAPTERS
        body, what = recall_sections(own), "recall study"
    else:
        own, titles = read_study(study), _CHAPTERS
        body, what = study_sections(own, "", 2), "study"
        if published is not None:
            others = published_section(own, read_study(published))
    # Provenance of the user's own study comes last, as an appendix.
    cut = body.index('<section id="provenance">')
    body = body[:cut] + others + measured + body[cut:]
    absent = {"published": not others, "benchmarks": not measured}
    chapters = "".join(
        f'<a href="#{key}">{esc(title)}</a>' for key, title in titles.items() if not absent.get(key)
    )
    page = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=esc(f"Differential attention: {what} “{own.info.get('scale')}”"),
        plotly=get_plotlyjs(),
        chapters=chapters,
        body=body,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
    return out


def markdown_results(study: Path) -> str:
    """Results of a study of any kind as a Markdown table.

    Args:
        study: Study folder.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    return recall_markdown(study) if is_recall_study(study) else markdown_table(study)
