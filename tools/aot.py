"""Compile kernels for a GPU that is not here, and hold them to the limits of its chip.

``python -m tools.aot 90`` compiles every registered case for capability 9.0 and prints
registers, spills, shared memory and tensor memory; it exits with 1 if a limit is broken or a loop
over tiles wastes work.
"""

import argparse
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.errors import BackendError
from tools.machine_code import count_loops, count_reloads

if TYPE_CHECKING:  # its module imports triton, without which the command says what is missing
    from tools.aot_cases import AotCase

SHARED_BYTES = {80: 166_912, 86: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Shared memory one program may have, per compute capability; 86 stands for 8.9 as well."""
TMEM_COLUMNS = 512
"""Tensor memory of one multiprocessor; a kernel that needs more compiles into a trap."""
_REGISTERS = 65_536
"""Registers of one multiprocessor, on every chip."""
_MULTIPROCESSORS = {
    80: (167_936, 2048, 32), 86: (102_400, 1536, 16), 90: (233_472, 2048, 32),
    100: (233_472, 2048, 32), 120: (102_400, 1536, 24),
}  # fmt: skip
"""Shared memory, threads and programs that one multiprocessor holds, per compute capability."""
_INSTRUCTIONS = {
    "mma": r"\bmma\.sync\.", "wgmma": r"wgmma\.mma_async", "tma": r"cp\.async\.bulk\.tensor",
    "setmaxnreg": "setmaxnreg", "tcgen05": r"tcgen05\.mma",
}  # fmt: skip
"""Kinds of instructions that matter, and how PTX spells them."""
_RESERVED_SHARED_BYTES = 1024
"""Shared memory of every program that the system takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AotReport:
    """The compiler's result for one case."""

    name: str
    capability: int
    registers: int
    """Per thread, as the assembler allots them at entry."""
    spill_bytes: int
    """Per thread: the larger of spill stores and loads."""
    shared_bytes: int
    tmem_columns: int
    has_trap: bool
    instructions: str
    """Names of :data:`_INSTRUCTIONS` that the code has."""
    serializes_wgmma: bool
    """The assembler waits after every wgmma, because the code does not let it run ahead."""
    max_spill_bytes: int
    work_ratio: float | None
    """Multiply-adds of the tensor cores per turn of a loop over those that its tile needs, of the
    worst innermost loop: 1 if no warp repeats another's products, ``None`` if they are not known.
    The columns that pad a tile to a power of two count as needed."""
    loop_copies: int
    """Per thread and turn of the worst such loop: instructions that copy a tile to shared memory
    and wait for it."""
    loop_reloads: int
    """Per thread and turn of the worst such loop: loads of registers that were spilled."""
    programs: int
    """Programs that one multiprocessor holds at a time; 0 if not even one fits."""


def compile_case(case: "AotCase", capability: int) -> AotReport:
    """Compile ``case`` for one of the chips of ``SHARED_BYTES`` and read the assembler's report.

    Raises:
        BackendError: The interpreter is on, so that kernels are no source to compile; the
            capability is unknown.
    """
    import triton
    from triton.runtime.jit import JITFunction

    if capability not in SHARED_BYTES:
        raise BackendError(
            f"aot: capability must be in {{{', '.join(map(str, SHARED_BYTES))}}}, got {capability}."
        )
    if not isinstance(case.kernel, JITFunction) or os.environ.get("TRITON_INTERPRET") == "1":
        raise BackendError(
            f"aot: {case.name} can be compiled only in a process without TRITON_INTERPRET=1, "
            f"which makes a kernel an interpreter object; got {type(case.kernel).__name__}."
        )
    log = io.StringIO()
    with triton.knobs.nvidia.scope(), triton.knobs.compilation.scope(), redirect_stdout(log):
        triton.knobs.nvidia.dump_ptxas_log = True  # of Triton's own call: its options count
        triton.knobs.compilation.always_compile = True  # what comes from a cache has no report
        kernel = compiled(case, capability)
    return _report(case, capability, kernel, log.getvalue())


def compiled(case: "AotCase", capability: int) -> Any:
    """What Triton makes of ``case`` for a chip of this capability."""
    import triton
    from triton.backends.compiler import GPUTarget

    from diffattn.ops.triton.configs import FP_FUSION

    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, **FP_FUSION}
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(_source(case), target=target, options=options | case.options)


