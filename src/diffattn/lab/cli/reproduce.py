"""``diffattn reproduce``."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError, check_known
from diffattn.lab.cli.options import (
    DryRunOption,
    print_json,
    say,
    say_if_finished,
    set_option,
    whole_numbers,
)

WHOLE = "all"
LEASE = "lease"
COMPARISONS = ("text", "ablations", "rank", LEASE)
STUDIES = (
    *("text", "recall", "practical", "stability", "gradient-flow", "scaling", "ablations", "rank"),
    LEASE,
)
_Study = Annotated[str, typer.Argument(help="all, or one of the studies above")]
_Scale = Annotated[
    str,
    typer.Option(
        help="smoke (a minute; all: 3), laptop (10 minutes; all: 15; scaling, ablations and rank: "
        "hours), study (hours; all: days; not scaling), workstation (one GPU; all, text, "
        "ablations, rank) or lease (one GPU, 15 minutes at a time; text)"
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(help="study folder, continued if it exists [runs/STUDY-SCALE; text: runs/SCALE]"),
]
_Only = Annotated[
    str | None,
    typer.Option(help="with all: run only these studies, analysis or throughput; comma-separated"),
]
_Seeds = Annotated[str | None, typer.Option(help="comma-separated [the scale's, 1 to 12]")]
_Set = Annotated[
    list[str] | None,
    set_option(
        "e.g. data.source=texts/ (repeatable); not for recall or practical, for all only data"
    ),
]
_Match = Annotated[
    str, typer.Option(help="what twins keep equal: params, heads, flops or attention_flops")
]
_Extrapolate = Annotated[
    bool, typer.Option("--extrapolate", help="scaling: also read fits beyond their points")
]
_Reuse = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="text, ablations, rank: copy runs of equal settings, seed and tokens from this study "
        "(repeatable)",
    ),
]
_Workers = Annotated[
    int | None,
    typer.Option(min=1, help="processes side by side, one thread each [cores, at most 2]"),
]


def reproduce(
    study: _Study = WHOLE,
    scale: _Scale = "laptop",
    out: _Out = None,
    only: _Only = None,
    seeds: _Seeds = None,
    set_: _Set = None,
    match: _Match = "params",
    extrapolate: _Extrapolate = False,
    reuse: _Reuse = None,
    workers: _Workers = None,
    dry_run: DryRunOption = False,
    json_: Annotated[bool, typer.Option("--json", help="print results.json at the end")] = False,
) -> None:
    """Train and compare the four attention types; one page shows all.

    Without a study, all studies of the scale run, one after another. From scale study on, the
    models trained on text are then analysed and timed, and report.html has the papers' tables and
    figures too. The same command again continues an interrupted study.

    \b
    text           matched language models and controls, trained on your Python's
                   library and documentation
    recall         find values by keys among noise: seeds and steps to learn it
    practical      look up keys; classify from examples in the context
    stability      spikes of loss and gradient, up to far too large rates
    gradient-flow  gradients and updates of W_Q, W_K, W_V and W_O
    scaling        losses fitted over parameters and over tokens
    ablations      one part changed at a time: Table 6 of the first paper, and
                   ablations of V2 and Shared DIFF
    rank           other ranks and λ_init of Shared DIFF
    lease          text at --scale lease

    At scale study, text and recall choose a learning rate for each type. ablations and rank use
    one rate and three seeds (at scale study five seeds and fewer ranks).
    """
    from diffattn.files.destination import require_folder_destination
    from diffattn.lab.training.settings import read_changes

    stages = None if only is None else [name.strip() for name in only.split(",")]
    _require_options(study, scale, match, stages, set_ or [], extrapolate, reuse or [])
    if study == LEASE:
        study, scale = "text", LEASE
    options: dict[str, Any] = {"match": match, "settings": set_ or []}
    options["seeds"] = None if seeds is None else whole_numbers("--seeds", seeds)
    if out is not None:
        require_folder_destination(out)
    read_changes(options["settings"])
    if study == WHOLE:
        folder = out or Path("runs") / f"all-{scale}"
        reproduce_all(scale, folder, stages or (), options, workers, dry_run=dry_run, json_=json_)
    else:
        options["extrapolate"] = extrapolate
        _reproduce_one(study, scale, out, options, reuse or [], workers, dry_run, json_)


def _require_options(
    study: str,
    scale: str,
    match: str,
    only: Sequence[str] | None,
    settings: Sequence[str],
    extrapolate: bool,
    reuse: Sequence[Path],
) -> None:
    """Raise for unknown options or wrong combinations, before torch loads, which takes seconds."""
    from diffattn.lab.catalog.recipes.catalog import SCALES
    from diffattn.lab.catalog.recipes.scaling import SCALING_STUDIES
    from diffattn.lab.studies.whole import stages_of
    from diffattn.models.twins import MATCHES

    check_known("reproduce", "study", study, (WHOLE, *STUDIES))
    check_known("reproduce", "scale", scale, SCALING_STUDIES if study == "scaling" else SCALES)
    check_known("reproduce", "match", match, MATCHES)
    if study == WHOLE:
        stages_of(scale, only or ())
    faults = {
        "--extrapolate must be left out, it is of scaling.": extrapolate and study != "scaling",
        "--scale must be left out.": study == LEASE and scale not in ("laptop", LEASE),
        "--only must be left out, it is of all.": only is not None and study != WHOLE,
        f"--reuse must be left out, it is of {', '.join(COMPARISONS)}.": bool(reuse)
        and study not in COMPARISONS,
    }
    if settings and study in ("recall", "practical"):
        faults[f"--set must be left out, got {settings[0]!r}."] = True
    for setting in settings if study == WHOLE else ():
        faults[f"--set must name one of data, got {setting!r}."] = not setting.startswith("data.")
    for fault, is_so in faults.items():
        if is_so:
            raise ConfigError(f"reproduce {study}: {fault}")


def _reproduce_one(
    kind: str,
    scale: str,
    out: Path | None,
    options: dict[str, Any],
    reuse: Sequence[Path],
    workers: int | None,
    dry_run: bool,
    json_: bool,
) -> None:
    from diffattn.lab.catalog.recipes.catalog import default_folder
    from diffattn.lab.report.build import sentences_of

    folder = out or default_folder(kind, scale)
    if not dry_run:
        say_if_finished(folder)
    from diffattn.lab.studies.reproduce import make_study

    study = make_study(kind, scale, **options)
    if dry_run:
        print_json(study.resolved())
        return
    page = run_with_progress(study, folder, workers, reuse)
    if json_:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
    else:
        _close(sentences_of(folder), page, {kind: folder})


def reproduce_all(
    scale: str,
    folder: Path,
    only: Sequence[str],
    options: dict[str, Any],
    workers: int | None,
    *,
    dry_run: bool,
    json_: bool,
) -> None:
    """Run the stages of a scale, or ``only`` some, and write one page with all results.

    ``folder`` gets one folder per stage, ``results.json`` and ``report.html``. ``options`` are
    ``seeds``, ``settings`` and ``match`` of the studies.
    """
    from diffattn.lab.catalog.models import STUDY_MODELS
    from diffattn.lab.cli.screen import ItemProgress
    from diffattn.lab.studies import whole
    from diffattn.lab.studies.reproduce import is_reusable

    stages = whole.stages_of(scale, only)
    studies = _studies_of(stages, scale, folder, options)
    if dry_run:
        print_json({name: study.resolved() for name, study in studies.items()})
        return
    whole.require_scale(folder, scale)
    for number, name in enumerate(stages, 1):
        say(f"{number}/{len(stages)} {name}: {whole.TITLES[name]}")
        if name in studies:
            others = [
                folder / other for other in STUDY_MODELS if name in STUDY_MODELS and other != name
            ]
            reusable = [other for other in others if is_reusable(other)]
            run_with_progress(studies[name], folder / name, workers, reusable)
        elif name == whole.ANALYSIS:
            with ItemProgress(4) as items:
                whole.analyse_models(folder, on_start=items.on_start, on_progress=items.on_progress)
        else:
            whole.time_models(folder, scale, on_message=say)
    page = whole.finish(folder, scale)
    results = (folder / "results.json").read_text(encoding="utf-8")
    if json_:
        typer.echo(results, nl=False)
    else:
        recorded = json.loads(results)["stages"]
        sentences = [entry["sentence"] for entry in recorded.values()]
        _close(sentences, page, {name: folder / name for name in recorded})


def _studies_of(
    stages: Sequence[str], scale: str, folder: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Stage to its study, for stages that train models; ``recall`` gets no settings."""
    from diffattn.lab.studies.reproduce import make_study
    from diffattn.lab.studies.whole import ANALYSIS, THROUGHPUT, scale_of

    if ANALYSIS in stages and "text" not in stages and not (folder / "text" / "runs").is_dir():
        raise ConfigError("reproduce all: --only must hold text, whose models analysis reads.")
    studies = {}
    for name in stages:
        if name not in (ANALYSIS, THROUGHPUT):
            settings = options | ({"settings": ()} if name == "recall" else {})
            studies[name] = make_study(name, scale_of(name, scale), **settings)
    return studies


