"""Small folders of every kind that a page is made of; most are cut out of committed records."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.lab.records.results import read_benchmarks
from diffattn.lab.report.analysis.page import build_analysis_report
from diffattn.lab.report.build import build_evaluation_report, build_report, markdown_results
from lab.report.made_up_analysis import write_analysis
from lab.report.made_up_evaluation import write_evaluation
from lab.report.made_up_studies import write_gradient_flow, write_scaling, write_stability
from lab.report.made_up_study import write_study
from recall_records import write_recall_study
from tools.pages.bench_tables import markdown
from trials.hostile_values import write_record

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "results" / "cpu.json"
TYPES = ("softmax", "diff")
SEEDS = (0, 1)
TEXT_TOKENS = ("a", " ", "b")
OF_RUN = ("run.json", "results.json", "costs.json", "metrics.jsonl")


@dataclass(frozen=True)
class Folder:
    """Records, and what is made of them."""

    records: tuple[Path, ...]
    """One of every kind."""
    build: Callable[[], str]
    """Make the page, and give its text."""


def read(path: Path) -> Any:
    """Content of a record, without what says that it is whole."""
    text = path.read_text(encoding="utf-8")
    value = json.loads(text) if path.suffix == ".json" else list(map(json.loads, text.splitlines()))
    for entry in value if isinstance(value, list) else [value]:
        for seal in ("checksum", "row"):
            entry.pop(seal, None)
    return value


def text_study(folder: Path, *, finished: bool = True) -> Folder:
    """A type, a control and an ablation; unfinished, its numbers are computed from its runs."""
    sizes = {"seeds": SEEDS, "tokens": TEXT_TOKENS, "num_layers": 2, "num_steps": 25}
    write_study(folder, variants=("softmax", "diff", "none", "diff_v2_gate"), sweep=True, **sizes)
    write_record(folder / "results.json", _shortened(read(folder / "results.json")))
    costs = read(folder / "costs.json")
    costs["runs"] = dict(list(costs["runs"].items())[:3])
    write_record(folder / "costs.json", costs)
    of_study = ("study.json", "results.json", "costs.json", "maps.json")
    records = [folder / "runs" / "diff-seed0" / name for name in OF_RUN]
    if finished:
        records += [folder / name for name in of_study]
    else:
        for name in of_study[1:]:
            (folder / name).unlink()
    return Folder(tuple(records), lambda: _study_page(folder))


def study_of_runs(write: Callable[[Path], Any], run: str) -> Callable[[Path], Folder]:
    """The records of a study and of one of its runs."""

    def make(folder: Path) -> Folder:
        write(folder)
        names = ("study.json", "results.json", *(f"runs/{run}/{name}" for name in OF_RUN))
        return Folder(tuple(folder / name for name in names), lambda: _study_page(folder))

    return make


STUDIES = {
    "recall": study_of_runs(write_recall_study, "noisy_recall-diff-seed0"),
    "stability": study_of_runs(write_stability, "diff-lr0.128-seed1"),
    "gradient_flow": study_of_runs(write_gradient_flow, "base-diff-seed1"),
    "scaling": study_of_runs(write_scaling, "diff-h64-s200-seed1"),
}


def evaluation(folder: Path) -> Folder:
    """Two models and a line chart and heat maps of each."""
    write_evaluation(folder, low=0.1, high=2.0, higher_is_better=False)
    names = ("evaluation.json", "comparison.json", "one/needle/result.json", "one/needle/run.json")
    records = tuple(folder / name for name in names)
    return Folder(records, lambda: _page(build_evaluation_report(folder)))


def analysis(folder: Path) -> Folder:
    """Two models and a run without weights."""
    write_analysis(folder)
    return Folder((folder / "analysis.json",), lambda: _page(build_analysis_report(folder)))


def benchmarks(folder: Path) -> Folder:
    """Two lengths of one shape, a decode shape and a model, in two runs."""
    record = read(BENCHMARKS)
    kinds: dict[str, list[Any]] = {}
    for case in record["cases"]:
        kinds.setdefault(case["suite"], []).append(case)

    def but_length(case: dict[str, Any]) -> list[Any]:
        return [case["dtype"], case["mode"], {**case["shape"], "N": None}]

    alike = [case for case in kinds["ops"] if but_length(case) == but_length(kinds["ops"][0])]
    record["cases"] = [*alike[:2], *kinds["decode"][:1], *kinds["models"][:1]]
    for case in record["cases"]:
        del case["rows"][3:]
    used = {case["run"] for case in record["cases"]}
    record["runs"] = {name: run for name, run in record["runs"].items() if name in used}
    path = folder / "bench" / "cpu.json"
    write_record(path, record)
    study = folder / "study"
    text_study(study, finished=False)

    def build() -> str:
        for result in read_benchmarks([path]).values():
            if result.cases:
                markdown(result)
        return _page(build_report(study, benchmarks=[path]))

    return Folder((path,), build)


def claims(folder: Path) -> Folder:
    """Every kind of record that claims are read from, beside a study.

    Evaluations and benchmarks have one reader everywhere, which their own trials try.
    """
    root = folder / "published"
    text_study(folder / "study", finished=False)
    text_study(root / "text")
    for name, make in STUDIES.items():
        make(root / name)
    evaluation(root / "evaluations" / "needle")
    records = tuple(root / name / "results.json" for name in ("text", *STUDIES))
    return Folder(records, lambda: _page(build_report(folder / "study", claims=folder)))


FOLDERS: dict[str, Callable[[Path], Folder]] = {
    "text study": text_study,
    "unfinished text study": lambda folder: text_study(folder, finished=False),
    **{f"{name} study": make for name, make in STUDIES.items()},
    "evaluation": evaluation,
    "analysis": analysis,
    "claims": claims,
    "benchmarks": benchmarks,
}


def _study_page(folder: Path) -> str:
    """The page; the table in Markdown must be made or refused like it."""
    page = _page(build_report(folder))
    markdown_results(folder)
    return page


def _page(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _shortened(results: dict[str, Any]) -> dict[str, Any]:
    """One or two of everything that results hold more of."""
    parts = ("repeated_bigram", "quarter_1")
    for name, entry in results["variants"].items():
        for at, group in entry["at"].items():
            kept = parts if (name, at) == ("diff", "best") else parts[:1]
            group["parts"] = {part: group["parts"][part] for part in kept}
    for entry in results["rates"]["variants"].values():
        del entry["tried"][2:]
    for entry in results["count_models"].values():
        entry["parts"] = {part: entry["parts"][part] for part in parts[:1]}
    wanted = {("diff", part) for part in parts[:1]}
    results["differences"] = [
        entry
        for entry in results["differences"]
        if entry["metric"] == "validation_loss" or (entry["variant"], entry["metric"]) in wanted
    ]
    return results
