"""The page of a study, and the stages of ``reproduce all``. It loads without torch."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from diffattn.errors import ConfigError, check_known
from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.records.analysis import AnalysisResult
from diffattn.lab.report.analysis.page import is_analysis_folder
from diffattn.lab.report.beside_papers import build_papers_report
from diffattn.lab.report.build import build_first_report, build_report, sentences_of
from diffattn.lab.report.claims.records import BENCHMARKS, committed_folders
from diffattn.lab.report.claims.tables import checkout_root
from diffattn.lab.report.page.elements import Link
from diffattn.lab.report.page.runs import study_kind

_RESULTS = "results.json"
ANALYSIS, THROUGHPUT = "analysis", "throughput"
ALL_STUDIES = ("text", "gradient-flow", "recall", "stability", "scaling", "ablations", "rank")
STUDIES_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("smoke", "laptop"), ("recall", "text")),
    **dict.fromkeys(("study", "workstation"), ALL_STUDIES),
}
"""Scale -> its studies, in the order in which they run."""
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


def stages_of(scale: str, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the stages: studies, and at long scales the analysis of their models and timings."""
    check_known("reproduce", "scale", scale, STUDIES_OF)
    stages = (*STUDIES_OF[scale], *((ANALYSIS, THROUGHPUT) if is_long(scale) else ()))
    for name in only:
        check_known("reproduce", "only", name, stages)
    return tuple(name for name in stages if not only or name in only)


def is_long(scale: str) -> bool:
    """Whether a scale takes hours and runs all studies."""
    return STUDIES_OF[scale] == ALL_STUDIES


def scale_of(study: str, scale: str) -> str:
    """The scale of one study within the whole reproduction at ``scale``."""
    if not is_long(scale):
        return scale
    if study == "scaling":
        return "laptop"
    return scale if study in ("text", "ablations", "rank") else "study"


def build_study_page(
    study: Path, out: Path | None = None, *, benchmarks: Sequence[Path] | None = None
) -> Path:
    """Write the page of a study. Studies of kind text or recall also show the papers' claims.

    ``benchmarks``: by default the records of this checkout, for a study of kind text.
    """
    kind = study_kind(study)
    root = checkout_root()  # an installed package has no records
    if benchmarks is None:
        benchmarks = [root / BENCHMARKS] if root and kind == "text" else ()
    claims = root if kind in ("text", "recall") else None
    return build_report(study, out, benchmarks=benchmarks, claims=claims)


def require_scale(folder: Path, scale: str) -> None:
    """Refuse a folder with studies of another scale: one page cannot mix scales."""
    for name in ALL_STUDIES:
        path, expected = folder / name / "study.json", scale_of(name, scale)
        recorded = read_json(path).get("scale") if path.exists() else expected
        if recorded != expected:
            raise ConfigError(
                f"reproduce all: {folder} must hold studies of scale {scale!r}, got {name} of "
                f"scale {recorded!r}. Choose another --out."
            )


def analyse_models(
    folder: Path,
    *,
    on_start: Callable[[str], None] = lambda label: None,
    on_progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> None:
    """Analyse the first seed's model of every type on text that none read, if not done."""
    from diffattn.lab.analysis.session import AnalysisSettings, analyze
    from diffattn.lab.data.corpora import Document
    from diffattn.lab.report.analysis.page import build_analysis_report
    from diffattn.lab.training.prepare import open_data

    out, text = folder / ANALYSIS, folder / "text"
    if is_analysis_folder(out):
        return
    seed = read_json(text / "study.json")["seeds"][0]
    data, num_analysed = open_data(text / "data"), 65_536
    num_read = min(2 * num_analysed, data.validation.num_tokens)
    held_out = data.validation.read(0, num_read).tolist()
    document = Document(name="validation", text=data.tokenizer.decode(held_out))
    result = analyze(
        {name: str(text / "runs" / f"{name}-seed{seed}") for name in TYPES},
        lambda: [document],
        "validation text of the comparison",
        AnalysisSettings(tokens=num_analysed),
        on_start=on_start,
        on_progress=on_progress,
    )
    out.mkdir(exist_ok=True)
    result.write(out)
    build_analysis_report(out)


def time_models(
    folder: Path, scale: str, *, on_message: Callable[[str], None] = lambda line: None
) -> None:
    """Time whole models on one CPU thread, at scale ``workstation`` on the GPU."""
    from diffattn.lab.benchmark.config import BenchConfig, result_path
    from diffattn.lab.benchmark.session import run_bench

    device = "cuda" if scale == "workstation" else "cpu"
    config = BenchConfig(suite="models", scale="full", device=device)
    run_bench(config, result_path(folder / THROUGHPUT, config.device), on_message=on_message)


def finish(folder: Path, scale: str) -> Path:
    """Write ``results.json`` and the page of all finished stages, also those of earlier calls.

    The page of a short scale shows recall and text. That of a long scale has every table of the
    papers; kinds that this folder lacks are those of the committed studies.
    """
    stages = [  # without timings, which differ between two runs
        name
        for name in stages_of(scale)
        if (folder / name / _RESULTS).exists() or is_analysis_folder(folder / name)
    ]
    sentences = {
        name: "" if name == ANALYSIS else sentences_of(folder / name)[0] for name in stages
    }
    entries = {
        name: {"sha256": _digest(folder / name), "sentence": sentences[name]} for name in stages
    }
    head = {"schema": 1, "kind": "reproduction", "scale": scale}
    write_json(folder / _RESULTS, head | {"stages": entries})
    root, page = checkout_root(), folder / "report.html"
    if not is_long(scale):
        if "recall" in stages:
            return build_first_report(folder / "recall", folder / "text", page, root)
        return build_report(folder / "text", page, claims=root)
    studies = {name: folder / name for name in stages if name in ALL_STUDIES}
    others = [
        path
        for path in ([] if root is None else committed_folders(root))
        if not (path / "study.json").exists() or study_kind(path) not in studies
    ]
    return build_papers_report(
        [*studies.values(), *others],
        page,
        root,
        stages=[Link(f"{name}/report.html", TITLES[name], sentences[name]) for name in stages],
        stage_benchmarks=[folder / THROUGHPUT] if any((folder / THROUGHPUT).glob("*.json")) else [],
        scale=scale,
    )


def _digest(stage: Path) -> str:
    """SHA-256 of the contents that do not change if a stage is repeated with the same seed."""
    if stage.name != ANALYSIS:
        return hashlib.sha256((stage / _RESULTS).read_bytes()).hexdigest()
    models = [asdict(analysed) for analysed in AnalysisResult.read(stage).models]
    for model in models:
        facts = model["model"]
        model["model"] = {key: facts[key] for key in facts if key in ("label", "weights")}
    return hashlib.sha256(json.dumps(models, sort_keys=True).encode()).hexdigest()
