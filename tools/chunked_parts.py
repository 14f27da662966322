"""Time each part of the ``chunked`` backend: the table of docs/reference/numerics.md.

    OMP_NUM_THREADS=1 PYTHONPATH=src python -m tools.chunked_parts

Self time of PyTorch's operators on one thread, forward and backward of DIFF V1 under a causal mask,
summed by what they are for. The profiler adds to every operator's time, so shares count, not
seconds; Python's own time between the operators is in none of them.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contender_names import DIFF
from diffattn.lab.benchmark.suites import contenders

PARTS = {
    "matrix products": ("aten::baddbmm", "aten::bmm", "aten::addmm_"),
    "softmax": ("aten::_softmax",),
    "its gradient": ("aten::_softmax_backward_data",),
    "A₁ − λA₂": ("aten::sub", "aten::addcmul", "aten::addcmul_"),
    "hiding keys": ("aten::minimum", "aten::masked_fill_"),
    "packing, turning, rounding": ("aten::copy_",),
}
"""What operators of :mod:`diffattn.ops.backends.chunked` are for; the others are sums, λ and
the making of masks."""
REST = "sums, λ, masks, memory"
SHAPES = ((4, 64), (8, 128))
LENGTHS = (512, 4_096)
CALLS = 5


def shares(case: Case) -> dict[str, float]:
    """Share of each part in the self time of all operators, forward and backward.

    Args:
        case: A shape of the suite ``ops``.
    """
    chunked = next(c for c in contenders(case) if (c.name, c.role) == ("chunked", DIFF))
    chunked.backward(chunked.forward())
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(CALLS):
            chunked.backward(chunked.forward())
    seconds = dict.fromkeys([*PARTS, REST], 0.0)
    part_of = {name: part for part, names in PARTS.items() for name in names}
    for event in profiled.key_averages():
        if event.key.startswith("aten::"):
            seconds[part_of.get(event.key, REST)] += event.self_cpu_time_total
    whole = sum(seconds.values())
    return {part: value / whole for part, value in seconds.items()}


def table() -> Iterator[str]:
    """Lines of Markdown, one shape and dtype each."""
    yield f"| shape | dtype | {' | '.join([*PARTS, REST])} |"
    yield f"| --- | --- | {' | '.join('---:' for _ in [*PARTS, REST])} |"
    for num_heads, head_dim in SHAPES:
        for length in LENGTHS:
            for dtype in ("float32", "bfloat16"):
                case = Case(
                    suite="ops", device="cpu", dtype=dtype, mode="forward_backward",
                    shape={"B": 1, "H": num_heads, "d": head_dim, "N": length},
                )  # fmt: skip
                cells = [f"{100 * share:.0f} %" for share in shares(case).values()]
                yield f"| H{num_heads} d{head_dim} N{length} | {dtype} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=Path(__file__).name, description=__doc__)
    parser.parse_args()
    torch.set_num_threads(1)
    for line in table():
        print(line, flush=True)
