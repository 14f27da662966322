"""The main job: train matched models on real text, compare them, write a report."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.files.io import read_json, write_json
from diffattn.lab.catalog.recipes.catalog import SCALES, recipe
from diffattn.lab.data.corpora import corpus_hash, load_corpus
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import package_versions, require_schema
from diffattn.lab.report.build import build_report
from diffattn.lab.report.claims.tables import committed_claims
from diffattn.lab.report.page.wording import listing
from diffattn.lab.report.study.published import PUBLISHED
from diffattn.lab.studies.study_folder import begin_study, recorded_study, require_same_data
from diffattn.lab.studies.text.comparison import (
    ComparisonConfig,
    Sweep,
    best_rates,
    rates_to_try,
    sweep_name,
    trial_name,
    whole_name,
)
from diffattn.lab.studies.text.count_models import count_model_results
from diffattn.lab.studies.variants import BASELINE, CONTROLS, FLOOR, MEMBERS, RANKS_ALONE, SWEPT
from diffattn.lab.studies.workers import Member, OnMessage, OnProgress
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.prepare import PreparedData, has_packing, prepare_data
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.known_names import check_known

_COUNTS = "counts.json"
_COUNTS_SCHEMA = 2
_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": (0,), "variants": SWEPT},
    # The number is that of the committed record; neither ablations nor matches are trained.
    "laptop": {"seeds": (0,), "variants": (*ATTENTION_TYPES, *CONTROLS), "fewer_seeds": 5},
    "study": {
        "seeds": (0, 1, 2, 3, 4),
        "variants": MEMBERS["text"],
        "learning_rates": (1e-3, 2e-3, 4e-3, 8e-3),
        "whole_rates": 2,
    },
    "workstation": {
        "seeds": (0, 1, 2),
        "variants": MEMBERS["text"],
        "learning_rates": (3e-4, 6e-4, 1.2e-3, 2.4e-3),
        "whole_rates": 2,
    },
}
"""What each scale compares besides its recipe."""
_SHORT = ("smoke", "laptop")
"""Scales whose runs share processes: to start one can take a fifth of such a run's time."""
_RATE_FACTORS = {"study": {"diff": 0.5, "shared_diff": 0.5}}
"""Of studies of rows: what the matched comparison of the scale chose on its sweep's seed. At the
base's rate Shared DIFF does not pass the induction phase in time: its rows would say nothing.
Settings of the model or the rate leave them as they are, and the statement says whose they are."""
_SEEDS_OF_ROWS = {"smoke": 1, "laptop": 3}
_SEEDS_OF_LONG_ROWS = 5
"""Of a study of rows where the scale has no number of its own, that of the committed record. With
three a difference outlives Holm's adjustment over 17 rows if it is ten times its spread over seeds,
with five at three times."""