def _report(case: "AotCase", capability: int, kernel: Any, log: str) -> AotReport:
    ptx = kernel.asm["ptx"]
    allotted = re.search(r"Used (\d+) registers", log)
    assert allotted, f"an assembler's report, got {log!r}"
    registers = int(allotted[1])
    # The larger of the bytes stored and loaded for want of registers.
    spill_bytes = max(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", log)))
    loops = count_loops(ptx, case.loop_warps or case.num_warps)
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", ptx)
    tmem_columns = getattr(kernel.metadata, "tmem_size", None) or 0
    products = max((loop.products for loop in loops), default=0)
    return AotReport(
        name=case.name,
        capability=capability,
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=kernel.metadata.shared,
        tmem_columns=tmem_columns,
        has_trap=re.search(r"^\s*(@\S+\s+)?trap;", ptx, re.MULTILINE) is not None,
        instructions=" ".join(kind for kind, word in _INSTRUCTIONS.items() if re.search(word, ptx)),
        serializes_wgmma="wgmma" in log and "serialized" in log,
        max_spill_bytes=case.max_spill_bytes,
        work_ratio=products / case.tile_products if case.tile_products else None,
        loop_copies=max((loop.copies for loop in loops), default=0),
        loop_reloads=count_reloads(disassemble(kernel.asm["cubin"])) if spill_bytes else 0,
        programs=resident_programs(
            capability,
            threads=int(threads[1]) if threads else 32 * case.num_warps,
            registers=registers,
            shared_bytes=kernel.metadata.shared,
            tmem_columns=tmem_columns,
        ),
    )


def resident_programs(
    capability: int, *, threads: int, registers: int, shared_bytes: int, tmem_columns: int = 0
) -> int:
    """Programs that one multiprocessor holds at a time, by what one program needs.

    ``registers`` are per thread; ``shared_bytes`` are without what the system takes.
    """
    shared, most_threads, most_programs = _MULTIPROCESSORS[capability]
    warps = -(-threads // 32)
    warp_registers = -(-max(registers, 1) * 32 // 256) * 256  # a warp gets units of 256
    limits = [
        most_programs,
        most_threads // (32 * warps),
        _REGISTERS // warp_registers // warps,
        shared // (shared_bytes + _RESERVED_SHARED_BYTES),
    ]
    if tmem_columns:
        limits.append(TMEM_COLUMNS // tmem_columns)
    return min(limits)


def assert_within_limits(report: AotReport) -> None:
    """The kernel fits its chip: shared and tensor memory, no trap, spills within the case's limit.

    Otherwise an ``AssertionError`` names the kernel and every limit that it breaks.
    """
    broken = []
    shared = SHARED_BYTES[report.capability]
    if report.shared_bytes > shared:
        broken.append(f"shared memory must be at most {shared} bytes, got {report.shared_bytes}")
    if report.tmem_columns > TMEM_COLUMNS:
        broken.append(
            f"tensor memory must be at most {TMEM_COLUMNS} columns, got {report.tmem_columns}"
        )
    if report.has_trap:
        broken.append("must not contain a trap, which stands for code that cannot run")
    if report.serializes_wgmma:
        broken.append("wgmma must run asynchronously, got code that the assembler serialises")
    if report.spill_bytes > report.max_spill_bytes:
        broken.append(
            f"spills must be at most {report.max_spill_bytes} bytes per thread, "
            f"got {report.spill_bytes}"
        )
    if broken:
        raise AssertionError(f"{report.name} on sm_{report.capability}: {'; '.join(broken)}.")


def assert_no_waste(report: AotReport) -> None:
    """No warp repeats another's products, no loop waits for a copy or reloads a register."""
    wasted = []
    if report.work_ratio is not None and report.work_ratio != 1.0:
        wasted.append(
            f"products per tile must be 1.00 of those needed, got {report.work_ratio:.2f}"
        )
    if report.loop_copies:
        wasted.append(f"loops must copy tiles asynchronously, got {report.loop_copies} copies")
    if report.loop_reloads:
        wasted.append(f"loops must not reload spilled registers, got {report.loop_reloads} loads")
    if wasted:
        raise AssertionError(f"{report.name} on sm_{report.capability}: {'; '.join(wasted)}.")


def registered_cases(capability: int) -> list["AotCase"]:
    """The compile cases of the package, for chips of this capability."""
    from tools.aot_cases import aot_cases
    from tools.aot_layer_cases import layer_cases

    return aot_cases(capability) + layer_cases()


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the registered cases of some capabilities, print a table, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.aot", description=__doc__)
    parser.add_argument(
        "capability",
        type=int,
        nargs="*",
        help=f"of {', '.join(map(str, SHARED_BYTES))}; default: all",
    )
    parser.add_argument("--match", default="", help="only cases whose name contains this text")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("triton") is None:
        print("aot: triton must be installed (pip install 'diffattn[triton]').", file=sys.stderr)
        return 1
    failures: list[str] = []
    print(
        f"{'case':44} {'sm':>4} {'regs':>5} {'spill':>6} {'shared':>7} {'tmem':>5} {'work':>5} "
        f"{'copies':>6} {'reloads':>7} {'programs':>8}  instructions"
    )
    for capability in options.capability or SHARED_BYTES:
        try:
            cases = [case for case in registered_cases(capability) if options.match in case.name]
        except BackendError as error:
            print(error, file=sys.stderr)
            return 1
        for case in cases:
            try:
                report = compile_case(case, capability)
                print(_row(report), flush=True)
                assert_within_limits(report)
                if case.tile_products:  # decode is bound by what it reads, whatever its loop does
                    assert_no_waste(report)
            except BackendError as error:
                print(error, file=sys.stderr)
                return 1
            except Exception as error:  # a compiler fails in many ways: report it, go on
                failures.append(f"{case.name} on sm_{capability}: {type(error).__name__}: {error}")
    print("\n".join(["", *failures, f"{len(failures)} failed"]))
    return 1 if failures else 0


def _row(report: AotReport) -> str:
    work = "-" if report.work_ratio is None else f"{report.work_ratio:.2f}"
    return (
        f"{report.name:44} {report.capability:>4} {report.registers:>5} {report.spill_bytes:>6} "
        f"{report.shared_bytes:>7} {report.tmem_columns:>5} {work:>5} {report.loop_copies:>6} "
        f"{report.loop_reloads:>7} {report.programs:>8}  {report.instructions}"
    )


def _source(case: "AotCase") -> Any:
    """The kernel with its types; what ends in ``:16`` is known to be divisible by 16."""
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    signature = {
        name: "constexpr" if name in case.constexprs else case.signature[name].split(":")[0]
        for name in names
    }
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in case.signature.items()
        if kind.endswith(":16")
    }
    make = ASTSource
    if getattr(case.kernel, "is_gluon", lambda: False)():
        from triton.experimental.gluon._runtime import GluonASTSource

        make = GluonASTSource
    return make(case.kernel, signature, dict(case.constexprs), attributes)


def disassemble(cubin: bytes) -> str:
    """The machine code of a kernel."""
    import triton

    binaries = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [binaries / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
        ).stdout


if __name__ == "__main__":
    sys.exit(main())
