r"""Floating-point operations of attention: matrix products over the causal query-key pairs.

With P query-key pairs per head, a product of width w over all heads takes 2 P w operations. In each
form, scores have total width s and values total width v (H heads, ``head_dim`` D, value width Dv):

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

The width w of the forward pass is s + v, of the backward pass 2 s + 2 v. All forms but the
reference compute the maps again in the backward pass, which adds s. Masked pairs are not counted,
even if a form computes them, so rates are of useful work.
"""

from diffattn.ops.inputs import backends

ONE_CALL, FOUR_CALLS = "composed", "flash_diff_attn_2"
_EACH_MAP = (
    *(ONE_CALL, "flash_diff_attn_1", FOUR_CALLS, "flex"),
    # The forward computes O1 and O2 apart for the backward, which needs dP and dV only once.
    *("triton", "hopper", "triton_decode"),
)
"""Backends that apply each map to V. The others combine the maps first."""
_SHARED_BACKWARD = ("triton", "hopper")


def pairs(num_queries: int, num_keys: int) -> int:
    """Number of visible query-key pairs of one head, causal and aligned at the last key."""
    return sum(max(0, num_keys - num_queries + i + 1) for i in range(num_queries))


def softmax_flops(inputs: backends.Inputs, *, batch: int, num_heads: int, mode: str) -> int:
    """Operations of softmax attention with ``num_heads`` heads; see the module's docstring."""
    width = num_heads * inputs.head_dim
    return _flops(inputs, batch, mode, 2 * width, 5 * width)


def diff_flops(
    inputs: backends.Inputs, backend: str, *, batch: int, num_heads: int, mode: str
) -> int:
    """Operations of ``diff_attention`` by a backend in a mode of :class:`Case`."""
    scores, value = 2 * num_heads * inputs.head_dim, num_heads * inputs.value_dim
    pads = backend == ONE_CALL and inputs.value_dim == 2 * inputs.head_dim
    if pads or backend == FOUR_CALLS:
        scores *= 2
    values = 2 * value if backend in _EACH_MAP else value
    backward_values = value if backend in _SHARED_BACKWARD else values
    backward = (2 if backend == "reference" else 3) * scores + 2 * backward_values
    return _flops(inputs, batch, mode, scores + values, backward)


def _flops(inputs: backends.Inputs, batch: int, mode: str, forward: int, backward: int) -> int:
    width = {"backward": backward, "forward_backward": forward + backward}.get(mode, forward)
    return 2 * batch * pairs(inputs.num_queries, inputs.num_keys) * width