def run_with_progress(
    study: Any, folder: Path, workers: int | None, reuse: Sequence[Path] = ()
) -> Path:
    """Run one study and show its progress; return the path of its page."""
    from diffattn.lab.cli.screen import RunsProgress
    from diffattn.lab.studies.reproduce import run_study

    finished = (folder / "runs").glob("*/results.json")
    done = sum(study.steps_of(path.parent.name) for path in finished)
    with RunsProgress(study.total_steps, done, study.steps_of) as progress:
        return run_study(
            study,
            folder,
            reuse=reuse,
            workers=workers,
            on_message=progress.on_message,
            on_progress=progress.on_progress,
        )


def _close(sentences: Sequence[str], page: Path, folders: Mapping[str, Path]) -> None:
    """Print results, page, and commands on the models of studies ``recall`` and ``text``."""
    from diffattn.lab.cli.screen import print_text

    print_text(sentences)
    lines = ["", f"Page: {page}"]
    names = {name: shlex.quote(str(folder)) for name, folder in folders.items()}
    commands = [f"  diffattn inspect {names['recall']}"] if "recall" in names else []
    if text := names.get("text"):
        commands += [
            f"  diffattn generate {text} --prompt 'def '",
            f"  diffattn evaluate block_perplexity --quick {text}",
        ]
    if commands:
        lines += ["", "Go on with:", *commands]
    typer.echo("\n".join(lines))