def reproduce(
    scale: str = "laptop",
    *,
    kind: str = "text",
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
    reuse: Sequence[str | Path] = (),
    workers: int | None = None,
    on_message: OnMessage = print,
    on_progress: OnProgress = lambda name, event: None,
) -> Path:
    """Train softmax, DIFF V1, DIFF V2 and Shared DIFF models on the same data, and compare them.

    Beside them the controls: models that lack what may explain a difference, first of all
    attention. At study scale a sweep on a seed of its own chooses each type's learning rate. The
    same call again continues what was interrupted.

    Args:
        scale: ``"smoke"`` (a minute), ``"laptop"`` (under ten minutes), ``"study"`` (a day) or
            ``"workstation"`` (one GPU).
        kind: ``"text"``; or ``"ablations"`` for Table 6, V1 with its second map added, V2's
            ablations and the other reading of Shared DIFF's norm, or ``"rank"`` for Shared DIFF's
            rank and λ_init. These sweep no learning rate (at study scale types have the base's
            times the factors that the matched comparison chose for its own models) and test every
            row against what it changes one thing of.
        out: Study folder. Default: ``runs/<scale>``, or ``runs/<kind>-<scale>``.
        seeds: Seeds of initial weights and data order. Default: 0, for study 0 to 4; of the other
            kinds 0 to 2, for smoke 0 and at the long scales 0 to 4.
        settings: Changes such as ``"train.num_steps=500"`` or ``"data.source=my_texts"``.
        match: What the models keep equal; see :func:`diffattn.models.twins.twin`.
        reuse: Folders of other studies, whose finished runs with the same settings, seed and
            tokens are copied and not trained again; see :mod:`diffattn.lab.studies.reuse`.
        workers: One-thread processes side by side. Default: CPU cores, at most 2; 1 on a GPU.
        on_message: Given one line per stage.
        on_progress: Given progress of each run: its name, and ``step`` and ``loss``; once, when the
            learning rates are known, ``total``: the steps of all runs.

    Returns:
        The path of ``report.html``; beside it lie ``study.json``, ``results.json``,
        ``costs.json``, ``counts.json``, ``maps.json``, ``data/`` and ``runs/``.

    Raises:
        ConfigError: An unknown scale or setting, ``out`` holds another configuration, ``reuse``
            names what is no study, or the scale is made for a GPU and there is none.
        CheckpointError: ``out`` or a run to be copied holds foreign or damaged files.
        DiffAttnError: A run failed; or one that counts diverged, and all others are made. A run
            that is to choose a learning rate may diverge: its rate is the worst.
    """
    import torch

    from diffattn.lab.studies.reuse import require_studies, reuse_runs
    from diffattn.lab.studies.text.summary import summarise
    from diffattn.lab.studies.workers import run_members, unfinished, worker_count
    from diffattn.lab.training.memory import require_run_memory
    from diffattn.lab.training.trainer import RESULTS, require_enough

    config = comparison(scale, kind=kind, seeds=seeds, settings=settings, match=match)
    if scale == "workstation" and not torch.cuda.is_available():
        raise ConfigError("reproduce: scale 'workstation' needs a CUDA device, got none here.")
    workers, others = worker_count(workers), [Path(folder) for folder in reuse]
    require_studies(others)
    folder = Path(out) if out is not None else Path("runs") / study_name(scale, kind)
    trials = config.trials(config.base_rates())
    for member in trials:
        require_run_memory(member.config, side_by_side=min(workers, len(trials)))
    with sole_writer(folder):
        _check_claim(folder, config)
        data = prepare_data(
            config.base.data,
            folder / "data",
            require=partial(require_enough, config.base),
            on_message=on_message,
        )
        _claim(folder, config, data.facts())

        def train(members: Sequence[Member[RunConfig]], what: str) -> dict[str, float | None]:
            copied = reuse_runs(members, data.facts(), folder / "runs", others)
            if copied:
                on_message(f"{what}: copied {len(copied)} of {len(members)} models")
            for name in copied:
                on_progress(name, {"done": True})
            waiting = unfinished(members, folder / "runs")
            if waiting:
                on_message(f"{what}: training {len(waiting)} of {len(members)} models")
            run_members(
                waiting, data.folder, folder / "runs", workers=workers, on_progress=on_progress,
                short=scale in _SHORT,
            )  # fmt: skip
            names = [member.config.name for member in members]
            return {n: read_json(folder / "runs" / n / RESULTS)["validation_loss"] for n in names}

        sweeps = _sweep(config, train)
        trials = config.trials(best_rates(config, sweeps))
        on_progress(trials[0].config.name, {"total": config.total_steps(sweeps)})
        _require_losses(config, train(trials, "comparison"), folder / "runs", on_message)
        counts = _counts(config, data, folder / _COUNTS, on_message)
        on_message("comparing")
        summarise(config, sweeps, counts, data, folder)
        if kind != "text":
            return build_report(folder)
        return build_report(
            folder,
            published=published_beside(folder),
            benchmarks=committed_benchmarks(),
            claims=committed_claims(),
        )


def _sweep(
    config: ComparisonConfig,
    train: Callable[[Sequence[Member[RunConfig]], str], dict[str, float | None]],
) -> dict[str, Sweep]:
    """Try the rates, further ones where a leading one lies at the edge, and those whole."""
    tried: dict[str, dict[float, float | None]] = {}

    def add(wanted: Sequence[tuple[str, float]]) -> dict[str, Sweep]:
        losses = train(
            [m for name, rate in wanted for m in config.sweep_members([rate], [name])],
            "learning rates",
        )
        for name, rate in wanted:
            run = sweep_name(name, rate, config.sweep_seed)
            tried.setdefault(name, {})[rate] = losses[run]
        return {name: Sweep(tried=tuple(sorted(of.items()))) for name, of in tried.items()}

    wanted = [(variant.name, rate) for rate in config.learning_rates for variant in config.swept()]
    sweeps: dict[str, Sweep] = {}
    while wanted:
        sweeps = add(wanted)
        wanted = list(rates_to_try(config, sweeps))
    if not config.whole_rates:
        return sweeps
    losses = train(config.whole_members(sweeps), "leading learning rates")

    def whole(name: str, sweep: Sweep) -> Sweep:
        rates = sorted(sweep.leading(config.whole_rates))
        runs = ((rate, whole_name(name, rate, config.sweep_seed)) for rate in rates)
        return replace(sweep, whole=tuple((rate, losses[run]) for rate, run in runs))

    return {name: whole(name, sweep) for name, sweep in sweeps.items()}


