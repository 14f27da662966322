"""Thousands of random calls of ``diff_attention`` against the float64 reference.

``python -m tools.fuzz --calls 10000 --seed 0`` prints a summary; ``--out`` records it.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from diffattn.errors import BackendError, ShapeError
from diffattn.lab.testing.assertions import compare_to_reference
from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.inputs import backends as table
from diffattn.ops.inputs import kernel_support
from tools.fuzz_calls import BROKEN, FuzzCall, draw_call, lay_out, make_inputs

OP = "diff_attention"
Oracle = Callable[..., torch.Tensor]
"""The definition in float64: ``(q, k, v, lam, **options)`` to the output."""
SEEDS_PER_RUN = 1_000_000
DRAWN_LESS = {"flex": 0.2}
"""Weights below 1: unfused FlexAttention is traced again for most shapes, which takes 0.4 s."""


@dataclass(kw_only=True, slots=True)
class FuzzReport:
    """The calls of a run and their outcomes, counted."""

    num_calls: int
    seed: int
    backends: tuple[str, ...]
    outcomes: Counter[str] = field(default_factory=Counter)
    """``right``, ``refused`` (an error that was due) and ``wrong``."""
    by_backend: Counter[str] = field(default_factory=Counter)
    by_dtype: Counter[str] = field(default_factory=Counter)
    by_facet: Counter[str] = field(default_factory=Counter)
    by_refusal: Counter[str] = field(default_factory=Counter)
    worst: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per backend and tensor: largest share of the budget used, and the seed of that call."""
    failures: list[str] = field(default_factory=list)
    wall_seconds: float = 0.0

    def as_record(self) -> dict[str, Any]:
        """For JSON, with the versions and the machine it holds for."""
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            # Not asdict, which Counter breaks before Python 3.12.
            **{item.name: getattr(self, item.name) for item in fields(self)},
        }

    def summary(self) -> str:
        """A few lines for people."""
        counts = lambda counter: ", ".join(f"{k} {n}" for k, n in counter.most_common())  # noqa: E731
        lines = [
            f"{self.num_calls} calls, seed {self.seed}, {self.wall_seconds:.0f} s: "
            f"{counts(self.outcomes)}",
            f"backends: {counts(self.by_backend)}",
            f"dtypes: {counts(self.by_dtype)}",
            f"with: {counts(self.by_facet)}",
            "largest share of the budget used:",
        ]
        for backend, shares in sorted(self.worst.items()):
            cells = [f"{name} {used['share']:.2f}" for name, used in shares.items()]
            lines.append(f"  {backend}: {', '.join(cells)}")
        return "\n".join([*lines, *self.failures])


def usable_backends(device: str = "cpu") -> tuple[str, ...]:
    """``auto`` and every backend that runs on the device, but Triton's slow interpreter on CPU."""
    facts = table.Inputs(
        device=device, dtype=torch.float32, batch=1, num_heads=1, num_queries=2, num_keys=2,
        head_dim=64, value_dim=128,
        capability=kernel_support.compute_capability(torch.device(device)),
    )  # fmt: skip
    named = [row.name for row in table.table(OP) if row.refuses(facts) is None]
    slow = ("triton", "triton_decode") if device == "cpu" else ()
    return ("auto", *(name for name in named if name not in slow))


def run(
    num_calls: int,
    seed: int,
    backends: Sequence[str] | None = None,
    *,
    device: str = "cpu",
    oracle: Oracle | None = None,
) -> FuzzReport:
    """Make random calls and compare each with the float64 reference, output and gradients.

    Args:
        seed: Of the run: call i has the seed ``seed * 1_000_000 + i``.
        backends: Names to draw from. Default: :func:`usable_backends`.
        oracle: What gives the exact results. Default: the reference, in float64 too.
    """
    names = tuple(backends) if backends is not None else usable_backends(device)
    report = FuzzReport(num_calls=num_calls, seed=seed, backends=names)
    start = time.monotonic()
    for call_seed in range(seed * SEEDS_PER_RUN, seed * SEEDS_PER_RUN + num_calls):
        run_call(call_seed, names, report, device, oracle)
    report.wall_seconds = round(time.monotonic() - start, 1)
    return report


