"""Search the tiles that are fastest on this device, for the static launch table.

    PYTHONPATH=src python -m tools.tune --out FILE.json

A launch is searched with the rest of its pass as it is: forward or backward are timed whole, and
candidates of one launch differ in nothing else. Then the forms of the pass, each with the best of
its launches, are timed against each other. Before all searches the forms of our backward are, with
the tiles of the table: atomics may cost more than the products that they save.

Candidates are checked against the float64 reference before any is timed, by processes side by side:
what one of them compiles, Triton keeps for all. The package does not change: the lines for
``configs.SEEDS`` lie beside the record. Softmax attention is V1's twin, with values as wide as its
keys.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch

from diffattn.errors import BackendError, ConfigError, DiffAttnError
from diffattn.files.destination import require_file_destination
from diffattn.files.io import write_json, write_text
from diffattn.lab.benchmark.checking import device_lost, error_line, problem
from diffattn.lab.benchmark.config import ATTENTIONS, DEVICES, Case, require_cuda
from diffattn.lab.benchmark.contenders import Contender, operator_contenders
from diffattn.lab.benchmark.session import describe_run
from diffattn.lab.benchmark.timing import Timed, Timer, interleave, timer_of
from diffattn.ops.triton import configs
from diffattn.ops.triton.configs import LaunchConfig
from tools.measures.candidates import CANDIDATES, launched_with
from tools.measures.tuned_table import lines_path, lines_text
from tools.search import Checkers, OnFailure, OptionResult, best, search

SCHEMA = 1
Rows = Mapping[str, LaunchConfig | None]
Form = tuple[str, ...]
Request = tuple[str, str, int, str, Rows]  # operator, attention, head_dim, pass, tiles
PASSES: dict[str, tuple[Form, ...]] = {
    "forward": configs.FORWARD_FORMS,
    "backward": configs.BACKWARD_FORMS,
}
KERNELS = {"": "triton", "softmax_": "softmax_triton"}
"""The contender that launches them, by what the names of its launches begin with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    """One search. Written into the record."""

    device: str = "cuda"
    batch: int = 4
    num_heads: int = 8
    """Heads of DIFF V1 and V2; V1's softmax twin has twice as many."""
    length: int = 4_096
    """Tokens of the timed shape: those that a training step has."""
    checked_length: int = 400
    """Tokens of the shape that is checked: several tiles, the last one cut."""
    head_dims: tuple[int, ...] = (128, 64)
    """The more costly first: a search may be cut off."""
    rounds: int = 3
    seconds: float = 1.0
    """Time after which the candidates of one launch start no further round."""
    processes: int = field(default_factory=lambda: min(12, (os.cpu_count() or 1) - 1))
    """Processes that check candidates side by side, since most of the time goes into compiling."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"tune: rounds must be 1 or more, got {self.rounds}.")
        if not self.seconds >= 0:
            raise ConfigError(f"tune: seconds must be 0 or more, got {self.seconds}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    op: str
    attention: str
    head_dim: int
    value_dim: int
    row: int
    small: Contender
    large: Contender

    @property
    def shared_keys(self) -> bool:
        return not self.op and self.attention == "v2"

    @property
    def widths(self) -> tuple[int, int]:
        return self.head_dim, self.value_dim

    def seed(self, launch: str) -> LaunchConfig | None:
        return configs.seed(launch, *self.widths, self.row, self.shared_keys)

    def column(self, launch: str) -> int:
        return configs.column(launch, *self.widths, self.shared_keys)

    def facts(self) -> dict[str, Any]:
        name = "softmax" if self.op else f"diff {self.attention}"
        return {"operator": name, "head_dim": self.head_dim, "value_dim": self.value_dim}

    def __str__(self) -> str:
        return "{operator} d {head_dim} Dv {value_dim}".format(**self.facts())


def tune(
    config: TuneConfig, out: Path, *, timer: Timer, on_message: Callable[[str], None] = print
) -> dict[str, Any]:
    """Search the tiles of every launch, and write what was found after each search.

    ``out`` is the record; beside it :func:`lines_path` holds the lines of the table.

    Returns:
        The record: provenance as of ``diffattn bench``, ``row`` of the table, ``searches`` with
        every candidate's ``seconds`` or why it was ``refused``, the ``lines`` by launch, and
        whether it is ``complete``.

    Raises:
        BackendError: A candidate left the GPU unusable; the record says which in ``ended``.
        OSError: The record cannot be written.
    """
    row = configs.device_row(torch.device(config.device))
    if row is None:
        raise ConfigError("tune: must run on a GPU, got triton's interpreter.")
    lines = {launch: list(tiles) for launch, tiles in configs.SEEDS[row].items()}
    record: dict[str, Any] = {
        "schema": SCHEMA, **asdict(describe_run(config.device, asdict(config))), "row": row,
        "complete": False, "searches": [], "lines": lines,
    }  # fmt: skip

    def keep(subject: _Subject, tiles: dict[str, Any]) -> None:
        record["searches"].append(subject.facts() | tiles)
        _write(record, out)
        on_message(f"{subject}: {tiles['of']}: {tiles['best'] or 'none runs'}")

    _write(record, out)
    checkers = Checkers(functools.partial(_check, config, row), config.processes, 90.0)
    subjects = _subjects(config, row)
    searches = product(PASSES, subjects)
    try:  # it may be cut off: ours come first, and the forward pass of every width before others
        for subject in subjects:
            if not subject.op:
                try_options = _searcher(subject, "backward", config, timer, checkers)
                launches = chain(*forms_of(subject, "backward"))
                shipped = {x: tile for x in launches if (tile := subject.seed(x))}
                whole = _against_each_other(
                    subject, "backward", shipped, try_options, tuned="shipped forms"
                )
                keep(subject, whole)
        for mode, subject in sorted(searches, key=lambda search: bool(search[1].op)):
            try_options = _searcher(subject, mode, config, timer, checkers)
            chosen = _tune_pass(subject, mode, try_options, keep)
            for launch, tile in chosen.items():
                line = lines.setdefault(launch, [None] * configs.NUM_COLUMNS)
                line[subject.column(launch)] = astuple(tile) if tile else None
            _write(record, out)
    except BackendError as error:
        record["ended"] = str(error)
        _write(record, out)
        raise
    finally:
        checkers.close()
    record["complete"] = True
    _write(record, out)
    return record


def _write(record: Mapping[str, Any], out: Path) -> None:
    write_json(out, record)
    write_text(lines_path(out), lines_text(record["row"], record["lines"]))


def _subjects(config: TuneConfig, row: int) -> "list[_Subject]":
    return [
        subject_of(config, row, op, attention, head_dim)
        for op in KERNELS
        for head_dim in config.head_dims
        for attention in (("v1",) if op else ATTENTIONS)  # both twins have the same widths
    ]


def subject_of(config: TuneConfig, row: int, op: str, attention: str, head_dim: int) -> _Subject:
    """The operator, attention type and width as a subject of the search."""
    # Triton compiles a kernel anew for a batch of 1, and one that is timed is no other.
    sizes = (min(2, config.batch), config.checked_length), (config.batch, config.length)
    common: dict[str, Any] = {"H": config.num_heads, "d": head_dim, "attention": attention}
    facts = {"suite": "ops", "device": config.device, "dtype": "bfloat16"}
    cases = [
        Case(**facts, mode="forward_backward", shape={"B": batch, "N": length} | common)
        for batch, length in sizes
    ]
    small, large = (
        next(c for c in operator_contenders(case, ("triton",)) if c.name == KERNELS[op])
        for case in cases
    )
    wide = 2 * head_dim if attention == "v1" and not op else head_dim
    return _Subject(
        op=op, attention=attention, head_dim=head_dim, value_dim=wide, row=row, small=small,
        large=large,
    )  # fmt: skip


_kept_subject = functools.lru_cache(maxsize=1)(subject_of)


def _check(config: TuneConfig, row: int, request: Request) -> str | None:
    """:func:`_refusal` in any process: Triton keeps on disk, for all, what one has compiled."""
    *key, mode, rows = request
    return _refusal(_kept_subject(config, row, *key), mode, rows)


def _searcher(
    subject: _Subject, mode: str, config: TuneConfig, timer: Timer, checkers: Checkers
) -> Callable[..., dict[str, OptionResult]]:
    """:func:`search` by what changes the launches of a pass."""

    def check(options: Mapping[str, Rows]) -> dict[str, str | None]:
        key = (subject.op, subject.attention, subject.head_dim, mode)
        return checkers({name: (*key, rows) for name, rows in options.items()})

    return functools.partial(
        search, check=check, why=functools.partial(_explain_failure, subject),
        time=functools.partial(_time, subject, mode, config=config, timer=timer),
    )  # fmt: skip


def forms_of(subject: _Subject, mode: str) -> dict[Form, bool]:
    """The forms of a pass, by the names that launches of this operator have, which may lack some;
    whether programs add to one number."""
    forms = {tuple(subject.op + launch for launch in form): form for form in PASSES[mode]}
    return {
        launches: configs.adds_up(form)
        for launches, form in forms.items()
        if set(launches) <= set(CANDIDATES)
    }


def _against_each_other(
    subject: _Subject, mode: str, tiles: Mapping[str, LaunchConfig],
    try_options: Callable[..., dict[str, OptionResult]], *, tuned: str,
) -> dict[str, Any]:  # fmt: skip
    """Every form of a pass whose launches all have tiles, and the best: of all, and in order."""
    forms = forms_of(subject, mode)
    no_tiles: dict[str, LaunchConfig | None] = dict.fromkeys(chain(*forms))
    whole = {" + ".join(form): form for form in forms if set(form) <= set(tiles)}
    results = try_options({n: no_tiles | {x: tiles[x] for x in form} for n, form in whole.items()})
    seeds, chosen = [], []
    for in_order in (False, True):  # either may be asked for, so the table holds both
        seeded = configs.choose(PASSES[mode], lambda x: subject.seed(subject.op + x), in_order)
        seeds.append(" + ".join(subject.op + launch for launch in seeded))
        allowed = {n: t for n, t in results.items() if not (in_order and forms[whole[n]])}
        chosen.append(best(allowed, seeds[-1]))
    return _search_record(mode, tuned, seeds[0], chosen[0], results) | {"in_order": chosen[1]}


def _tune_pass(
    subject: _Subject, mode: str, try_options: Callable[..., dict[str, OptionResult]],
    keep: Callable[[_Subject, dict[str, Any]], None],
) -> dict[str, LaunchConfig | None]:  # fmt: skip
    """The tiles of every launch of a pass; empty, so that the seeds stay, where none would run."""
    forms = forms_of(subject, mode)
    no_tiles: dict[str, LaunchConfig | None] = dict.fromkeys(chain(*forms))
    tiles: dict[str, LaunchConfig] = {}
    for form in forms:
        for launch in form:
            if launch in tiles:
                continue
            others = {x: tiles.get(x) or subject.seed(x) or CANDIDATES[x][0] for x in form}
            by_name = {_name(c): c for c in CANDIDATES[launch]}
            rows = {name: no_tiles | others | {launch: c} for name, c in by_name.items()}
            tile = subject.seed(launch)
            seed = _name(tile) if tile else None
            results = try_options(rows)
            name = best(results, seed)
            keep(subject, _search_record(mode, launch, seed, name, results))
            if name is None:
                break
            tiles[launch] = by_name[name]
    # Each was checked when the last of its launches was found, beside the others as they are here.
    unchecked = functools.partial(try_options, check=dict.fromkeys)
    whole = _against_each_other(subject, mode, tiles, unchecked, tuned="forms")
    keep(subject, whole)
    chosen = (whole["best"], whole["in_order"])
    if None in chosen:
        return {}
    kept = {launch for name in chosen for launch in name.split(" + ")}
    return {launch: tiles[launch] if launch in kept else None for launch in no_tiles}


def _name(config: LaunchConfig) -> str:
    return (
        f"{config.block_m} x {config.block_n}, {config.num_warps} warps, {config.num_stages} stages"
    )


def _search_record(
    mode: str, tuned: str, seed: str | None, name: str | None, results: Mapping[str, OptionResult]
) -> dict[str, Any]:
    options = {option: asdict(result) for option, result in results.items()}
    return {"mode": mode, "of": tuned, "seed": seed, "best": name, "options": options}


def _refusal(subject: _Subject, mode: str, rows: Rows) -> str | None:
    """Why rows cannot be taken: they do not compile, do not fit the chip, or are wrong."""
    try:
        with launched_with(rows):
            wrong = problem(subject.small.check(True))
            if wrong is None:  # once, so that a refusal at the timed shape shows before timing
                timed = _timed(subject, mode, rows)
                timed.run(timed.prepare() if timed.prepare else None)
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
    except Exception as error:  # compilers and drivers raise errors of every class
        return _explain_failure(subject, rows, error)
    return wrong


def _explain_failure(subject: _Subject, rows: Rows, error: Exception) -> str:
    """Why rows that raised cannot be taken; raises where the GPU's context died of them."""
    if device_lost():
        tiles = {launch: _name(c) for launch, c in rows.items() if c}
        raise BackendError(f"tune: {subject}, {tiles}: {error_line(error)}") from error
    return error_line(error)


