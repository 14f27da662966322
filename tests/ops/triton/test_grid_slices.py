"""Batches beyond what a CUDA grid takes on its third axis."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.backends import custom_op, reference
from diffattn.ops.inputs.masking import AttentionMask

from .kernel_calls import differential, inputs_of, softmax

pytest.importorskip("triton")

CASE = OpCase(name="", num_queries=3, num_keys=5, batch=5, num_heads=4, num_kv_heads=2,
              head_dim=32, value_dim=64)  # fmt: skip
CASES = {
    "lengths, padding, λ of all": replace(
        CASE, lam_axes="bth", kv_lengths=(5, 0, 3, 4, 2),
        padding=((1, 0), (0, 0), (0, 3), (0, 0), (2, 0)),
    ),
    "lengths, padding, shared keys": replace(
        CASE, kv_lengths=(5, 0, 3, 4, 2),
        padding=((1, 0), (0, 0), (0, 3), (0, 0), (2, 0)), shared_keys=True, value_dim=32,
    ),
}  # fmt: skip
LEAST = 4
"""Batch rows of a launch: the batch of 5 is cut into 2."""


def results(op, inputs):
    """Output and gradients of ``op`` on ``inputs``."""
    tensors = inputs.tensors().values()
    out = op(*tensors, backend="triton", scale=0.2, **inputs.options)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    leaves = [x for x in tensors if x.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, leaves, weights)]


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize(
    ("op", "name"),
    [(differential, "lengths, padding, λ of all"), (softmax, "lengths, padding, shared keys")],
)
def test_slices_give_what_the_whole_gives(op, name, launches, monkeypatch):
    inputs = inputs_of(op, CASES[name])
    assert custom_op.MAX_PROGRAMS == 65_535
    whole = results(op, inputs)
    assert len(launches) == 4
    assert max(made.grid[2] for made in launches) > LEAST
    launches.clear()
    monkeypatch.setattr(custom_op, "MAX_PROGRAMS", LEAST)
    sliced = results(op, inputs)
    assert max(made.grid[2] for made in launches) <= LEAST
    for got, want in zip(sliced[:4], whole[:4], strict=True):
        assert torch.equal(got, want)
        assert got.is_contiguous()
    if op is differential:  # λ's gradient is a sum over rows, in another order
        torch.testing.assert_close(sliced[4], whole[4], rtol=1e-5, atol=1e-6)


def test_decode_has_batch_and_heads_on_the_first_axis(launches):
    """Which takes 2³¹ − 1; the others are blocks of at most 16 queries, and parts of the keys."""
    case = replace(CASE, num_queries=1, num_keys=2, num_kv_heads=4)
    with torch.no_grad():
        custom_op.decode(**make_diff_attention_inputs(case).tensors(), scale=0.2)
    attend, combine = (made.grid for made in launches)
    assert attend == (5 * 4, 1, 1)
    assert combine[1:] in ((), (1, 1))


def test_the_hopper_kernel_is_launched_in_slices(monkeypatch):
    """The reference stands for a kernel that this machine does not know."""
    hopper = pytest.importorskip("diffattn.ops.hopper.forward")
    inputs = make_diff_attention_inputs(replace(CASE, lam_axes="h"))
    shapes = []

    def forward(q, k, v, lam, *, scale, causal, inference):
        assert inference
        shapes.append((q.shape[0], q.shape[2]))
        out = reference.forward(q, k, v, lam, scale=scale, mask=AttentionMask(causal))
        sums = q.new_zeros(q.shape[0], q.shape[2], 2, q.shape[1])
        return out, torch.zeros_like(out), sums

    monkeypatch.setattr(hopper, "forward", forward)
    monkeypatch.setattr(custom_op, "MAX_PROGRAMS", LEAST)
    tensors = [x.detach() for x in inputs.tensors().values()]
    sliced = custom_op.hopper_diff_attention(*tensors, scale=0.2)
    assert shapes == [(4, 4), (1, 4)]
    torch.testing.assert_close(sliced, reference.forward(*tensors, scale=0.2))
