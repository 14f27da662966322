"""How a kernel is built: the cases that are compiled without a GPU."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class AotCase:
    """One kernel with its types and tile sizes, to be compiled for a chip that is not here."""

    name: str
    kernel: Any
    """A ``triton.jit`` or ``gluon.jit`` function."""
    signature: dict[str, str]
    """Type per run-time argument: ``"*bf16"``, ``"i32"``; ``":16"`` says divisible by 16."""
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    max_spill_bytes: int = 64
    """Bytes per thread that the assembler may store to local memory for want of registers."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further compiler options, for example ``maxnreg``."""
