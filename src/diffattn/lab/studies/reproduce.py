"""Reproduce a study of any kind: train its waves, judge its runs, write its page."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffattn.errors import ConfigError, check_known, short
from diffattn.files.folders import verify_manifest
from diffattn.files.io import read_json, read_jsonl, write_json
from diffattn.lab.catalog.models import STUDY_MODELS
from diffattn.lab.catalog.recipes.catalog import GPU_SCALES, default_folder, recipe
from diffattn.lab.data.corpora import corpus_hash, load_corpus
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import (
    RunRecord,
    config_hash,
    difference,
    is_claimed,
    package_versions,
    require_schema,
)
from diffattn.lab.records.stored_runs import RUNS, TABLE, runs_folder, unpack_runs
from diffattn.lab.studies import workers as processes
from diffattn.lab.studies.gradient_flow.judgements import gradient_flow_results
from diffattn.lab.studies.gradient_flow.runs import gradient_flow_study
from diffattn.lab.studies.practical import practical_results, practical_study
from diffattn.lab.studies.recall.config import recall_study
from diffattn.lab.studies.recall.summary import judge_recall
from diffattn.lab.studies.scaling import scaling_results, scaling_study
from diffattn.lab.studies.stability import stability_results, stability_study
from diffattn.lab.studies.study import (
    FixedStudy,
    OnMessage,
    OnProgress,
    PlannedRun,
    Runs,
    Study,
    Wave,
)
from diffattn.lab.studies.text.comparison import comparison
from diffattn.lab.studies.text.summary import judge_comparison
from diffattn.lab.studies.whole import build_study_page
from diffattn.lab.training.callbacks import METRICS
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.planning.search import require_run_memory
from diffattn.lab.training.prepare import MARKER, PreparedData, prepare_data
from diffattn.lab.training.run import RESULTS, precision_advice, require_enough

OF_TASKS = ("recall", "practical")
"""Kinds that take no changed settings, as their runs make their own data."""
KINDS: dict[str, tuple[Callable[..., Study], Callable[..., Any]]] = {
    **{name: (partial(comparison, kind=name), judge_comparison) for name in STUDY_MODELS},
    "recall": (recall_study, judge_recall),
    "practical": (practical_study, lambda study, runs, *_: practical_results(study, runs.results)),
    "stability": (
        stability_study,
        lambda study, runs, *_: stability_results(study, runs.results, runs.rows("metrics")),
    ),
    "gradient-flow": (
        gradient_flow_study,
        lambda study, runs, *_: gradient_flow_results(study, runs.results, runs.rows("gradients")),
    ),
    "scaling": (
        scaling_study,
        lambda study, runs, *_: scaling_results(
            study, {name: result["validation_loss"] for name, result in runs.results.items()}
        ),
    ),
}
"""Kind of study -> functions that make its settings, and from its runs ``results.json``."""


def reproduce(
    scale: str = "laptop",
    *,
    kind: str = "text",
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
    extrapolate: bool = False,
    reuse: Sequence[str | Path] = (),
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train the models of a study on the same data, and compare them.

    The same call again continues an interrupted study.

    Args:
        scale: ``"smoke"`` (a minute), ``"laptop"`` (about ten minutes, scaling an hour) or
            ``"study"`` (hours to a day, not for scaling). Text, ablations and rank also have
            ``"workstation"`` and ``"lease"`` (one GPU; a lease is a quarter of an hour at a time).
        kind: ``"text"``, ``"ablations"``, ``"rank"`` (of Shared DIFF), ``"recall"``,
            ``"practical"``, ``"stability"``, ``"gradient-flow"`` or ``"scaling"``.
        out: Study folder. Default: ``runs/<kind>-<scale>``; for text ``runs/<scale>``.
        seeds: Seeds of initial weights and data order. Default: the scale's seeds.
        settings: Changes such as ``"train.num_steps=500"`` or ``"data.source=my_texts"``; recall
            and practical take none.
        match: The budget that the models keep equal; see :func:`diffattn.models.twins.twin`.
        extrapolate: Only for scaling: also read equivalents beyond the points of the fits.
        reuse: Folders of other studies on text, whose finished runs with the same settings, seed
            and tokens are copied and not trained again.
        workers: One-thread processes side by side. Default: one per GPU, else per core, at most 2.
        on_progress: See :data:`diffattn.lab.studies.study.OnProgress`.

    Returns:
        The path of ``report.html``. Beside it lie ``study.json``, ``results.json``, ``costs.json``,
        ``runs/``, and for some kinds ``data/``, ``counts.json`` and ``maps.json``.

    Raises:
        ConfigError: An unknown kind, scale or setting, or a folder or device that does not fit.
        CheckpointError: ``out`` or a run to be copied holds foreign or damaged files.
        DiffAttnError: A run failed; or all runs are made, but one that must not diverge did.
    """
    study = make_study(
        kind, scale, seeds=seeds, settings=settings, match=match, extrapolate=extrapolate
    )
    return run_study(
        study,
        default_folder(kind, scale) if out is None else Path(out),
        reuse=[Path(folder) for folder in reuse],
        workers=workers,
        on_message=on_message,
        on_progress=on_progress,
    )


