"""The table of the compile gate: every launch on every chip, measured once and kept.

``python -m tools.aot_table FILE`` compiles every kernel, width, layout of keys, mask and chip that
FILE does not hold yet, and adds one JSON line each. The same command continues an interrupted one.
``--page PAGE`` writes FILE as Markdown.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.ops.inputs.kernel_support import HEAD_DIMS
from tools.aot import SHARED_BYTES, AotReport, assert_within_limits, compile_case

if TYPE_CHECKING:
    from tools.aot_cases import AotCase

_MASKS: tuple[dict[str, bool], ...] = ({}, {"CAUSAL": False, "RANGES": True}, {"PADDING": True})
"""Compile-time switches: causal; packed, where a window and cached lengths are intervals too; and
padded."""

MEASURED = {(90, "v2-d128-fwd"), (90, "softmax-d128-dkv")}
"""Launches whose tiles a GPU found fastest under a causal mask. Under other masks, of which nothing
is timed, they reload registers in a loop."""

INTRODUCTION = """# Compile gate

Every launch as the compiler makes it, in bfloat16, for chips that are not here: counts, no timings.
*Work* is the multiply-adds of the tensor cores per turn of an inner loop over those that its tile
needs; columns that pad head_dim 96 to 128 count as needed (4/3 by width, whatever the launch).
*Copies* and *reloads* are instructions per thread and turn that copy a tile to shared memory and
wait, or read a spilled register; *spills* lie outside these loops where there are no reloads.
*Programs* run on one multiprocessor at a time. `-ranges` stands for packed, windowed and cached
rows, `-padding` for padded ones. The work of `fwd_by_map` is that of either of its two loops.
On sm_90 the tiles of widths 64 and 128 are those that an H100 found fastest, also where they
reload registers under masks (`v2-d128-fwd`, `softmax-d128-dkv`); these counts chose all others.
A launch that is not in the table has not been measured. The command that measures and writes the
table:

    python -m tools.aot_table tools/records/compile_gate.jsonl --page tools/records/compile_gate.md
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRow:
    """One launch on one chip. Fields that :class:`AotReport` has too mean what they mean there."""

    capability: int
    case: str
    """Form, head_dim and launch, then the mask if it is not causal alone."""
    tile: str
    """Queries x keys, warps, stages; empty if the table of launches refuses the case."""
    key: str
    """Digest of all that the compiler gets: a row with another one is stale."""
    work_ratio: float | None = None
    loop_copies: int = 0
    loop_reloads: int = 0
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    tmem_columns: int = 0
    programs: int = 0
    instructions: str = ""
    broken: str = ""
    """The limit of the chip that the kernel breaks, or why it does not compile."""

    @property
    def is_clean(self) -> bool:
        """Whether the kernel runs, repeats no product and neither waits nor reloads in a loop."""
        counted = self.work_ratio == 1.0 and not (self.loop_copies or self.loop_reloads)
        return counted and not self.broken

    @property
    def is_accepted(self) -> bool:
        """Whether it is clean; or runs, and is the fastest that is known under a causal mask."""
        launch = self.case.removesuffix("-ranges").removesuffix("-padding")
        measured = (self.capability, launch) in MEASURED and launch != self.case
        return self.is_clean or (measured and not self.broken and self.work_ratio == 1.0)


def table_cases(capability: int) -> Iterator["AotCase"]:
    """Every launch that ``accepts_widths`` admits, under every mask: usual widths first."""
    from tools.aot_cases import aot_case, kernels

    for flags in _MASKS:
        for head_dim in sorted(HEAD_DIMS, key=lambda width: width not in (64, 128)):
            for op in ("diff_attention", "softmax_attention"):
                for shared in (False, True) if op == "diff_attention" else (False,):
                    for value_dim in (2 * head_dim, head_dim):
                        for launch in kernels(op):
                            if launch.endswith("preprocess"):
                                continue
                            case = aot_case(
                                launch, head_dim, value_dim, capability,
                                shared_keys=shared, **flags,
                            )  # fmt: skip
                            if case is not None:
                                yield case


