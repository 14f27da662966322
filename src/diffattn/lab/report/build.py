"""Put pages together: of a study of any kind, of a short reproduction, or of an evaluation."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from diffattn.lab.records.results import read_benchmarks
from diffattn.lab.report.benchmarks.tables import bench_section
from diffattn.lab.report.claims.tables import claims_table, evaluation_claims
from diffattn.lab.report.evaluation.page import evaluation_document, read_evaluation
from diffattn.lab.report.page.elements import Document, Part, Text
from diffattn.lab.report.page.render import write_document
from diffattn.lab.report.page.runs import records_named_in_errors, study_kind
from diffattn.lab.report.page.study_page import provenance
from diffattn.lab.report.page.tables import Table, table_markdown
from diffattn.lab.report.sections import gradient_flow, practical, recall, scaling, stability
from diffattn.lab.report.study.files import ROW_KINDS, read_study
from diffattn.lab.report.study.page import (
    committed_text,
    loss_section,
    text_document,
    text_markdown,
)

_TEXT = (read_study, text_document)
KINDS: dict[str, tuple[Callable[[Path], Any], Callable[..., Document]]] = {
    "text": _TEXT,
    **dict.fromkeys(ROW_KINDS, _TEXT),
    "recall": (recall.read_recall_study, recall.recall_document),
    "practical": (practical.read_practical_study, practical.practical_document),
    "stability": (stability.read_stability_study, stability.stability_document),
    "gradient-flow": (gradient_flow.read_gradient_flow_study, gradient_flow.gradient_flow_document),
    "scaling": (scaling.read_scaling_study, scaling.scaling_document),
}
"""Kind of study -> reader of its records, and builder of its page."""


def build_report(
    study: Path,
    out: Path | None = None,
    *,
    benchmarks: Sequence[Path] = (),
    claims: Path | None = None,
) -> Path:
    """Write one HTML file that holds every result of a study and needs no network.

    Args:
        study: Study folder with ``study.json``. The report names all other missing files.
        benchmarks: Records of ``diffattn bench``, or folders of them.
        claims: Folder whose ``published/`` and ``benchmarks/`` have numbers for the papers'
            claims. Pages of studies on text and of recall show them. Default: none.
    """
    measured = bench_section(list(read_benchmarks(benchmarks).values()))
    with records_named_in_errors(study):
        beside = None if claims is None else claims_table(claims)
        return write_document(out or study / "report.html", _document(study, beside), measured)


def _document(study: Path, claims: Table | None = None) -> Document:
    name = study_kind(study)
    read, document = KINDS.get(name, _TEXT)
    if name == "recall":
        return document(read(study), claims, [] if claims is None else committed_text())
    if document is text_document:
        return document(read(study), claims)
    return document(read(study))


def build_first_report(recall_folder: Path, text: Path, out: Path, claims: Path | None) -> Path:
    """Write the page of a short reproduction; the folder ``text`` of a study may be missing."""
    loss, origins = loss_section(), []
    with records_named_in_errors(recall_folder, text):
        if (text / "study.json").exists():
            models = read_study(text)
            loss = loss_section(models)
            origins = [Part("The language models", provenance(models))]
        beside = None if claims is None else claims_table(claims)
        study = recall.read_recall_study(recall_folder)
        title = "Differential attention: the models that you trained"
        return write_document(out, recall.recall_document(study, beside, loss, origins, title))


def build_evaluation_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of an evaluation folder. It names results that cannot be shown together."""
    recorded = read_evaluation(folder)
    claims = evaluation_claims([x for results in recorded.results.values() for x in results])
    return write_document(out or folder / "report.html", evaluation_document(recorded, claims))


def markdown_results(study: Path) -> str:
    """The results of a study of any kind, in Markdown; empty while the study is unfinished."""
    with records_named_in_errors(study):
        if KINDS.get(study_kind(study), _TEXT) is _TEXT:
            return text_markdown(read_study(study))
        summary = _document(study).summary
        return "" if summary is None else table_markdown(summary)


def sentences_of(study: Path) -> list[str]:
    """The verdict of a finished study: the sentences at the top of its page."""
    with records_named_in_errors(study):
        verdict = _document(study).lead[0]
    return [verdict.text] if isinstance(verdict, Text) else [*cast(Any, verdict).items]