def run_call(
    call_seed: int,
    names: Sequence[str],
    report: FuzzReport,
    device: str = "cpu",
    oracle: Oracle | None = None,
) -> None:
    """Make one call on a backend drawn from ``names`` and add it to the report."""
    call = draw_call(call_seed)
    weights = [DRAWN_LESS.get(name, 1.0) for name in names]
    (backend,) = Random(call_seed).choices(names, weights)
    report.by_backend[backend] += 1
    report.by_dtype[str(call.dtype).removeprefix("torch.")] += 1
    report.by_facet.update(call.facets())
    problem: str | None
    try:
        inputs = make_inputs(call, device=device)
        if call.broken is not None:
            report.by_refusal[call.broken] += 1
            problem = _expect_error(call, inputs, backend)
            outcome = "refused"
        elif (reason := _refusal(inputs, backend)) is not None:
            report.by_refusal["not for this backend"] += 1
            problem = _expect_refusal(inputs, backend, reason)
            outcome = "refused"
        else:
            problem = _compare(call, inputs, backend, report, oracle)
            outcome = "right"
    except Exception as error:  # whatever an operator raises here is a finding, not an end
        problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        outcome = "wrong"
    if problem is not None:
        outcome = "wrong"
        report.failures.append(
            f"call {call_seed}, backend {backend}, {call.dtype}: {problem} | "
            f"python -m tools.fuzz --call {call_seed} --backends {backend}"
        )
    report.outcomes[outcome] += 1


def _compare(
    call: FuzzCall,
    inputs: DiffAttentionInputs,
    backend: str,
    report: FuzzReport,
    oracle: Oracle | None,
) -> str | None:
    row = _row_of(backend)
    with torch.set_grad_enabled(row is None or inputs.q.device.type not in row.no_gradient_on):
        compared = compare_to_reference(
            diff_attention, inputs, backend=backend, lay_out=partial(lay_out, call.layouts[-1]),
            oracle=oracle,
        )  # fmt: skip
    shares = report.worst.setdefault(backend, {})
    for name, value in compared.items():
        if name not in shares or value.share > shares[name]["share"]:
            shares[name] = {"share": round(value.share, 3), "seed": call.seed}
    problems = [f"{name}: {value.problem}" for name, value in compared.items() if value.problem]
    return "; ".join(problems) or None


def _row_of(backend: str) -> table.Backend | None:
    return next((row for row in table.table(OP) if row.name == backend), None)


def _refusal(inputs: DiffAttentionInputs, backend: str) -> str | None:
    """Why the table says that the backend cannot run these inputs, gradients aside."""
    row = _row_of(backend)
    with torch.no_grad():
        return None if row is None else row.refuses(table.describe(inputs.q, inputs.k, inputs.v))


def _expect_refusal(inputs: DiffAttentionInputs, backend: str, reason: str) -> str | None:
    try:
        with torch.no_grad():
            diff_attention(*inputs.tensors().values(), backend=backend, **inputs.options)
    except BackendError as error:
        return None if reason in str(error) else f"the error must say {reason!r}, got {error}"
    return f"must raise BackendError: {reason}"


def _expect_error(call: FuzzCall, inputs: DiffAttentionInputs, backend: str) -> str | None:
    arguments = inputs.tensors() | {"backend": backend} | inputs.options
    arguments |= BROKEN[str(call.broken)](arguments)
    try:
        with torch.no_grad():
            diff_attention(**arguments)
    except (ShapeError, BackendError) as error:
        one_line = "\n" not in str(error) and str(error).startswith(f"{OP}: ")
        return None if one_line else f"{call.broken}: the error must be one line, got {error}"
    except Exception as error:  # any other error is what is looked for
        return f"{call.broken}: must raise ShapeError or BackendError, got {type(error).__name__}"
    return f"{call.broken}: must raise ShapeError or BackendError, raised nothing"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit code says whether every call went right."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="number of calls (10000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument("--call", type=int, help="make the one call of this seed and show it")
    parser.add_argument("--backends", help="names, comma-separated; default: all usable here")
    parser.add_argument("--device", default="cpu", help="device of the tensors; default: cpu")
    parser.add_argument("--out", type=Path, help="write the counts and the worst use as JSON")
    options = parser.parse_args(arguments)
    names = options.backends.split(",") if options.backends else usable_backends(options.device)
    if options.call is not None:
        report = FuzzReport(num_calls=1, seed=options.call, backends=tuple(names))
        print(draw_call(options.call))
        run_call(options.call, names, report, options.device)
    else:
        report = run(options.calls, options.seed, names, device=options.device)
    print(report.summary())
    if options.out is not None:
        text = json.dumps(report.as_record(), indent=1, ensure_ascii=False)
        options.out.write_text(text + "\n", encoding="utf-8")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
