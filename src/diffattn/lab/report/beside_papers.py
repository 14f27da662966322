"""Put together the page that sets the papers' tables and figures beside records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from diffattn.errors import CheckpointError
from diffattn.lab.report.benchmarks.section import bench_section
from diffattn.lab.report.benchmarks.tables import read_results
from diffattn.lab.report.claims.folders import SortedFolders, sort_folders
from diffattn.lab.report.claims.tables import findings_of
from diffattn.lab.report.page.charts import Chart
from diffattn.lab.report.page.render import write_page
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.papers.page import CHAPTERS, TITLE, papers_page
from diffattn.lab.report.sections.gradient_flow import over_width, read_gradient_flow_study
from diffattn.lab.report.sections.gradient_flow_tables import judgement_table
from diffattn.lab.report.sections.recall import read_recall_study
from diffattn.lab.report.sections.scaling import loss_chart, read_scaling_study
from diffattn.lab.report.sections.stability import over_rates, read_stability_study
from diffattn.lab.report.study.files import read_study
from diffattn.lab.report.study.tables import holm_table

_READERS = {
    "text": read_study,
    "ablations": read_study,
    "rank": read_study,
    "recall": read_recall_study,
    "stability": read_stability_study,
    "scaling": read_scaling_study,
    "gradient-flow": read_gradient_flow_study,
}


class OwnStage(NamedTuple):
    """One part of a reproduction that has just run."""

    title: str
    sentence: str
    """What it found; may be empty."""
    link: str
    """Its own page, as seen from this one."""


def build_papers_report(
    folders: Sequence[Path],
    out: Path,
    root: Path | None = None,
    *,
    own: Sequence[OwnStage] = (),
    own_benchmarks: Sequence[Path] = (),
    scale: str = "",
) -> Path:
    """Write one HTML file: each table and figure of the papers, with what the records say of it.

    The same files give the same bytes. A folder that is damaged or does not fit is named in the
    page and left out; records of different protocol versions are never mixed.

    Args:
        folders: Of ``diffattn reproduce`` and ``diffattn evaluate``, and files of ``diffattn
            bench`` or folders of them.
        out: File to write.
        root: Paths are named from here. Default: as they are.
        own: What has just run and stands in a chapter of its own.
        own_benchmarks: Records of ``diffattn bench`` of the same, shown and not judged.
        scale: Of what has just run.

    Returns:
        The file written.

    Raises:
        CheckpointError: Of the folders none could be read.
        OSError: The file cannot be written; an existing one is left as it was.
    """
    found = sort_folders(folders, root)
    if folders and not (found.studies or found.evaluations or found.benchmarks):
        raise CheckpointError(f"report: one record must be readable, got none: {found.gaps[0]}")
    studies = _read(found)
    charts, tables = _own(studies)
    page = papers_page(
        findings_of(found.records, found.lies_at),
        charts,
        tables,
        found.gaps,
        _provenance(found, studies),
    )
    timed = [*found.records.benchmarks, *read_results(own_benchmarks)]
    measured = bench_section(timed)
    present = {"own": bool(own), "benchmarks": bool(measured)}
    chapters = {key: title for key, title in CHAPTERS.items() if present.get(key, True)}
    return write_page(
        Path(out), "papers.html.j2", title=TITLE, chapters=chapters, papers=page,
        benchmarks=measured, own=[stage._asdict() for stage in own], scale=scale,
    )  # fmt: skip


def _read(found: SortedFolders) -> dict[str, Any]:
    """Whole studies, for their charts."""
    studies = {}
    for kind, folder in found.studies.items():
        try:
            studies[kind] = _READERS[kind](folder)
        except CheckpointError as error:
            found.gaps.append(f"{found.name(folder)} has no chart here: {error}")
    return studies


def _own(studies: dict[str, Any]) -> tuple[dict[str, list[Chart]], dict[str, list[Table]]]:
    """Charts and tables of the records, by the section they belong to."""
    charts: dict[str, list[Chart]] = {}
    tables: dict[str, list[Table]] = {}
    scaling, stability = studies.get("scaling"), studies.get("stability")
    if scaling is not None and scaling.results is not None:
        for axis, section in (("parameters", "size"), ("tokens", "tokens")):
            charts[section] = [loss_chart(scaling.results["axes"][axis], axis)]
    if stability is not None and stability.results is not None:
        charts["v2"] = [over_rates(stability, "gradient_spike_share", "chart-gradient-spikes")]
    flow = studies.get("gradient-flow")
    if flow is not None and flow.results is not None:
        charts["gradients"], tables["gradients"] = [over_width(flow)], [judgement_table(flow)]
    if (text := studies.get("text")) is not None and text.results is not None:
        tables["size"] = [values for values in (holm_table(text),) if values is not None]
    for kind, section in (("ablations", "ablations"), ("rank", "shared")):
        rows = holm_table(studies[kind]) if kind in studies else None
        if rows is not None:
            tables[section] = [rows]
    return charts, tables


def _provenance(found: SortedFolders, studies: dict[str, Any]) -> list[tuple[str, str]]:
    said = []
    for kind, folder in found.studies.items():
        words = [f"study of {kind}"]
        if kind in studies:
            study = studies[kind]
            commits = sorted({(run.record.commit or "not recorded")[:12] for run in study.runs})
            machines = sorted({str(run.record.hardware.get("processor", "")) for run in study.runs})
            words += [
                f"scale {study.info.get('scale')}", f"created {study.info.get('created')}",
                f"{len(study.runs)} runs", f"commit {', '.join(commits)}", *filter(None, machines),
            ]  # fmt: skip
        said.append((found.name(folder), ", ".join(words)))
    said += [(found.name(folder), "evaluation") for folder in found.evaluations]
    for file, result in zip(found.benchmarks, found.records.benchmarks, strict=True):
        said.append((found.name(file), f"benchmarks: {', '.join(result.runs)}"))
    return said
