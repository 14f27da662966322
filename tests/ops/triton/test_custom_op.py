"""The kernels as PyTorch operators: schema, what they save, and what they refuse.

Compilation, export and checkpointing: ``tests/gpu/test_torch_features_on_gpu.py``.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs.masking import AttentionMask
from diffattn.ops.softmax_attention import softmax_attention

pytest.importorskip("triton")

PACKED = OpCase(name="", num_queries=6, batch=1, num_heads=1, num_kv_heads=1, head_dim=32,
                value_dim=32, shared_keys=True, documents=(2, 4), window=3)  # fmt: skip


def arguments(case, device, op="diff_attention"):
    """Tensors and all options by name, as the two functions take them."""
    inputs = make_diff_attention_inputs(case, device=device)
    tensors = list(inputs.tensors().values())
    if op == "softmax_attention":
        tensors = [tensors[0].detach()[:, :, :, 0].requires_grad_(), *tensors[1:3]]
    return tensors, {"scale": 0.2} | inputs.options


@pytest.mark.parametrize("op", ["diff", "softmax"])
def test_operators_pass_opcheck(op, kernel_device):
    """The forward without λ and for inference; with λ: tests/gpu. The backward, whose own gradient
    is a refusal, of inputs that ask for none."""
    tensors, options = arguments(PACKED, kernel_device)
    if op == "softmax":
        tensors = [tensors[0].detach()[:, :, :, :1].requires_grad_(), *tensors[1:3], None]
    call = (*tensors, 0.2, *AttentionMask(window=3, cu_seqlens=options["cu_seqlens"]).flat())
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in call]
    operators = torch.ops.diffattn
    outputs = operators.triton_diff_attention(*plain)
    inference = operators.triton_diff_attention_inference
    assert torch.equal(inference(*plain), outputs[0])
    if op == "softmax":
        torch.library.opcheck(operators.triton_diff_attention.default, call)
        torch.library.opcheck(inference.default, plain)
    else:
        saved = (torch.ones_like(outputs[0]), *plain[:4], *outputs, *plain[4:])
        torch.library.opcheck(operators.triton_diff_attention_backward.default, saved)


def operators_called(function):
    """Names of the package's operators that a call runs."""
    names = set()

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            names.add(op.name())
            return op(*args, **(kwargs or {}))

    with Names():
        function()
    return {name for name in names if name.startswith("diffattn::")}


@pytest.mark.parametrize("op", ["diff_attention", "softmax_attention"])
def test_what_serves_gradients_is_written_only_for_them(op, kernel_device):
    tensors, options = arguments(PACKED, kernel_device, op)
    scale = options.pop("scale")

    def run(tensors):
        return getattr(custom_op, op)(*tensors, scale=scale, mask=AttentionMask(**options))

    detached = [x.detach() for x in tensors]
    assert operators_called(lambda: run(tensors)) == {"diffattn::triton_diff_attention"}
    assert operators_called(lambda: run(detached)) == {"diffattn::triton_diff_attention_inference"}
    with torch.no_grad():
        assert operators_called(lambda: run(tensors)) == {
            "diffattn::triton_diff_attention_inference"
        }
        assert torch.equal(run(tensors), run(detached))


@pytest.mark.parametrize("op", ["diff_attention", "softmax_attention"])
def test_second_derivatives_are_those_of_the_definition(op, kernel_device):
    tensors, options = arguments(PACKED, kernel_device, op)
    public = diff_attention if op == "diff_attention" else softmax_attention
    seconds = []
    for backend in ("triton", "reference"):
        out = public(*tensors, backend=backend, **options)
        (first,) = torch.autograd.grad(out.square().sum(), tensors[0], create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), tensors))
    for actual, expected in zip(*seconds, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
