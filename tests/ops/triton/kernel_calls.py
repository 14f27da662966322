"""The kernels and the reference in the shape of ``diff_attention``, without its checks."""

import torch

from diffattn.lab.testing.inputs import make_diff_attention_inputs
from diffattn.ops.backends import custom_op, reference
from diffattn.ops.inputs.masking import AttentionMask


def differential(q, k, v, lam, *, backend, scale=None, **options):
    forward = reference.forward if backend == "reference" else custom_op.diff_attention
    return forward(q, k, v, lam, scale=scale or q.shape[-1] ** -0.5, mask=AttentionMask(**options))


def softmax(q, k, v, lam, *, backend, scale=None, **options):
    """The first map alone, which the reference computes at λ = 0; see :func:`inputs_of`."""
    scale, mask = scale or q.shape[-1] ** -0.5, AttentionMask(**options)
    if backend == "reference":
        return reference.forward(q, k, v, lam, scale=scale, mask=mask)
    return custom_op.softmax_attention(q[:, :, :, 0], k, v, scale=scale, mask=mask)


@torch.no_grad()
def decode(q, k, v, lam, *, backend, scale=None, **options):
    forward = reference.forward if backend == "reference" else custom_op.decode
    return forward(q, k, v, lam, scale=scale or q.shape[-1] ** -0.5, mask=AttentionMask(**options))


@torch.no_grad()
def softmax_decode(q, k, v, lam, *, backend, scale=None, **options):
    """Likewise by the decode kernel."""
    if backend == "reference":
        return softmax(q, k, v, lam, backend=backend, scale=scale, **options)
    mask = AttentionMask(**options).flat()[:-1]
    return custom_op.triton_decode(q[:, :, :, 0], k, v, None, scale or q.shape[-1] ** -0.5, *mask)


def inputs_of(op, case, **options):
    """Arguments of ``op``, which is one of the functions above; softmax attention has no λ."""
    inputs = make_diff_attention_inputs(case, **options)
    if op in (softmax, softmax_decode):
        inputs.lam.requires_grad_(False).zero_()
    return inputs
