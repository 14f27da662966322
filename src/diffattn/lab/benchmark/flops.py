r"""Floating-point operations of attention: matrix products over the pairs that causality leaves.

With P query-key pairs per head, a product of width w over all heads takes 2 P w operations. A form
has scores of total width s and values of total width v (H heads, ``head_dim`` D, value width Dv):

======================================== =============== ===============
form                                     s               v
======================================== =============== ===============
softmax twin of V1 (2H heads of D)       2 H D           2 H D
softmax twin of V2 (H heads of D)        H D             H D
maps combined before V                   2 H D           H Dv
each map applied to V                    2 H D           2 H Dv
V1 in one call, queries padded to 2D     4 H D           2 H Dv
V1 in four calls                         4 H D           2 H Dv
======================================== =============== ===============

Forward takes s + v, backward 2 s + 2 v, and s more where the maps are computed again. Masked pairs
are not counted, also where a form computes them: all rates are of useful work.
"""

from typing import NamedTuple

from diffattn.ops.inputs import backends

ONE_CALL, FOUR_CALLS = "composed", "flash_diff_attn_2"


class Form(NamedTuple):
    """How a backend computes the operator."""

    combined: bool
    """Subtract the maps before V."""
    recomputes: bool
    """Backward computes the maps again."""


_FORMS = {
    "reference": Form(combined=True, recomputes=False),
    "composed": Form(combined=False, recomputes=True),
    "flash_diff_attn_1": Form(combined=False, recomputes=True),
    "flash_diff_attn_2": Form(combined=False, recomputes=True),
    "chunked": Form(combined=True, recomputes=True),
    "decode": Form(combined=True, recomputes=True),
    "flex": Form(combined=False, recomputes=True),
    # The forward keeps O2 apart, which the backward needs; the backward itself shares dP and dV.
    "triton": Form(combined=False, recomputes=True),
    "hopper": Form(combined=False, recomputes=True),
    "triton_decode": Form(combined=False, recomputes=True),
}
_SHARED_BACKWARD = ("triton", "hopper")
_OTHER = Form(combined=True, recomputes=True)


def pairs(num_queries: int, num_keys: int) -> int:
    """Query-key pairs of one causal, bottom-right aligned head."""
    return sum(max(0, num_keys - num_queries + i + 1) for i in range(num_queries))


def softmax_flops(inputs: backends.Inputs, *, batch: int, num_heads: int, mode: str) -> int:
    """Operations of softmax attention with ``num_heads`` heads; see the module."""
    width = num_heads * inputs.head_dim
    return _flops(inputs, batch, width, width, width, mode, recomputes=True)


def diff_flops(
    inputs: backends.Inputs, backend: str, *, batch: int, num_heads: int, mode: str
) -> int:
    """Operations of ``diff_attention``; a backend unknown here counts as the combined form.

    Args:
        inputs: Lengths and widths of the operator.
        backend: Name of the backend.
        batch: Rows.
        num_heads: H.
        mode: ``"forward"``, ``"backward"``, ``"forward_backward"`` or ``"decode"``.
    """
    form = _FORMS.get(backend, _OTHER)
    scores, value = 2 * num_heads * inputs.head_dim, num_heads * inputs.value_dim
    pads_or_repeats = backend == FOUR_CALLS or (
        backend == ONE_CALL and inputs.value_dim == 2 * inputs.head_dim
    )
    if pads_or_repeats:
        scores *= 2
    values = value if form.combined else 2 * value
    backward_values = value if backend in _SHARED_BACKWARD else values
    return _flops(inputs, batch, scores, values, backward_values, mode, form.recomputes)


def _flops(
    inputs: backends.Inputs,
    batch: int,
    scores: int,
    values: int,
    backward_values: int,
    mode: str,
    recomputes: bool,
) -> int:
    forward = scores + values
    backward = (3 if recomputes else 2) * scores + 2 * backward_values
    width = {
        "forward": forward,
        "decode": forward,
        "backward": backward,
        "forward_backward": forward + backward,
    }[mode]
    return 2 * batch * pairs(inputs.num_queries, inputs.num_keys) * width
