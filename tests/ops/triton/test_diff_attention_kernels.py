"""The differential kernels in float32 against the float64 reference, at every option and edge."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.ops.inputs import backends
from ops.backend_cases import fitted
from ops.test_diff_attention import (
    assert_zero_without_keys,
    inputs_of_steep_logits,
    inputs_with_lambda,
)
from tools.fuzz_calls import LAYOUTS
from tools.measures.candidates import launched_with

from .kernel_calls import differential as op

pytest.importorskip("triton")
check = partial(assert_close_to_reference, op, backend="triton")
"""Output and every gradient stay within twice the error that rounding alone causes."""


TRITON = backends.row("diff_attention", "triton")
CASES = [fitted(case, TRITON) for case in OP_CASES if case.num_queries <= 17]
"""The short ones; ``ops/test_diff_attention.py`` has all in the scheduled tier."""
V1 = OpCase(name="v1", num_queries=18, num_keys=35, batch=1, num_heads=2, num_kv_heads=1,
            head_dim=32, value_dim=64, lam_axes="bth")  # fmt: skip
V2 = replace(V1, name="v2", shared_keys=True, value_dim=32)


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_option(case, kernel_device):
    check(make_diff_attention_inputs(case, device=kernel_device))


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "shared_keys"),
    [(32, 32, False), (64, 128, False), (96, 192, False), (96, 96, True), (128, 256, False)],
)
def test_every_width(head_dim, value_dim, shared_keys, kernel_device):
    case = replace(V1, num_queries=3, num_keys=5, head_dim=head_dim, value_dim=value_dim,
                   shared_keys=shared_keys)  # fmt: skip
    check(make_diff_attention_inputs(case, device=kernel_device))


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize("sizes", [(1, 1), (15, 31), (16, 32), (17, 33), (33, 17), (2, 64)])
@pytest.mark.parametrize("causal", [True, False])
def test_edges_of_tiles(sizes, causal, kernel_device):
    num_queries, num_keys = sizes
    case = replace(V1, num_queries=num_queries, num_keys=num_keys, causal=causal)
    check(make_diff_attention_inputs(case, device=kernel_device))


@pytest.mark.parametrize(("value", "axes"), [(-0.7, "b"), (0.0, ""), (1.8, "h")])
def test_any_lambda(value, axes, kernel_device):
    case = replace(V1, lam_axes=axes, num_queries=5, batch=2)
    check(inputs_with_lambda(value, case, device=kernel_device))


@pytest.mark.parametrize("base", [V1, V2], ids=str)
def test_logits_of_ten_thousand(base, kernel_device):
    check(inputs_of_steep_logits(base, device=kernel_device))


@pytest.mark.parametrize("base", [V1, V2], ids=str)
def test_dk_and_dv_as_two_launches(base, monkeypatch, kernel_device):
    """As on chips whose registers do not hold both."""
    from diffattn.ops.triton import configs

    monkeypatch.setattr(configs, "BACKWARD_FORMS", (("dk", "dv", "dq"),))
    check(make_diff_attention_inputs(base, device=kernel_device))


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "base",
    [V1, replace(V2, causal=False), replace(V1, window=5), replace(V2, padding=((3, 0),))],
    ids=str,
)
def test_one_map_after_the_other(base, dtype, kernel_device):
    """As on chips whose registers do not hold the accumulators of both."""
    from diffattn.ops.triton import configs

    inputs = make_diff_attention_inputs(base, dtype=dtype, device=kernel_device)
    value_dim = inputs.v.shape[-1]
    tile = configs.launch_config("fwd", inputs.q, value_dim, shared_keys=base.shared_keys)
    with launched_with({"fwd": None, "fwd_by_map": tile}):
        check(inputs)


def heads_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim > 3 else x


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize(
    "layout", [LAYOUTS["transposed"], heads_first, LAYOUTS["surrounded"], LAYOUTS["expanded"]]
)
@pytest.mark.parametrize("base", [V1, V2], ids=str)
def test_any_strides(layout, base, kernel_device):
    dense = make_diff_attention_inputs(replace(base, batch=2, num_keys=20), device=kernel_device)
    strided = dense.map_tensors(layout)
    assert not strided.q.is_contiguous()
    check(strided)


MASKED = {
    "T>S": replace(V1, num_queries=35, num_keys=5),
    "padding": replace(V1, batch=2, padding=((35, 0), (2, 3))),
    "padding-v2": replace(V2, batch=2, padding=((35, 0), (2, 3)), causal=False),
    "lengths": replace(V1, batch=2, kv_lengths=(0, 4)),
    "lengths-noncausal": replace(V1, batch=2, kv_lengths=(0, 4), causal=False),
    "window": replace(V1, window=2, padding=((0, 4),)),
    "packed": replace(V1, num_queries=35, documents=(4, 31), padding=((4, 0),)),
}


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize("name", MASKED)
def test_query_without_keys_gives_zero(name, kernel_device):
    inputs = make_diff_attention_inputs(MASKED[name], device=kernel_device)
    assert_zero_without_keys(op, inputs, "triton")
    check(inputs)


@pytest.mark.parametrize("causal", [True, False])
def test_lengths_that_nobody_looked_at_read_no_other_memory(causal, kernel_device):
    """As on a device: what lies behind the keys of a slice is never touched."""
    case = replace(V1, batch=2, num_queries=5, num_keys=40, causal=causal)
    inputs = make_diff_attention_inputs(case, device=kernel_device)
    q, k, v, lam = inputs.tensors().values()
    behind = [torch.cat([x, torch.full_like(x, torch.nan)], 1)[:, :40] for x in (k, v)]

    def run(keys, values, *lengths):
        lengths = torch.tensor(lengths, dtype=torch.int32, device=kernel_device)
        return op(q, keys, values, lam, backend="triton", kv_lengths=lengths, **inputs.options)

    assert torch.equal(run(*behind, 79, -1), run(k, v, 40, 0))


def test_a_tail_that_no_document_lists_is_a_document(kernel_device):
    """As on a device, where nobody looks at borders: packers may leave padding after the last."""
    case = replace(V1, num_queries=24, num_keys=None, documents=(5, 12))
    inputs = make_diff_attention_inputs(case, device=kernel_device)
    assert inputs.options["cu_seqlens"].tolist() == [0, 5, 17]
    check(inputs)
