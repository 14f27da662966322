"""One call of ``diffattn bench``: measure the cases of a plan and write the result file."""

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from diffattn.files.io import write_text
from diffattn.lab.benchmark import models
from diffattn.lab.benchmark.config import OF_MODELS, BenchConfig, Case
from diffattn.lab.benchmark.measure import measure
from diffattn.lab.benchmark.paged import PAGE_SIZE
from diffattn.lab.benchmark.timing import Timer, matmul_peak, timer_of
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.results import BenchCase, BenchResult, BenchRun, case_key
from diffattn.lab.records.run import config_hash, git_state, hardware, package_versions
from diffattn.models.memory import require_memory
from diffattn.ops.inputs.kernel_support import VARIABLE, installed_version

_TIMED_FOLDERS = ("ops", "layers", "models", "lab/benchmark", "lab/testing")
# By device: number of heads and their width; tokens; tokens in the cache.
_HEADS = {"cpu": ((4, 64), (8, 128)), "cuda": ((16, 64), (12, 128))}
_DECODE_SHAPES = ((1, 4, 64), (4, 4, 64), (1, 12, 128), (4, 12, 128))
_LENGTHS = {"cpu": (512, 1_024, 2_048, 4_096), "cuda": (2_048, 4_096, 8_192, 16_384)}
_CACHED = {"cpu": (4_096,), "cuda": (4_096, 16_384)}


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one run of ``diffattn bench``, small first, so that a mistake shows early."""
    shapes = models.shapes(config) if config.suite in OF_MODELS else _shapes(config)
    dtypes = ("bfloat16",) if config.device == "cuda" else ("float32", "bfloat16")
    return [
        Case(suite=config.suite, device=config.device, dtype=dtype, mode=mode, shape=shape[mode])
        for shape in shapes
        for dtype in config.dtypes or dtypes[: None if config.scale != "quick" else 1]
        for mode in shape
    ]


def _shapes(config: BenchConfig) -> list[dict[str, dict[str, Any]]]:
    limit = None if config.scale == "full" else 1
    more: dict[str, Any] = {"page": PAGE_SIZE} if config.suite == "paged" else {}
    more |= {"attention": "v2"} if config.attention == "v2" else {}
    if config.suite in ("decode", "paged"):  # one query per row against cached keys and values
        return [
            {"decode": {"B": batch, "H": num_heads, "d": head_dim, "N": 1, "S": length} | more}
            for length in config.lengths or _CACHED[config.device][:limit]
            for batch, num_heads, head_dim in _DECODE_SHAPES[:limit]
        ]
    modes = ("forward", *(["backward"] if config.device == "cuda" else []), "forward_backward")
    return [
        dict.fromkeys(modes, {"B": 1, "H": num_heads, "d": head_dim, "N": length} | more)
        for length in config.lengths or _LENGTHS[config.device][:limit]
        for num_heads, head_dim in _HEADS[config.device][:limit]
    ]


def smallest_bytes(case: Case) -> int:
    """About the least memory of a case: inputs and output, or a model's logits."""
    if case.suite in OF_MODELS:
        return models.smallest_bytes(case)
    shape, queries = case.shape, case.shape["N"]
    widest = max(queries, shape.get("S", 0))
    return int(2 * shape["B"] * shape["H"] * shape["d"] * (3 * widest + queries))


def run_bench(
    config: BenchConfig,
    out: Path,
    *,
    fresh: bool = False,
    on_message: Callable[[str], None] = print,
    on_progress: Callable[[int], None] = lambda done: None,
    timer: Timer | None = None,
) -> tuple[BenchResult, list[BenchCase]]:
    """Measure every case of a plan, and write each to file ``out`` as soon as it is measured.

    A case that the file already has from the same code, versions, machine and settings is not
    measured again. A newly measured case replaces the same case of another run.

    Args:
        fresh: Whether to discard the content of the file.
        on_progress: Called with the number of cases done so far.

    Returns:
        The content of the whole file, and the cases of this plan in order.
    """
    cases = plan(config)
    free = None if config.device == "cpu" else torch.cuda.mem_get_info()[0]
    for case in cases:
        require_memory(f"bench: {case}", {"tensors": smallest_bytes(case)}, available=free)
    if config.device == "cpu":
        torch.set_num_threads(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    with sole_writer(out.parent):
        result = BenchResult() if fresh or not out.exists() else BenchResult.read(out)
        # A path that cannot be written is known before anything is measured. Old records stay.
        before = out.read_text(encoding="utf-8") if out.exists() else None
        write_text(out, before or "")
        if before is None:
            out.unlink()
        run = describe_run(config.device, config.settings())
        clock = timer_of(config.device) if timer is None else timer
        rates: dict[str, float] = {}
        in_order: list[BenchCase] = []
        on_progress(0)
        for case in cases:
            measured = result.find(case_key(case), run.name)
            if measured is not None:
                on_message(f"{case}: already in {out}, measured by {run.name}")
            else:
                if case.dtype not in rates:
                    rates[case.dtype] = matmul_peak(case.torch_dtype, case.device, clock)
                measured = measure(
                    case, config, run=run.name, timer=clock, matmul_rate=rates[case.dtype]
                )
                result = result.put(measured, run)
                result.write(out)
                on_message(f"{case}: {in_short(measured)}")
            in_order.append(measured)
            on_progress(len(in_order))
    return result, in_order


def describe_run(device: str, settings: dict[str, Any]) -> BenchRun:
    """The record of a run. Its name is a hash of all that may change a measurement."""
    commit, dirty = git_state()
    versions: dict[str, str | None] = {**package_versions(), "triton": installed_version()}
    machine = hardware() | {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        machine |= {"gpu": gpu.name, "cuda": torch.version.cuda, "gpu_bytes": gpu.total_memory}
    source = source_hash()
    identity = {"source": source, "versions": versions, "hardware": machine, "settings": settings}
    if os.environ.get(VARIABLE):  # it changes which kernels ``auto`` chooses
        identity[VARIABLE] = os.environ[VARIABLE]
    return BenchRun(
        name=f"{device}-{config_hash(identity)[:8]}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        source=source,
        versions=versions,
        hardware=machine,
        settings=settings,
    )


def source_hash() -> str:
    """First 16 hex digits of the SHA-256 of the source files that can change a measurement."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in _TIMED_FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def in_short(case: BenchCase) -> str:
    """One line: time of T (PyTorch's softmax attention), fastest DIFF, verdicts, failures."""
    parts = [
        f"{row.contender} {1e3 * row.seconds.median:.3g} ms"
        for row in case.rows
        if row.role == "T" and row.seconds
    ]
    diffs = [
        (row.ratio_t.median, row.contender)
        for row in case.rows
        if row.role == "DIFF" and row.ratio_t
    ]
    if diffs:
        parts.append("best DIFF {1} {0:.2f} × T".format(*min(diffs)))
    parts += [f"{v.contender} {v.target}: {v}" for v in case.verdicts]
    parts += [
        f"{row.contender} {row.status}: {row.reason}"
        for row in case.rows
        if row.status not in ("ok", "not run")
    ]
    return "; ".join(parts)
