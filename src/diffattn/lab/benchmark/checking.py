"""Compare a contender with the float64 reference on the same tensors that are timed.

The contender always runs on the whole timed shape. For a large shape some query rows are compared,
in all heads. The gradient of the output is zero in all other rows. So the gradients of keys, values
and λ depend only on these rows, and the reference computes only their part of the maps.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diffattn.lab.testing.assertions import (
    compare,
    exact_weights,
    output_and_gradients,
    reference_by_rows,
)
from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.lab.testing.rounding import at_rows, rounding_errors

_WHOLE_PAIRS = 2**21  # largest batch × heads × queries × keys that is compared in full
_BLOCK_SCORES = 2**22  # entries of the maps that the reference holds at once
_HALF_LINE = 300  # characters of a long error that are kept at either end


class Exact:
    """Exact values for all contenders on the same tensors, computed once on first use."""

    def __init__(self, inputs: DiffAttentionInputs, *, maps: int = 2) -> None:
        self.inputs, self.leaves, self.maps = inputs, inputs.tensors(), maps
        self._values: dict[bool, dict[str, tuple[Tensor, Tensor]]] = {}

    @cached_property
    def rows(self) -> Tensor:
        """The rows to compare: all, or the first 16, the last 16, and 16 that lie evenly."""
        batch, num_queries, num_heads = self.inputs.q.shape[:3]
        every = torch.arange(num_queries, device=self.inputs.q.device)
        if batch * num_heads * num_queries * self.inputs.k.shape[1] <= _WHOLE_PAIRS:
            return every
        between = torch.linspace(0, num_queries - 1, 16, device=every.device).long()
        return torch.cat((every[:16], between, every[-16:])).unique()

    @cached_property
    def grad_output(self) -> Tensor:
        """Gradient of the output, 0 in the rows that are not compared."""
        shape = (*self.inputs.q.shape[:3], self.inputs.v.shape[-1])
        with torch.no_grad():
            drawn = exact_weights(self.inputs.q.new_empty(shape), self.inputs.q.device)
        return torch.zeros_like(drawn).index_copy(1, self.rows, drawn[:, self.rows])

    @classmethod
    def softmax(cls, leaves: tuple[Tensor, ...]) -> "Exact":
        """Exact values of softmax attention, as the first map of differential attention."""
        q, k, v = (x.detach() for x in leaves)
        doubled = DiffAttentionInputs(
            q=q[:, :, :, None].expand(-1, -1, -1, 2, -1).requires_grad_(),
            k=k[:, :, :, None].expand(-1, -1, -1, 2, -1).requires_grad_(),
            v=v.requires_grad_(),
            lam=torch.zeros((), dtype=torch.float32, device=q.device),
            options={},
        )
        exact = cls(doubled, maps=1)
        exact.leaves = dict(zip("qkv", leaves, strict=True))
        return exact

    def check(self, run: Callable[[], Tensor], gradients: bool) -> dict[str, Any]:
        """Compare a contender's output, and with ``gradients`` the gradients of all tensors.

        Returns ``passed``; ``worst``, the tensor with the largest ratio of error to budget, and its
        ``error`` (``None`` if not finite) and ``budget``; ``compared``, the rows in words.
        """
        out = run() if gradients else torch.no_grad()(run)()
        values = output_and_gradients(out, self.leaves, self.grad_output if gradients else None)
        if gradients not in self._values:
            self._values[gradients] = self._expected(gradients)
        most, worst = -1.0, {"worst": "output", "error": 0.0, "budget": 0.0, "passed": True}
        for name, (exact, rounding) in self._values[gradients].items():
            result = compare(at_rows(name, values[name], self.rows), exact, rounding)
            whole = bool(torch.isfinite(values[name]).all())
            share = result.share if whole else math.inf
            if share > most:
                most = share
                worst = {"worst": name, "error": result.error, "budget": result.budget}
                worst["passed"] = whole and result.problem is None
                worst |= {} if whole else {"error": None, "worst": f"{name} (not finite)"}
        batch, num_queries, num_heads = self.inputs.q.shape[:3]
        part = f"{len(self.rows):,} rows of {batch * num_heads} heads"
        return worst | {"compared": "everything" if len(self.rows) == num_queries else part}

    def _expected(self, gradients: bool) -> dict[str, tuple[Tensor, Tensor]]:
        """Exact values at the compared rows and how far rounding moves them, by name."""
        options: dict[str, Any] = {"rows": self.rows, "scores": _BLOCK_SCORES}
        weights = self.grad_output if gradients else None
        exact = reference_by_rows(self.inputs, weights, **options)
        rounding = rounding_errors(self.inputs, self.grad_output, **options)
        values = {name: (x, rounding[name]) for name, x in exact.items()}
        if self.maps == 1:  # of the first map
            for name in exact.keys() & {"gradient of q", "gradient of k"}:
                values[name] = (exact[name][:, :, :, 0], rounding[name][:, :, :, 0])
        return values


def problem(check: Mapping[str, Any]) -> str | None:
    """A failed check in one line; ``None`` if it passed."""
    if check["passed"]:
        return None
    error = "not finite" if check["error"] is None else f"{check['error']:.2e}"
    return (
        f"{check['worst']}: error {error} against the float64 reference, "
        f"budget {check['budget']:.2e}"
    )


def error_line(error: Exception) -> str:
    """An error in one line: its class and its text, without the middle of a long text."""
    text = " ".join(str(error).split())
    if len(text) > 2 * _HALF_LINE:  # compilers write the place first and the reason last
        text = f"{text[:_HALF_LINE]} … {text[-_HALF_LINE:]}"
    return f"{type(error).__name__}: {text}"


def device_lost() -> bool:
    """Whether the CUDA context is unusable, as after an illegal access."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