def measure(case: "AotCase", capability: int) -> TableRow:
    """Compile one case; what the compiler refuses is a row too, with the reason."""
    row: dict[str, Any] = {
        "capability": capability, "case": case.name, "tile": tile_of(case), "key": case_key(case),
    }  # fmt: skip
    try:
        report = compile_case(case, capability)
    except Exception as error:  # a compiler fails in many ways: that is what the row says
        first = (str(error).strip().splitlines() or [""])[0]
        return TableRow(**row, broken=f"{type(error).__name__}: {first[:160]}")
    try:
        assert_within_limits(report)
    except AssertionError as error:
        row["broken"] = str(error).split(": ", 1)[1]
    names = TableRow.__dataclass_fields__.keys() & AotReport.__dataclass_fields__.keys()
    return TableRow(**row | {name: getattr(report, name) for name in names - row.keys()})


def tile_of(case: "AotCase") -> str:
    """``128x64 w8 s2``: queries x keys of a tile, warps and stages."""
    tile = f"{case.constexprs['BLOCK_M']}x{case.constexprs['BLOCK_N']}"
    return f"{tile} w{case.num_warps} s{case.num_stages}"


def case_key(case: "AotCase") -> str:
    """Digest of the kernel's source and of everything it is compiled with."""
    import triton

    parts = (
        triton.__version__, case.kernel.cache_key, sorted(case.signature.items()),
        sorted(case.constexprs.items()), case.num_warps, case.num_stages,
        sorted(case.options.items()),
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def read_rows(path: Path) -> dict[tuple[int, str], TableRow]:
    """The newest row per chip and case of a file of JSON lines; none if there is no file."""
    if not path.exists():
        return {}
    rows = [TableRow(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    return {(row.capability, row.case): row for row in rows}


def page(rows: Iterable[TableRow]) -> str:
    """The table as Markdown: one section per chip with its counts, then all rows in order."""
    rows = list(rows)
    lines = [INTRODUCTION]
    for capability in sorted({row.capability for row in rows}):
        here = [row for row in rows if row.capability == capability]
        lines += [
            f"## sm_{capability}",
            "",
            f"{len(here)} launches, {sum(row.is_clean for row in here)} clean; "
            f"{sum((row.work_ratio or 0.0) > 1.0 for row in here)} repeat products, "
            f"{sum(row.loop_copies > 0 for row in here)} wait for copies, "
            f"{sum(row.loop_reloads > 0 for row in here)} reload registers, "
            f"{sum(bool(row.broken) for row in here)} break a limit of the chip.",
            "",
            "| case | tile | work | copies | reloads | registers | spills | shared | programs | |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        ]
        lines += [*map(_line, here), ""]
    return "\n".join(lines)


def _line(row: TableRow) -> str:
    ratio = "-" if row.work_ratio is None else f"{row.work_ratio:.2f}"
    cells = [row.case, row.tile, ratio, row.loop_copies, row.loop_reloads, row.registers]
    cells += [row.spill_bytes, row.shared_bytes, row.programs, row.broken]
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing and write the page; 1 if a launch is not accepted."""
    parser = argparse.ArgumentParser(prog="python -m tools.aot_table")
    parser.add_argument("file", type=Path, help="JSON lines, one per launch and chip")
    chips = ", ".join(map(str, SHARED_BYTES))
    parser.add_argument("capability", type=int, nargs="*", help=f"of {chips}")
    parser.add_argument("--match", default="", help="only cases whose name contains this text")
    parser.add_argument("--page", type=Path, help="write the table as Markdown")
    options = parser.parse_args(arguments)
    unknown = [x for x in options.capability if x not in SHARED_BYTES]
    if unknown:
        parser.error(f"capability must be in {{{chips}}}, got {unknown[0]}")
    known = read_rows(options.file)
    rows = []
    for capability in options.capability or SHARED_BYTES:
        for case in table_cases(capability):
            if options.match not in case.name:
                continue
            row = known.get((capability, case.name))
            if row is None or row.key != case_key(case):
                row = measure(case, capability)
                with options.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
            rows.append(row)
    if options.page:
        options.page.write_text(page(rows), encoding="utf-8")
    unclean = [row for row in rows if not row.is_clean]
    print(f"{len(rows)} launches, {len(unclean)} not clean: {options.file}", file=sys.stderr)
    return 0 if all(row.is_accepted for row in unclean) else 1


if __name__ == "__main__":
    sys.exit(main())