def make_study(
    kind: str,
    scale: str,
    *,
    settings: Sequence[str] = (),
    extrapolate: bool = False,
    **options: Any,
) -> Study:
    """The settings of a study. Arguments are those of :func:`reproduce`."""
    check_known("reproduce", "kind", kind, KINDS)
    if settings and kind in OF_TASKS:
        raise ConfigError(f"reproduce {kind}: settings must be left out, got {settings!r}.")
    if kind == "scaling":
        options["extrapolate"] = extrapolate
    elif extrapolate:
        raise ConfigError(f"reproduce {kind}: extrapolate must be left out, got True.")
    make, _ = KINDS[kind]
    return make(scale, settings=settings, **options)


def run_study(
    study: Study,
    folder: Path,
    *,
    reuse: Sequence[Path] = (),
    workers: int | None = None,
    on_data: Callable[[PreparedData | None], None] = lambda data: None,
    on_message: OnMessage,
    on_progress: OnProgress,
) -> Path:
    """Begin or continue a study: train the missing runs, judge all, and write the page.

    Arguments are those of :func:`reproduce`. ``on_data`` is called with the tokens before the first
    run, with ``None`` for recall tasks.
    """
    if study.scale in GPU_SCALES and not torch.cuda.is_available():
        width = recipe(study.scale).model.hidden_size  # settings may shrink models for a CPU
        if study.base is None or study.base.model.hidden_size >= width:
            raise ConfigError(f"reproduce: scale {study.scale!r} needs a CUDA device, got none.")
    workers = processes.worker_count(workers)
    require_studies(reuse)
    first = next(iter(study.waves({}))).runs
    for run in first:
        if isinstance(run.config, RunConfig):
            require_run_memory(run.config, side_by_side=min(workers, len(first)))
    results: dict[str, dict[str, Any]] = {}
    with sole_writer(folder):
        data = _claim(study, folder, on_message)
        on_data(data)
        for wave in study.waves(results):  # a later wave reads the results of those before it
            _train(study, wave, folder / "runs", data, reuse, workers, on_message, on_progress)
            for name in (run.config.name for run in wave.runs):
                results[name] = read_json(folder / "runs" / name / RESULTS)
        costs = recorded_costs(folder / "runs", results)
        _, judge = KINDS[study.kind]
        judged = judge(study, Runs(folder / "runs", results), data, on_message)
        write_json(folder / "results.json", judged)
        write_json(folder / "costs.json", {"schema": 1, "runs": costs})
        return build_study_page(folder)


def _claim(study: Study, folder: Path, on_message: OnMessage) -> PreparedData | None:
    """Write ``study.json``, or check that the folder holds this study and the same tokens.

    If the text is packed already, opening the packed data checks the text's hash.
    """
    resolved = study.resolved()
    recorded = _recorded_study(folder, resolved)
    facts: dict[str, Any] = {"kind": study.kind}
    if isinstance(study, FixedStudy):
        facts["runs"] = [run.config.name for run in study.planned_runs()]
    if study.base is None:  # runs make their own data
        if recorded is None:
            begin_study(folder, resolved, facts)
        return None
    config = study.base.data
    if recorded is not None and not (folder / "data" / MARKER).exists():
        documents = load_corpus(config.source, text_field=config.text_field)
        _require_same_data(folder, recorded, {"corpus_hash": corpus_hash(documents)})
    require = partial(require_enough, study.base)
    data = prepare_data(config, folder / "data", require=require, on_message=on_message)
    if recorded is not None:
        _require_same_data(folder, recorded, data.facts())
        return data
    source = {"source": config.source, "vocab_size": config.vocab_size}
    data_facts = source | {"python": package_versions()["python"]} | data.facts()
    begin_study(folder, resolved, facts | {"data": data_facts})
    return data


