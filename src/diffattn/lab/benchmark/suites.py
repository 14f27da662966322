"""The suites by name: their cases and their contenders."""

from types import ModuleType
from typing import Any

from diffattn.lab.benchmark.config import BenchConfig, Case
from diffattn.lab.benchmark.contenders import Contender, operator_contenders
from diffattn.lab.benchmark.paged import PAGE_SIZE, paged_contenders

_OF_MODELS, _OF_CACHES = ("models", "generation"), ("decode", "paged")
_HEADS = {"cpu": ((4, 64), (8, 128)), "cuda": ((16, 64), (12, 128))}
_DECODE_SHAPES = ((1, 4, 64), (4, 4, 64), (1, 12, 128), (4, 12, 128))
_MODES = {
    "cpu": ("forward", "forward_backward"),
    "cuda": ("forward", "backward", "forward_backward"),
}


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one call: small shapes first, so that a mistake shows early."""
    if config.suite in _OF_MODELS:
        cases: list[Case] = _models(config.suite).plan(config)
        return cases
    full, cuda = config.scale == "full", config.device == "cuda"
    dtypes = ("bfloat16",) if cuda else ("float32", "bfloat16") if full else ("float32",)
    shapes: list[dict[str, Any]]
    if config.suite in _OF_CACHES:  # one query per row against cached keys and values
        lengths: tuple[int, ...] = (4_096, 16_384) if cuda and full else (4_096,)
        modes: tuple[str, ...] = ("decode",)
        shapes = [
            {"B": batch, "H": num_heads, "d": head_dim, "N": 1, "S": length}
            | ({"page": PAGE_SIZE} if config.suite == "paged" else {})
            for length in config.lengths or lengths
            for batch, num_heads, head_dim in _DECODE_SHAPES[: None if full else 1]
        ]
    else:
        lengths = (2_048, 4_096, 8_192, 16_384) if cuda else (512, 1_024, 2_048, 4_096)
        modes = _MODES[config.device]
        shapes = [
            {"B": 1, "H": num_heads, "d": head_dim, "N": length}
            for length in config.lengths or lengths[: None if full else 1]
            for num_heads, head_dim in _HEADS[config.device][: None if full else 1]
        ]
    attention = {"attention": "v2"} if config.attention == "v2" else {}
    return [
        Case(
            suite=config.suite,
            device=config.device,
            dtype=dtype,
            mode=mode,
            shape=shape | attention,
        )
        for shape in shapes
        for dtype in config.dtypes or dtypes
        for mode in modes
    ]


def contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender of one case, T first."""
    if case.suite in _OF_MODELS:
        of_models: list[Contender] = _models(case.suite).contenders(case, only)
        return of_models
    return (
        paged_contenders(case, only) if case.suite == "paged" else operator_contenders(case, only)
    )


def smallest_bytes(case: Case) -> int:
    """Bytes that a case allocates at least: one call's inputs and output, or a model's logits."""
    shape = case.shape
    if case.suite in _OF_MODELS:
        return int(_models(case.suite).smallest_bytes(case))
    widest = max(shape["N"], shape.get("S", 0))
    return int(2 * shape["B"] * shape["H"] * shape["d"] * (3 * widest + shape["N"]))


def effort(case: Case) -> int:
    """Rough share of the whole work, for the time left."""
    shape = case.shape
    if case.suite in _OF_MODELS:
        return int(_models(case.suite).effort(case))
    pairs = shape["N"] * shape.get("S", shape["N"]) / 2
    work = shape["B"] * shape["H"] * shape["d"] * pairs
    return 20 + round(work * (1 if case.mode in ("forward", "decode") else 3.5) / 1e8)


def _models(suite: str) -> ModuleType:
    """Loaded on demand: transformers would slow every process that measures memory."""
    from diffattn.lab.benchmark import generation, models

    return {"models": models, "generation": generation}[suite]
