"""The suites by name: their cases and their contenders."""

from types import ModuleType

from diffattn.benchmark import decode, ops
from diffattn.benchmark.config import BenchConfig, Case
from diffattn.benchmark.contenders import Contender, operator_contenders


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one call."""
    if config.suite == "models":
        found: list[Case] = _models().plan(config)
        return found
    return {"ops": ops.plan, "decode": decode.plan}[config.suite](config)


def contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every contender of one case, T first."""
    if case.suite == "models":
        found: list[Contender] = _models().model_contenders(case, only)
        return found
    return operator_contenders(case, only)


def effort(case: Case) -> int:
    """Rough share of the whole work, for the time left."""
    shape = case.shape
    if case.suite == "models":
        return int(_models().effort(case))
    pairs = shape["N"] * shape.get("S", shape["N"]) / 2
    work = shape["B"] * shape["H"] * shape["d"] * pairs
    return 20 + round(work * (1 if case.mode in ("forward", "decode") else 3.5) / 1e8)


def _models() -> ModuleType:
    """Loaded on demand: transformers would slow every process that measures memory."""
    from diffattn.benchmark import models

    return models