def _time(
    subject: _Subject, mode: str, options: Mapping[str, Rows], on_failure: OnFailure, *,
    config: TuneConfig, timer: Timer,
) -> dict[str, list[float]]:  # fmt: skip
    timed = {name: _timed(subject, mode, rows) for name, rows in options.items()}
    return interleave(
        timed, timer, rounds=config.rounds, seconds=config.seconds, on_failure=on_failure
    )


def _timed(subject: _Subject, mode: str, rows: Rows) -> Timed:
    """One pass of training: the forward keeps what the backward needs."""
    contender = subject.large

    def run(prepared: Any) -> object:
        with launched_with(rows):
            return contender.forward() if mode == "forward" else contender.backward(prepared)

    return Timed(run=run, prepare=None if mode == "forward" else contender.forward)


def main(arguments: list[str] | None = None) -> int:
    """Search, write the record and print its lines; 2 if this machine or the file cannot do."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench/tune.json"),
                        help="result file or folder [runs/bench/tune.json]")  # fmt: skip
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="a CPU runs no kernel")
    parser.add_argument("--rounds", type=int, default=3, help="fewest rounds of a launch [3]")
    parser.add_argument("--seconds", type=float, default=10.0,
                        help="time after which a launch starts no further round [10]")  # fmt: skip
    options = parser.parse_args(arguments)
    out = options.out if options.out.suffix == ".json" else options.out / "tune.json"
    try:
        if options.device == "cpu":
            raise ConfigError("tune: device must be 'cuda', got 'cpu', on which no kernel runs.")
        require_cuda()
        require_file_destination(out)
        config = TuneConfig(rounds=options.rounds, seconds=options.seconds)
        record = tune(config, out, timer=timer_of("cuda"))
    except DiffAttnError as error:
        print(error, file=sys.stderr)
        return 2
    print(lines_text(record["row"], record["lines"]))
    print(f"Record: {out}, lines of the table: {lines_path(out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
