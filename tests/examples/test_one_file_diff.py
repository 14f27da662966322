"""The one-file layer equals the package's layer: output and every gradient, in float64."""

import pytest
import torch
from test_examples import EXAMPLES, example

from diffattn import DiffAttention, rotary_embedding

HIDDEN, HEADS, DIM, LENGTH = 12, 4, 6, 7


def test_fits_on_one_screen():
    assert len((EXAMPLES / "one_file_diff.py").read_text().splitlines()) <= 150


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("layer_idx", [0, 3])
def test_equals_the_package(kv_heads, layer_idx):
    package = DiffAttention(HIDDEN, HEADS, DIM, num_kv_heads=kv_heads, layer_idx=layer_idx)
    torch.nn.init.uniform_(package.head_norm.weight, 0.5, 2.0)
    package = package.double()
    one_file = example("one_file_diff").OneFileDiffAttention(
        HIDDEN, HEADS, DIM, kv_heads, layer_idx
    )
    names = {
        name.replace("lambda_bias.", "").replace("head_norm.", "head_norm_"): name
        for name, _ in package.named_parameters()
    }
    one_file.load_state_dict({name: package.get_parameter(x) for name, x in names.items()})
    x, weights = torch.randn(2, 2, LENGTH, HIDDEN, dtype=torch.float64).unbind(0)
    tables = tuple(table.double() for table in rotary_embedding(torch.arange(LENGTH), DIM))

    def results(run, parameters):
        inputs = x.clone().requires_grad_()
        out = run(inputs)
        return out.detach(), *torch.autograd.grad(out, [inputs, *parameters], weights)

    expected = results(
        lambda inputs: package(inputs, tables), map(package.get_parameter, names.values())
    )
    one_file = one_file.double()
    actual = results(one_file, map(one_file.get_parameter, names))
    for result, wanted in zip(actual, expected, strict=True):  # sums of up to 50 products
        torch.testing.assert_close(result, wanted, rtol=0, atol=1e-12 * float(wanted.abs().max()))
