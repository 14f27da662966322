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


def triton_diff_attention(*tensors, scale, **options):
    """The backend, its mask made of options as the public function makes it."""
    return custom_op.diff_attention(*tensors, scale=scale, mask=AttentionMask(**options))


def positional(case, op, device):
    """The arguments of the operator itself."""
    tensors, options = arguments(case, device)
    if op == "softmax":
        tensors = [tensors[0].detach()[:, :, :, :1].requires_grad_(), *tensors[1:3], None]
    names = ("window", "key_padding_mask", "kv_lengths", "cu_seqlens")
    return (*tensors, options["scale"], True, *(options.get(name) for name in names))


@pytest.mark.parametrize("op", ["diff", "softmax"])
def test_operators_pass_opcheck(op, kernel_device):
    """The one for inference too, which gives the output alone; other masks: tests/gpu."""
    inputs = positional(PACKED, op, kernel_device)
    operator = torch.ops.diffattn.triton_diff_attention.default
    torch.library.opcheck(operator, inputs)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    inference = torch.ops.diffattn.triton_diff_attention_inference.default
    torch.library.opcheck(inference, plain)
    assert torch.equal(inference(*plain), operator(*plain)[0])


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


@pytest.mark.parametrize("op", ["diff", "softmax"])
def test_backward_operators_pass_opcheck(op, kernel_device):
    """Their own gradient is a refusal, so the inputs ask for none."""
    inputs = [
        x.detach() if isinstance(x, torch.Tensor) else x
        for x in positional(PACKED, op, kernel_device)
    ]
    forward = torch.ops.diffattn.triton_diff_attention.default
    operator = torch.ops.diffattn.triton_diff_attention_backward.default
    outputs = forward(*inputs)
    saved = (*inputs[:4], *outputs)
    torch.library.opcheck(operator, (torch.ones_like(outputs[0]), *saved, *inputs[4:]))


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
