"""The one-file layer equals the package's layer: output and every gradient, in float64."""

import copy

import pytest
import torch
from test_examples import EXAMPLES, example

from diffattn import DiffAttention, rotary_embedding
from diffattn.lab.testing.budget import compare
from diffattn.lab.testing.nudging import measured_errors

HIDDEN, HEADS, DIM, LENGTH = 12, 4, 6, 7


def test_fits_on_one_screen():
    assert len((EXAMPLES / "one_file_diff.py").read_text().splitlines()) <= 150


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("layer_idx", [0, 3])
def test_equals_the_package(kv_heads, layer_idx):
    """The budget is the package's rounding error in float32, scaled to float64."""
    package = DiffAttention(HIDDEN, HEADS, DIM, num_kv_heads=kv_heads, layer_idx=layer_idx)
    torch.nn.init.uniform_(package.head_norm.weight, 0.5, 2.0)
    one_file = example("one_file_diff").OneFileDiffAttention(
        HIDDEN, HEADS, DIM, kv_heads, layer_idx
    )
    names = {
        name.replace("lambda_bias.", "").replace("head_norm.", "head_norm_"): name
        for name, _ in package.named_parameters()
    }
    state = package.state_dict()
    one_file.load_state_dict(
        {name: package.get_parameter(names[name]).detach() for name in one_file.state_dict()}
    )
    assert len(state) == len(names) == len(one_file.state_dict())
    x, weights = torch.randn(2, 2, LENGTH, HIDDEN).double().unbind(0)
    tables = rotary_embedding(torch.arange(LENGTH), DIM)

    def run_package(layer):
        dtype = layer.q_proj.weight.dtype
        inputs = x.to(dtype).requires_grad_()
        out = layer(inputs, tuple(table.to(dtype) for table in tables))
        return evaluate(out, inputs, {name: layer.get_parameter(names[name]) for name in names})

    def evaluate(out, inputs, parameters):
        wanted = {"x": inputs, **parameters}
        grads = torch.autograd.grad(out, list(wanted.values()), weights.to(out))
        return {"output": out.detach(), **dict(zip(wanted, grads, strict=True))}

    package, narrow = package.double(), copy.deepcopy(package)
    narrow = narrow.float()
    exact = run_package(package)
    inputs = x.clone().requires_grad_()
    one_file = one_file.double()
    actual = evaluate(
        one_file(inputs), inputs, {name: one_file.get_parameter(name) for name in names}
    )
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    errors = measured_errors(run_package, narrow, exact)
    for name, want in exact.items():
        problem = compare(actual[name], want, ratio * errors[name]).problem
        assert problem is None, f"{name}: {problem}"
