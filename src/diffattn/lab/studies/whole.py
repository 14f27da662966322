"""The whole reproduction: every study that a scale affords, then the papers beside all of it."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.files.io import read_json, write_json
from diffattn.lab.data.corpora import Document
from diffattn.lab.records.analysis import AnalysisResult
from diffattn.lab.records.study_results import read_study_results
from diffattn.lab.report.analysis.page import is_analysis_folder
from diffattn.lab.report.beside_papers import build_papers_report
from diffattn.lab.report.claims.records import committed_folders
from diffattn.lab.report.claims.tables import committed_claims
from diffattn.lab.report.page.elements import Link
from diffattn.lab.report.page.runs import study_kind
from diffattn.lab.training.prepare import open_data
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.known_names import check_known

ANALYSIS, THROUGHPUT = "analysis", "throughput"
_FEW = ("text", "gradient-flow", "recall")
_ALL = (*_FEW, "stability", "scaling", "ablations", "rank")
STUDIES_OF: dict[str, tuple[str, ...]] = {
    "smoke": _FEW,
    "laptop": _FEW,
    "study": _ALL,
    "workstation": _ALL,
}
"""Scale to its studies, in the order in which they run."""
TITLES = {
    "text": "The comparison on text",
    "gradient-flow": "Gradient flow",
    "recall": "Recall among noise",
    "stability": "Stability at large learning rates",
    "scaling": "Scaling by size and tokens",
    "ablations": "Ablations",
    "rank": "The rank of Shared DIFF",
    ANALYSIS: "Attention, outliers and λ of the models trained on text",
    THROUGHPUT: "Speed of whole models",
}
_ANALYSED_TOKENS = {"smoke": 512, "laptop": 8_192, "study": 65_536, "workstation": 65_536}
_RESULTS = "results.json"


def stages_of(scale: str, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the stages, in order: studies, then the analysis of their models, then timings.

    Args:
        scale: A key of :data:`STUDIES_OF`.
        only: Names to keep. Default: all.

    Raises:
        ConfigError: An unknown scale or name, or the analysis without the comparison on text.
    """
    check_known("reproduce", "scale", scale, STUDIES_OF)
    stages = (*STUDIES_OF[scale], ANALYSIS, THROUGHPUT)
    for name in only:
        check_known("reproduce", "only", name, stages)
    return tuple(name for name in stages if not only or name in only)


def is_long(scale: str) -> bool:
    """Whether a scale takes hours, so that it runs all studies with all their seeds."""
    return STUDIES_OF[scale] == _ALL


def scale_of(study: str, scale: str) -> str:
    """The scale of one study within the whole: its largest, where it has none of that name.

    On one GPU the comparisons grow by their recipe; studies of many small models do not.
    """
    if not is_long(scale):
        return scale
    if study == "scaling":
        return "laptop"
    return scale if study in ("text", "ablations", "rank") else "study"


def require_scale(folder: Path, scale: str) -> None:
    """Refuse a folder with studies of another scale, which would share a page with these.

    Args:
        folder: Of the whole reproduction; need not exist.
        scale: A key of :data:`STUDIES_OF`.

    Raises:
        ConfigError: It holds one.
        CheckpointError: A ``study.json`` is damaged.
    """
    for name in _ALL:
        path, expected = folder / name / "study.json", scale_of(name, scale)
        recorded = read_json(path).get("scale") if path.exists() else expected
        if recorded != expected:
            raise ConfigError(
                f"reproduce all: {folder} must hold studies of scale {scale!r}, got {name} of "
                f"scale {recorded!r}. Choose another --out."
            )


def finished_stages(folder: Path, scale: str) -> tuple[str, ...]:
    """Names of the stages that have results in a folder, whichever call made them, in order.

    Args:
        folder: Of the whole reproduction.
        scale: Key of :data:`STUDIES_OF`.
    """
    return tuple(name for name in stages_of(scale) if _has_results(folder, name))


def _has_results(folder: Path, stage: str) -> bool:
    if stage == ANALYSIS:
        return is_analysis_folder(folder / stage)
    if stage == THROUGHPUT:
        return any((folder / stage).glob("*.json"))
    return (folder / stage / _RESULTS).exists()


