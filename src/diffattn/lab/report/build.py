"""Put pages together: a study of any kind, with what stands beside it, or an evaluation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diffattn.lab.report.benchmarks.section import bench_section
from diffattn.lab.report.benchmarks.tables import read_results
from diffattn.lab.report.claims.evaluated import evaluation_claims, published_values
from diffattn.lab.report.claims.tables import claims_table
from diffattn.lab.report.evaluation.files import read_evaluation
from diffattn.lab.report.evaluation.page import evaluation_page
from diffattn.lab.report.gradient_flow.files import read_gradient_flow_study
from diffattn.lab.report.gradient_flow.page import CHAPTERS as GRADIENT_FLOW_CHAPTERS
from diffattn.lab.report.gradient_flow.page import gradient_flow_page
from diffattn.lab.report.gradient_flow.tables import gradient_flow_markdown
from diffattn.lab.report.page.render import write_page
from diffattn.lab.report.page.runs import study_kind
from diffattn.lab.report.recall.files import read_recall_study
from diffattn.lab.report.recall.page import CHAPTERS as RECALL_CHAPTERS
from diffattn.lab.report.recall.page import recall_page
from diffattn.lab.report.recall.tables import recall_markdown
from diffattn.lab.report.scaling.files import read_scaling_study
from diffattn.lab.report.scaling.page import CHAPTERS as SCALING_CHAPTERS
from diffattn.lab.report.scaling.page import scaling_page
from diffattn.lab.report.scaling.tables import scaling_markdown
from diffattn.lab.report.stability.files import read_stability_study
from diffattn.lab.report.stability.page import CHAPTERS as STABILITY_CHAPTERS
from diffattn.lab.report.stability.page import stability_page
from diffattn.lab.report.stability.tables import stability_markdown
from diffattn.lab.report.study.files import ROW_KINDS, read_study
from diffattn.lab.report.study.markdown import study_markdown
from diffattn.lab.report.study.page import CHAPTERS as STUDY_CHAPTERS
from diffattn.lab.report.study.page import OPTIONAL, published_study, study_page
from diffattn.lab.report.study.published import read_published


class _Kind(NamedTuple):
    """How a study that is not of models on text is read and shown."""

    read: Callable[[Path], Any]
    page: Callable[[Any], dict[str, Any]]
    chapters: dict[str, str]
    markdown: Callable[[Path], str]


_KINDS = {
    "recall": _Kind(read_recall_study, recall_page, RECALL_CHAPTERS, recall_markdown),
    "stability": _Kind(
        read_stability_study, stability_page, STABILITY_CHAPTERS, stability_markdown
    ),
    "gradient-flow": _Kind(
        read_gradient_flow_study,
        gradient_flow_page,
        GRADIENT_FLOW_CHAPTERS,
        gradient_flow_markdown,
    ),
    "scaling": _Kind(read_scaling_study, scaling_page, SCALING_CHAPTERS, scaling_markdown),
}


def build_report(
    study: Path,
    out: Path | None = None,
    *,
    published: Path | None = None,
    benchmarks: Sequence[Path] = (),
    claims: Path | None = None,
) -> Path:
    """Write one HTML file that holds every result of a study and needs no network.

    The same files give the same bytes: nothing in the page depends on when it was built.

    Args:
        study: Study folder with ``study.json``. What else is missing is named in the report.
        out: File to write. Default ``study / "report.html"``.
        published: Folder or summary of another study of models on text, shown beside one of that
            kind in a section of its own. Default: none.
        benchmarks: Records of ``diffattn bench``, or folders of them. Default: none.
        claims: Folder whose ``published/`` and ``benchmarks/`` say what has been found of the
            papers' claims; shown beside a study of models on text. Default: none.

    Returns:
        The file written.

    Raises:
        CheckpointError: A file is damaged, or of another kind or schema version.
        OSError: The file cannot be written; an existing one is left as it was.
    """
    study = Path(study)
    out = study / "report.html" if out is None else Path(out)
    records = read_results(benchmarks)
    measured = [bench_section(result, f"bench-{index}") for index, result in enumerate(records)]
    kind = study_kind(study)
    if kind in _KINDS:
        of = _KINDS[kind]
        recorded = of.read(study)
        return write_page(
            out,
            f"{kind}.html.j2",
            title=f"Differential attention: {kind} study “{recorded.info.get('scale')}”",
            chapters=_present(of.chapters, benchmarks=bool(measured)),
            study=of.page(recorded),
            benchmarks=measured,
        )
    text = read_study(study)
    page = study_page(text)
    beside = None if published is None else published_study(text, read_published(published))
    return write_page(
        out,
        "study.html.j2",
        title=f"Differential attention: {ROW_KINDS.get(kind, 'study')} “{text.info.get('scale')}”",
        chapters=_present(
            STUDY_CHAPTERS,
            **{name: page[name] is not None for name in OPTIONAL},
            published=beside is not None,
            claims=claims is not None,
            benchmarks=bool(measured),
        ),
        study=page,
        published=beside,
        claims=None if claims is None else claims_table(claims),
        benchmarks=measured,
    )


def build_evaluation_report(folder: Path, out: Path | None = None) -> Path:
    """Write one HTML file that shows an evaluation folder and needs no network.

    Args:
        folder: Written by ``diffattn evaluate``.
        out: File to write. Default ``folder / "report.html"``.

    Returns:
        The file written.

    Raises:
        CheckpointError: ``evaluation.json`` is missing or damaged, or no result can be read; a
            result that is damaged, or of another version than the first model's, is left out and
            named.
        OSError: The file cannot be written; an existing one is left as it was.
    """
    folder = Path(folder)
    recorded = read_evaluation(folder)
    every = [result for results in recorded.results.values() for result in results]
    page = evaluation_page(recorded, published_values(), evaluation_claims(every))
    return write_page(
        folder / "report.html" if out is None else Path(out),
        "evaluation.html.j2",
        title=page["title"],
        chapters=page["chapters"],
        evaluation=page,
    )


def markdown_results(study: Path) -> str:
    """Results of a study of any kind as a Markdown table.

    Args:
        study: Study folder.

    Raises:
        CheckpointError: A file of the study is damaged or foreign.
    """
    kind = study_kind(study)
    return _KINDS[kind].markdown(study) if kind in _KINDS else study_markdown(study)


def _present(chapters: dict[str, str], **present: bool) -> dict[str, str]:
    """The chapters without those that the page does not have."""
    return {key: title for key, title in chapters.items() if present.get(key, True)}
