"""Run a study of any kind: claim its folder, train its waves, judge its runs, write its page."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diffattn.errors import ConfigError
from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.recipes.catalog import GPU_SCALES, recipe
from diffattn.lab.data.corpora import corpus_hash, load_corpus
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import package_versions
from diffattn.lab.studies import workers as processes
from diffattn.lab.studies.page import build_study_page
from diffattn.lab.studies.reuse import require_studies, reuse_runs
from diffattn.lab.studies.study import FixedStudy, OnMessage, OnProgress, Runs, Study, Wave
from diffattn.lab.studies.study_folder import (
    begin_study,
    recorded_costs,
    recorded_study,
    require_same_data,
)
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.memory import require_run_memory
from diffattn.lab.training.prepare import PreparedData, has_packing, prepare_data
from diffattn.lab.training.run import RESULTS, require_enough

Judge = Callable[[Study, Runs, PreparedData | None, OnMessage], Any]
"""Makes the content of a study's ``results.json`` from its finished runs."""


def run_study(
    study: Study,
    folder: Path,
    judge: Judge,
    *,
    reuse: Sequence[Path] = (),
    workers: int | None = None,
    on_data: Callable[[PreparedData | None], None] = lambda data: None,
    on_message: OnMessage,
    on_progress: OnProgress,
) -> Path:
    """Begin or continue a study: train the missing runs, judge all, and write the page.

    Args:
        reuse: Folders of other studies. Finished runs that equal missing ones are copied.
        workers: One-thread processes side by side. Default: one per GPU, else per core, at most 2.
        on_data: Called with the tokens before the first run; ``None`` for recall tasks.

    Raises:
        ConfigError: ``folder`` holds another configuration, ``reuse`` names a folder without a
            study, the first runs do not fit into memory, or the scale needs a missing GPU.
    """
    if study.scale in GPU_SCALES and not torch.cuda.is_available() and _is_whole_size(study):
        raise ConfigError(f"reproduce: scale {study.scale!r} needs a CUDA device, got none here.")
    workers = processes.worker_count(workers)
    require_studies(reuse)
    first = next(iter(study.waves({}))).members
    for member in first:
        if isinstance(member.config, RunConfig):
            require_run_memory(member.config, side_by_side=min(workers, len(first)))
    results: dict[str, dict[str, Any]] = {}
    with sole_writer(folder):
        data = _claim(study, folder, on_message)
        on_data(data)
        for wave in study.waves(results):  # a later wave reads the results of those before it
            _train(study, wave, folder / "runs", data, reuse, workers, on_message, on_progress)
            for name in (member.config.name for member in wave.members):
                results[name] = read_json(folder / "runs" / name / RESULTS)
        costs = recorded_costs(folder / "runs", results)
        judged = judge(study, Runs(folder / "runs", results), data, on_message)
        write_json(folder / "results.json", judged)
        write_json(folder / "costs.json", {"schema": 1, "runs": costs})
        return build_study_page(folder)


def _is_whole_size(study: Study) -> bool:
    """Whether the models have at least the recipe's width; settings may shrink them for a CPU."""
    width = recipe(study.scale).model.hidden_size
    return study.base is None or study.base.model.hidden_size >= width


def _claim(study: Study, folder: Path, on_message: OnMessage) -> PreparedData | None:
    """Write ``study.json``, or check that the folder holds this study and the same tokens.

    A folder of another configuration or text is refused before any work. If the text is packed
    already, opening the packed data checks the text's hash.
    """
    resolved: dict[str, Any] = study.resolved()
    facts: dict[str, Any] = {"kind": study.kind}
    if isinstance(study, FixedStudy):
        facts["runs"] = [member.config.name for member in study.members()]
    if study.base is None:  # runs make their own data
        if recorded_study(folder, resolved) is None:
            begin_study(folder, resolved, facts)
        return None
    config = study.base.data
    recorded = recorded_study(folder, resolved, besides="data")
    if recorded is not None and not has_packing(folder / "data"):
        documents = load_corpus(config.source, text_field=config.text_field)
        require_same_data(folder, recorded, {"corpus_hash": corpus_hash(documents)})
    require = partial(require_enough, study.base)
    data = prepare_data(config, folder / "data", require=require, on_message=on_message)
    if recorded is not None:
        require_same_data(folder, recorded, data.facts())
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
    """Copy or train the unfinished runs of a wave."""
    members, title = wave.members, f"{wave.title}: " if wave.title else ""

    def drop_weights(name: str) -> None:
        if not study.keeps_weights(name):
            shutil.rmtree(runs / name / "model", ignore_errors=True)

    def show_progress(name: str, event: dict[str, Any]) -> None:
        if "done" in event:
            drop_weights(name)
        on_progress(name, event)

    if wave.total_steps is not None:
        on_progress(members[0].config.name, {"total": wave.total_steps})
    copied = [] if data is None else reuse_runs(members, data.facts(), runs, reuse)
    if copied:
        on_message(f"{title}copied {len(copied)} of {len(members)} models")
    for name in copied:
        on_progress(name, {"done": True})
    waiting = processes.unfinished(members, runs)
    if waiting:
        on_message(f"{title}training {len(waiting)} of {len(members)} models")
    if workers == 1 and not study.always_workers:
        processes.run_here(waiting, data, runs, on_progress=show_progress)
    else:
        folder = None if data is None else data.folder
        processes.run_members(
            waiting,
            folder,
            runs,
            workers=workers,
            on_progress=show_progress,
            short=study.shares_workers,
        )
    for member in members:  # a killed call may have missed the end of a run
        drop_weights(member.config.name)