def _require_losses(
    config: ComparisonConfig, losses: dict[str, float | None], runs: Path, on_message: OnMessage
) -> None:
    """Refuse to compare where a run that counts has diverged: of a study of rows, one of softmax
    attention or of no attention; that another diverges is what its row then says."""
    lost = [name for name, loss in losses.items() if loss is None]
    steps = {name: read_json(runs / name / "results.json")["diverged_step"] for name in lost}
    if config.kind != "text":
        vital = {trial_name(name, seed) for name in (BASELINE, FLOOR) for seed in config.seeds}
        for name in sorted(set(lost) - vital):
            on_message(f"{name} was not finite at step {steps[name]}: its rows are not compared")
        lost = [name for name in lost if name in vital]
    if not lost:
        return
    which = listing(f"{name} (not finite at step {steps[name]})" for name in lost)
    # A rate that was swept for is not set.
    change = (
        "guard.not_finite=roll_back" if config.learning_rates else "a lower train.learning_rate"
    )
    raise DiffAttnError(
        f"reproduce: every run that counts must end with a loss, got none from {which}. The others "
        f"are kept. Choose another --out and --set {change}."
    )


def _counts(
    config: ComparisonConfig, data: PreparedData, path: Path, on_message: OnMessage
) -> dict[str, Any]:
    """Losses of models that only count, on the tokens that the runs of the first seed read."""
    if not path.exists() or read_json(path)["schema"] != _COUNTS_SCHEMA:
        on_message("counting what unigrams, bigrams and copies predict")
        seed = config.seeds[0]
        train = replace(config.base.train, seed=seed, data_seed=seed)
        write_json(path, {"schema": _COUNTS_SCHEMA, "models": count_model_results(train, data)})
    models: dict[str, Any] = read_json(path)["models"]
    return models


def study_name(scale: str, kind: str) -> str:
    """Of the folder under ``runs/``."""
    return scale if kind == "text" else f"{kind}-{scale}"


def comparison(
    scale: str,
    *,
    kind: str = "text",
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> ComparisonConfig:
    """The resolved configuration of :func:`reproduce`.

    Raises:
        ConfigError: An unknown scale, kind or setting.
    """
    from diffattn.lab.training.settings import apply_settings, require_unset

    check_known("reproduce", "scale", scale, SCALES)
    check_known("reproduce", "kind", kind, MEMBERS)
    made = _SCALES[scale]
    if kind != "text":
        count = _SEEDS_OF_ROWS.get(scale, _SEEDS_OF_LONG_ROWS)
        each = tuple(range(count)) if seeds is None else seeds
        alone = kind == "rank" and scale not in _SEEDS_OF_ROWS
        made = {
            "variants": RANKS_ALONE if alone else MEMBERS[kind],
            "seeds": tuple(each),
            "fewer_seeds": max(1, len(each)),
            "rate_factors": _RATE_FACTORS.get(scale, {}),
        }
    elif seeds is not None:
        made = made | {"seeds": tuple(seeds)}
    if made.get("learning_rates"):
        require_unset(settings, "train.learning_rate", f"scale {scale!r} sweeps the rates it tries")
    return ComparisonConfig(
        scale=scale, kind=kind, base=apply_settings(recipe(scale), settings), match=match, **made
    )


def published_beside(study: Path) -> Path | None:
    """Summary of the committed study, to be shown beside another; ``None`` beside itself."""
    path = Path(study) / "study.json"
    recorded = read_json(path)
    require_schema(recorded, path)
    published = read_json(PUBLISHED)["study"]
    return None if recorded.get("config_hash") == published["config_hash"] else PUBLISHED


def committed_benchmarks() -> list[Path]:
    """Benchmark records of the checkout that runs; none for an installed package."""
    folder = Path(__file__).parents[5] / "benchmarks" / "results"
    return sorted(folder.glob("*.json"))


def _check_claim(folder: Path, config: ComparisonConfig) -> None:
    """Refuse a folder of another configuration or text before any work is done.

    Where there is packed data, what it was packed from is known to it and checked as it is opened:
    of a dataset on the hub the commit, which is not read again.
    """
    recorded = recorded_study(folder, config.resolved(), besides="data")
    if recorded is None or has_packing(folder / "data"):
        return
    data = config.base.data
    documents = load_corpus(data.source, text_field=data.text_field)
    require_same_data(folder, recorded, {"corpus_hash": corpus_hash(documents)})


def _claim(folder: Path, config: ComparisonConfig, facts: dict[str, Any]) -> None:
    """Write ``study.json``, or check that the data is still the same."""
    resolved = config.resolved()
    recorded = recorded_study(folder, resolved, besides="data")
    if recorded is not None:
        require_same_data(folder, recorded, facts)
        return
    data = {
        "source": config.base.data.source,
        "vocab_size": config.base.data.vocab_size,
        "python": package_versions()["python"],
        **facts,
    }
    begin_study(folder, resolved, {"data": data})
