"""Inputs are deterministic and cover what the table promises."""

import pytest
import torch

from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_inputs_are_deterministic_in_every_dtype(dtype):
    case = OP_CASES[2]
    inputs, again = (make_diff_attention_inputs(case, dtype=dtype) for _ in range(2))
    torch.manual_seed(17)  # the global generator has no say
    wide = make_diff_attention_inputs(case, dtype=torch.float64)
    for name, x in inputs.tensors().items():
        assert x.is_leaf
        assert x.requires_grad
        assert torch.equal(x, again.tensors()[name])
        assert torch.equal(x, wide.tensors()[name].to(x.dtype))
    assert inputs.lam.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    other = make_diff_attention_inputs(case, dtype=dtype, seed=1)
    assert not torch.equal(inputs.q, other.q)


def test_options_are_the_operators():
    case = OpCase(
        name="", num_queries=5, num_keys=6, causal=False, window=2, scale=0.5,
        padding=((1, 0), (0, 2)), kv_lengths=(6, 3),
    )  # fmt: skip
    options = make_diff_attention_inputs(case).options
    assert options["key_padding_mask"].int().tolist() == [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    assert options["kv_lengths"].tolist() == [6, 3]
    assert options["kv_lengths"].dtype == torch.int32
    assert {name: options[name] for name in ("causal", "window", "scale")} == {
        "causal": False, "window": 2, "scale": 0.5,
    }  # fmt: skip
    packed = OpCase(name="", num_queries=5, batch=1, documents=(2, 0, 3))
    assert make_diff_attention_inputs(packed).options["cu_seqlens"].tolist() == [0, 2, 2, 5]
    assert make_diff_attention_inputs(OpCase(name="", num_queries=5)).options == {}
