"""Second derivatives of the backends whose backward pass is a registered operator.

They differentiate the eager definition, so they hold both maps in memory; any order is possible.
"""

from typing import Any

import torch
from torch import Tensor

from diffattn.ops.backends import chunked, custom_op, reference
from diffattn.ops.inputs.masking import AttentionMask


def _definition(q: Any, k: Any, v: Any, lam: Any, scale: Any, *mask: Any) -> Tensor:
    if lam is not None:
        return reference.forward(q, k, v, lam, scale=scale, mask=AttentionMask(*mask))
    k = k if k.ndim == 4 else k[:, :, :, 0]
    return reference.softmax_attention(q[:, :, :, 0], k, v, scale=scale, mask=AttentionMask(*mask))


def _register(backward: Any, first_option: int) -> None:
    """Make a backward operator differentiable. Its arguments are dO, q, k, v, λ, saved results of
    the forward pass, scale (at ``first_option``), causal, and for some the rest of the mask."""
    last = first_option + 3

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5], *inputs[last : last + 3])
        ctx.options = inputs[first_option:last]
        ctx.num_inputs = len(inputs)
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views: dO may depend on q, k, v and λ, and that dependence is not differentiated here.
            grad_out, *inputs = (
                x if x is None else x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
                for x in ctx.saved_tensors[:5]
            )
            out = _definition(*inputs, *ctx.options, *ctx.saved_tensors[5:])
            given = [x for x in inputs if x is not None]
            first = torch.autograd.grad(out, given, grad_out, create_graph=True)
            pairs = [(x, g) for x, g in zip(first, grads, strict=False) if g is not None]
            second = torch.autograd.grad(
                [x for x, _ in pairs],
                [grad_out, *given],
                [g for _, g in pairs],
                create_graph=again,
                allow_unused=True,
            )
        return *second, *(None,) * (ctx.num_inputs - len(second))

    backward.register_autograd(differentiate, setup_context=keep)


_register(chunked.chunked_backward, 5)
_register(custom_op.diff_attention_backward, 8)
_register(custom_op.hopper_backward, 8)