def _train(
    study: Study,
    wave: Wave,
    runs: Path,
    data: PreparedData | None,
    reuse: Sequence[Path],
    workers: int,
    on_message: OnMessage,
    on_progress: OnProgress,
) -> None:
    planned, title = wave.runs, f"{wave.title}: " if wave.title else ""

    def drop_weights(name: str) -> None:
        if not study.keeps_weights(name):
            shutil.rmtree(runs / name / "model", ignore_errors=True)

    def show_progress(name: str, event: dict[str, Any]) -> None:
        if "done" in event:
            drop_weights(name)
        on_progress(name, event)

    if wave.total_steps is not None:
        on_progress(planned[0].config.name, {"total": wave.total_steps})
    copied = [] if data is None else reuse_runs(planned, data.facts(), runs, reuse)
    if copied:
        on_message(f"{title}copied {len(copied)} of {len(planned)} models")
    for name in copied:
        on_progress(name, {"done": True})
    waiting = processes.unfinished(planned, runs)
    if waiting:
        on_message(f"{title}training {len(waiting)} of {len(planned)} models")
        config = waiting[0].config
        if isinstance(config, RunConfig) and (advice := precision_advice(config)):
            on_message(advice)
    if workers == 1 and not study.always_workers:
        processes.run_here(waiting, data, runs, on_progress=show_progress)
    else:
        folder, short = None if data is None else data.folder, study.shares_workers
        processes.train_runs(
            waiting, folder, runs, workers=workers, on_progress=show_progress, short=short
        )
    for run in planned:  # a killed call may have missed the end of a run
        drop_weights(run.config.name)


_MARKER = "study.json"


def _recorded_study(folder: Path, resolved: dict[str, Any]) -> dict[str, Any] | None:
    """``study.json`` of a folder that holds the same study; ``None`` for a free folder.

    The run folders of a committed study are unpacked from its table, so that it can continue.
    """
    if not is_claimed(folder, _MARKER, "a study", besides="data"):
        return None
    path = folder / _MARKER
    recorded = read_json(path)
    require_schema(recorded, path)
    if recorded.get("config_hash") != config_hash(resolved):
        fault = difference("", {name: recorded.get(name) for name in resolved}, resolved, ())
        hint = "Choose another --out"
        if recorded.get("seeds") != resolved.get("seeds") and "data" in recorded:
            hint += f"; for more seeds, with --reuse {folder}, which copies its runs"
        raise ConfigError(
            f"reproduce: {folder} must hold this configuration to be continued, got another one"
            f"{f': {short(fault)}' if fault else ''}. {hint}."
        )
    if (folder / TABLE).exists() and not (folder / RUNS).exists():
        unpack_runs(folder / TABLE, folder / RUNS)
    return recorded


def begin_study(folder: Path, resolved: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write ``study.json``: the configuration, and ``facts`` such as the data."""
    head = {
        "schema": 1,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "config_hash": config_hash(resolved),
    }
    write_json(folder / _MARKER, head | facts | resolved)


def recorded_costs(runs: Path, names: Iterable[str]) -> dict[str, Any]:
    """Name of a finished run -> its ``costs.json``, with this name as ``run``."""
    costs = {}
    for name in names:
        path = runs / name / "costs.json"
        # A run that diverged before its first checkpoint has no costs.
        if path.exists() or read_json(runs / name / "results.json").get("diverged_step") is None:
            costs[name] = read_json(path) | {"run": name}
    return costs


def _require_same_data(folder: Path, recorded: dict[str, Any], facts: dict[str, Any]) -> None:
    changed = [key for key in facts if recorded["data"].get(key) != facts[key]]
    if changed:
        raise ConfigError(
            f"reproduce: the data of {folder} must be unchanged to continue, got another "
            f"{changed[0]}. Choose another --out."
        )


def require_studies(folders: Iterable[Path]) -> None:
    """Refuse folders that hold no ``study.json`` or no runs."""
    for folder in folders:
        if not is_reusable(folder):
            raise ConfigError(
                "reproduce: reuse must name folders of studies (study.json, and runs/ or "
                f"runs.jsonl.gz), got {folder}."
            )
        path = folder / "study.json"
        require_schema(read_json(path), path)


def is_reusable(folder: Path) -> bool:
    """Whether a folder holds a study with run directories or their table."""
    return (folder / "study.json").exists() and runs_folder(folder).is_dir()


def reuse_runs(
    planned: Sequence[PlannedRun], facts: dict[str, Any], runs: Path, studies: Iterable[Path]
) -> list[str]:
    """Copy finished runs with the same settings, seed and tokens, of the first study that has them.

    A copy keeps its record. ``facts``: hashes and counts of the tokens."""
    waiting = [m.config for m in planned if not (runs / m.config.name).exists()]
    finished: dict[str, Path] = {}
    for study in studies if waiting else ():
        for run in sorted(runs_folder(Path(study)).glob("[!.]*")):  # no unfinished copy
            if processes.is_done(run):
                finished.setdefault(config_hash(RunRecord.read(run).config), run)
    copied = []
    for config in waiting:
        settings = config.resolved()
        settings["data"] |= facts
        if source := finished.get(config_hash(settings)):
            read_jsonl(source / METRICS, recorded=read_json(source / RESULTS).get("metrics"))
            if (source / "model").exists():  # records are committed without weights
                verify_manifest(source / "model")
            unfinished = runs / f".{config.name}.copying"
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(source, unfinished)
            unfinished.rename(runs / config.name)
            copied.append(config.name)
    return copied
