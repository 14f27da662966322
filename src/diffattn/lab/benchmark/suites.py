"""The cases of every benchmark suite, and the implementations (contenders) that each case times."""

from typing import Any

from diffattn.lab.benchmark import models
from diffattn.lab.benchmark.config import BenchConfig, Case
from diffattn.lab.benchmark.contenders import Contender, operator_contenders
from diffattn.lab.benchmark.paged import PAGE_SIZE, paged_contenders

_OF_MODELS = ("models", "generation")  # suites of whole models, not of the operator
# By device: number of heads and their width; tokens; tokens in the cache.
_HEADS = {"cpu": ((4, 64), (8, 128)), "cuda": ((16, 64), (12, 128))}
_DECODE_SHAPES = ((1, 4, 64), (4, 4, 64), (1, 12, 128), (4, 12, 128))
_LENGTHS = {"cpu": (512, 1_024, 2_048, 4_096), "cuda": (2_048, 4_096, 8_192, 16_384)}
_CACHED = {"cpu": (4_096,), "cuda": (4_096, 16_384)}


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one run of ``diffattn bench``, small first, so that a mistake shows early."""
    shapes = models.shapes(config) if config.suite in _OF_MODELS else _shapes(config)
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


def contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Implementations to time: T (PyTorch's softmax attention), and ``only`` these or all."""
    if case.suite in _OF_MODELS:
        return models.contenders(case, only)
    return (paged_contenders if case.suite == "paged" else operator_contenders)(case, only)


def smallest_bytes(case: Case) -> int:
    """About the least memory of a case in bytes: inputs and output, or a model's logits."""
    shape = case.shape
    if case.suite in _OF_MODELS:
        return models.smallest_bytes(case)
    widest = max(shape["N"], shape.get("S", 0))
    return int(2 * shape["B"] * shape["H"] * shape["d"] * (3 * widest + shape["N"]))


def effort(case: Case) -> int:
    """Rough cost of a case, in units of its own, to estimate the time left."""
    shape = case.shape
    if case.suite in _OF_MODELS:
        return models.effort(case)
    pairs = shape["N"] * shape.get("S", shape["N"]) / 2
    work = shape["B"] * shape["H"] * shape["d"] * pairs
    return 20 + round(work * (1 if case.mode in ("forward", "decode") else 3.5) / 1e8)