def analyse_models(
    folder: Path,
    scale: str,
    *,
    on_start: Callable[[str], None] = lambda label: None,
    on_progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> None:
    """Analyse the first seed's model of every type on text that none was trained on.

    Args:
        folder: Of the whole reproduction; its comparison on text has finished.
        scale: Decides how much text.
        on_start: Given the type of each model.
        on_progress: Given the type, and windows done and in all.

    Raises:
        CheckpointError: The comparison on text has not finished.
    """
    from diffattn.lab.analysis.session import AnalysisSettings, analyze
    from diffattn.lab.report.analysis.page import build_analysis_report

    out, text = folder / ANALYSIS, folder / "text"
    if is_analysis_folder(out):
        return
    seed = read_json(text / "study.json")["seeds"][0]
    data = open_data(text / "data")
    tokens = _ANALYSED_TOKENS[scale]
    held_out = data.validation.read(0, min(2 * tokens, data.validation.num_tokens)).tolist()
    document = Document(name="validation", text=data.tokenizer.decode(held_out))
    result = analyze(
        {name: str(text / "runs" / f"{name}-seed{seed}") for name in ATTENTION_TYPES},
        lambda: [document],
        "validation text of the comparison",
        AnalysisSettings(tokens=tokens),
        on_start=on_start,
        on_progress=on_progress,
    )
    out.mkdir(exist_ok=True)
    result.write(out)
    build_analysis_report(out)


def time_models(
    folder: Path, scale: str, *, on_message: Callable[[str], None] = lambda line: None
) -> None:
    """Time whole models on one CPU thread or on the GPU, as ``diffattn bench models`` does.

    Args:
        folder: Of the whole reproduction.
        scale: A long one has all cases, a short one the quick ones. ``"workstation"`` is of a GPU.
        on_message: Given one line per case.
    """
    from diffattn.lab.benchmark.config import BenchConfig, result_path
    from diffattn.lab.benchmark.session import run_bench

    config = BenchConfig(
        suite="models",
        scale="full" if is_long(scale) else "quick",
        device="cuda" if scale == "workstation" else "cpu",
    )
    run_bench(config, result_path(folder / THROUGHPUT, config.device), on_message=on_message)


def finish(folder: Path, scale: str) -> Path:
    """Write ``results.json`` and the page of all finished stages, also those of earlier calls.

    A short scale judges claims by the committed records, which have more seeds. A long scale judges
    them by its studies, and by a committed one where it has none.

    Args:
        folder: Of the whole reproduction.
        scale: Key of :data:`STUDIES_OF`.

    Returns:
        The path of ``report.html``.
    """
    finished = finished_stages(folder, scale)
    stages = [name for name in finished if name != THROUGHPUT]  # times are never the same twice
    sentences = {name: _first_sentence(folder / name) for name in stages}
    entries = {
        name: {"sha256": _digest(folder / name), "sentence": sentences[name]} for name in stages
    }
    head = {"schema": 1, "kind": "reproduction", "scale": scale}
    write_json(folder / _RESULTS, head | {"stages": entries})
    root = committed_claims()
    folders = [] if root is None else committed_folders(root)
    if is_long(scale) or root is None:
        studies = {name: folder / name for name in stages if name in _ALL}
        folders = [*studies.values(), *(path for path in folders if _kind(path) not in studies)]
    return build_papers_report(
        folders,
        folder / "report.html",
        root,
        stages=[Link(f"{name}/report.html", TITLES[name], sentences[name]) for name in stages],
        stage_benchmarks=[folder / THROUGHPUT] if THROUGHPUT in finished else [],
        scale=scale,
    )


def _kind(folder: Path) -> str | None:
    """The kind of a study; ``None`` for other records."""
    return study_kind(folder) if (folder / "study.json").exists() else None


def _first_sentence(stage: Path) -> str:
    """The first sentence of a study's verdict, or its claims; empty for an analysis."""
    if stage.name == ANALYSIS:
        return ""
    results = read_study_results(stage)
    if "tasks" in results:
        questions = {"can": "Who learns it", "sooner": "Who learns it sooner"}
        return " ".join(
            f"{question}: {task[key]['sentence']}"
            for task in results["tasks"].values()
            for key, question in questions.items()
        )
    first, stop, _ = results["verdict"]["sentence"].partition(". ")
    return str(first + stop.strip())


def _digest(stage: Path) -> str:
    """SHA-256 of the contents that are the same in two runs of one seed."""
    if stage.name != ANALYSIS:
        return hashlib.sha256((stage / _RESULTS).read_bytes()).hexdigest()
    models: list[dict[str, Any]] = [
        asdict(analysed) for analysed in AnalysisResult.read(stage).models
    ]
    for model in models:
        facts = model["model"]
        model["model"] = {key: facts[key] for key in facts if key in ("label", "weights")}
    return hashlib.sha256(json.dumps(models, sort_keys=True).encode()).hexdigest()
