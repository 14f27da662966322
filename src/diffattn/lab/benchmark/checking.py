"""Compare a contender with the float64 reference on the same tensors that are timed.

The contender always runs on the whole timed shape. For a large shape samples of query rows are
compared. The gradient of the output is zero in all other rows. So the gradients of keys, values
and λ depend only on the sampled rows, and the reference computes only their part of the maps.
"""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffattn.lab.testing.assertions import exact_weights, output_and_gradients
from diffattn.lab.testing.budget import compare
from diffattn.lab.testing.inputs import DiffAttentionInputs
from diffattn.lab.testing.rounding import rounding_errors
from diffattn.ops.backends import reference

_WHOLE_PAIRS = 2**21  # largest batch × heads × queries × keys that is compared in full
_STRETCH = 64  # rows in each range of the two heads
_SHORT = 8  # rows of every other head
_HALF_LINE = 300  # characters of a long error that are kept at either end


class Part(NamedTuple):
    """Rows ``[first, last)`` of one head."""

    batch: int
    head: int
    first: int
    last: int


def parts(batch: int, num_heads: int, num_queries: int, num_keys: int) -> list[Part]:
    """The parts to compare: everything, or some rows of every head.

    In the last batch row, the first and last head are compared in their first, middle and last
    64 rows. Every other head is compared in 8 rows, at a different position for each head.
    """
    every = [(b, h) for b in range(batch) for h in range(num_heads)]
    if batch * num_heads * num_queries * num_keys <= _WHOLE_PAIRS:
        return [Part(*head, 0, num_queries) for head in every]
    middle = max(0, num_queries // 2 - 17)  # not aligned with the blocks of a kernel
    stretches, last = [], 0
    for start in (0, middle, max(0, num_queries - _STRETCH)):
        end = min(start + _STRETCH, num_queries)
        if end > last:  # no row twice, as gradients of several stretches are added
            stretches.append((max(start, last), end))
            last = end
    long = [(batch - 1, h) for h in sorted({0, num_heads - 1})]
    chosen = [Part(*head, *rows) for head in long for rows in stretches]
    others = [head for head in every if head not in long]
    for i, head in enumerate(others):
        first = max(0, num_queries - _SHORT) * (i + 1) // (len(others) + 1)
        chosen.append(Part(*head, first, min(first + _SHORT, num_queries)))
    return chosen


class Exact:
    """Exact values for all contenders on the same tensors, computed once on first use."""

    def __init__(
        self, inputs: DiffAttentionInputs, leaves: dict[str, Tensor], *, maps: int
    ) -> None:
        self.inputs, self.leaves, self.maps = inputs, leaves, maps
        batch, num_queries, num_heads = inputs.q.shape[:3]
        self.chosen = parts(batch, num_heads, num_queries, inputs.k.shape[1])
        self._values: dict[bool, dict[str, _Compared]] = {}

    @cached_property
    def grad_output(self) -> Tensor:
        """Gradient of the output, 0 in the rows that are not compared."""
        shape = (*self.inputs.q.shape[:3], self.inputs.v.shape[-1])
        with torch.no_grad():
            drawn = exact_weights(self.inputs.q.new_empty(shape), self.inputs.q.device)
        mask = torch.zeros_like(drawn[..., :1])
        for part in self.chosen:
            mask[part.batch, part.first : part.last, part.head] = 1
        return drawn * mask

    @classmethod
    def diff(cls, inputs: DiffAttentionInputs) -> "Exact":
        """Exact values of ``diff_attention``. λ is a scalar, or ``[B, T, H]``."""
        return cls(inputs, inputs.tensors(), maps=2)

    @classmethod
    def softmax(cls, leaves: tuple[Tensor, ...]) -> "Exact":
        """Exact values of softmax attention, as differential attention with λ = 0.

        Only the first map's gradients of q and k are compared.
        """
        q, k, v = leaves
        with torch.no_grad():
            doubled = DiffAttentionInputs(
                q=q[:, :, :, None].expand(-1, -1, -1, 2, -1),
                k=k[:, :, :, None].expand(-1, -1, -1, 2, -1),
                v=v,
                lam=torch.zeros((), dtype=torch.float32, device=q.device),
                options={},
            )
        return cls(doubled, dict(zip("qkv", leaves, strict=True)), maps=1)

    def check(self, run: Callable[[], Tensor], gradients: bool) -> dict[str, Any]:
        """Compare a contender's output, and with ``gradients`` the gradients of all tensors.

        Returns ``passed``; ``worst``, the tensor with the largest ratio of error to budget, and its
        ``error`` (``None`` if not finite) and ``budget``; ``compared``, the rows in words.
        """
        out = run() if gradients else torch.no_grad()(run)()
        values = output_and_gradients(out, self.leaves, self.grad_output if gradients else None)
        if gradients not in self._values:
            self._values[gradients] = _expected(self, gradients=gradients)
        rows = sum(part.last - part.first for part in self.chosen)
        heads = len({(part.batch, part.head) for part in self.chosen})
        is_all = rows == math.prod(self.inputs.q.shape[:3])
        compared = "everything" if is_all else f"{rows:,} rows of {heads} heads"
        return _worst(values, self._values[gradients]) | {"compared": compared}


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


class _Compared(NamedTuple):
    exact: Tensor
    rounding_error: Tensor
    places: list[Any]


def _worst(values: Mapping[str, Tensor], exact: Mapping[str, _Compared]) -> dict[str, Any]:
    worst: dict[str, Any] = {"worst": "output", "error": 0.0, "budget": 0.0, "passed": True}
    most = -1.0
    for name, expected in exact.items():
        if name not in values:
            continue
        actual = _values_at(values[name], expected.places, name)
        result = compare(actual, expected.exact, expected.rounding_error)
        whole = bool(torch.isfinite(values[name]).all())
        share = result.share if whole else math.inf
        if share > most:
            most = share
            worst = {"worst": name, "error": result.error, "budget": result.budget}
            worst["passed"] = whole and result.problem is None
            worst |= {} if whole else {"error": None, "worst": f"{name} (not finite)"}
    return worst


def _expected(compared: Exact, gradients: bool) -> dict[str, _Compared]:
    """Exact values of all parts; gradients of a key from several parts are added."""
    inputs = compared.inputs
    values: dict[str, dict[Any, list[Tensor]]] = {}
    offset = inputs.k.shape[1] - inputs.q.shape[1]
    for part in compared.chosen:
        # The part's rows, and the keys that its last row sees.
        b, h = (slice(i, i + 1) for i in (part.batch, part.head))
        query_rows, keys = slice(part.first, part.last), slice(0, part.last + offset)
        lam = inputs.lam
        if lam.ndim:
            lam = lam.expand(inputs.q.shape[:3])[b, query_rows, h]
        tensors = (inputs.q[b, query_rows, h], inputs.k[b, keys, h], inputs.v[b, keys, h], lam)
        q, k, v, lam = (x.detach().clone().requires_grad_() for x in tensors)
        sub = DiffAttentionInputs(q=q, k=k, v=v, lam=lam, options={})
        grad_out = compared.grad_output[part.batch, query_rows, part.head][None, :, None]
        doubled = sub.map_tensors(Tensor.double)
        out = reference.forward(*doubled.tensors().values(), scale=sub.q.shape[-1] ** -0.5)
        grad_or_none = grad_out.to(out) if gradients else None
        exact = output_and_gradients(out, doubled.tensors(), grad_or_none)
        rounding = rounding_errors(sub, grad_out)
        head = (part.batch, part.head)
        rows = (*head, part.first, part.last)
        places = {"output": rows, "gradient of q": rows, "gradient of k": head}
        places |= {"gradient of v": head}
        lam_place = rows if inputs.lam.ndim else ()
        for name in exact:
            place = places.get(name, lam_place)
            # Drop the axes of batch and head, which a scalar λ does not have.
            pair = [x[name][0, :, 0] if x[name].ndim else x[name] for x in (exact, rounding)]
            if compared.maps == 1 and name in ("gradient of q", "gradient of k"):
                pair = [x[:, 0] for x in pair]  # of the first map
            pair[1] = pair[1].square()  # errors of parts are independent, so squares add
            if place == head:  # append 0 for the keys that no row of the part sees
                unseen = inputs.k.shape[1] - pair[0].shape[0]
                pair = [torch.cat([x, x.new_zeros(unseen, *x.shape[1:])]) for x in pair]
            by_place = values.setdefault(name, {})
            if place in by_place:
                pair = [a + b for a, b in zip(by_place[place], pair, strict=True)]
            by_place[place] = pair
    return {
        name: _Compared(
            exact=_stack([exact for exact, _ in by_place.values()]),
            rounding_error=_stack([square for _, square in by_place.values()]).sqrt(),
            places=list(by_place),
        )
        for name, by_place in values.items()
    }


def _stack(items: list[Tensor]) -> Tensor:
    return torch.cat([item if item.ndim else item[None] for item in items])


def _values_at(value: Tensor, places: list[Any], name: str) -> Tensor:
    """The contender's values at the compared places, in the shape of the exact values."""
    if name == "gradient of lam" and value.ndim == 2:
        value = value[None]  # with batch size 1, λ has no batch axis
    pieces = []
    for place in places:
        if place == ():
            pieces.append(value)
        elif len(place) == 2:
            pieces.append(value[place[0], :, place[1]])
        else:
            b, h, first, last = place
            pieces.append(value[b, first:last, h])
    return _stack(pieces)
