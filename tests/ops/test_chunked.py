"""The chunked path beyond what every backend is tested for: chunk borders, groups, memory."""

import threading

import pytest
import torch

from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OP_CASES, OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends import chunk_layout, chunked

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
LONG = [
    OpCase(name="borders", num_queries=129, batch=1, num_heads=2, num_kv_heads=2),
    OpCase(name="long-keys", num_queries=130, num_keys=300, batch=1, num_heads=2, num_kv_heads=1,
           lam_axes="h"),
    OpCase(name="window", num_queries=257, batch=1, num_heads=1, num_kv_heads=1, window=70,
           lam_axes="bth"),
    OpCase(name="documents", num_queries=300, batch=1, num_heads=2, num_kv_heads=2,
           documents=(1, 63, 64, 65, 0, 107), shared_keys=True, value_dim=8, lam_axes="bth"),
    OpCase(name="lengths", num_queries=140, num_keys=280, batch=3, num_heads=2, num_kv_heads=2,
           kv_lengths=(280, 139, 0), padding=((0, 0), (3, 0), (0, 1))),
    OpCase(name="more-queries", num_queries=290, num_keys=70, batch=1, num_heads=2, num_kv_heads=2),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_kept_memory():
    """Memory kept from an earlier call would hide a read of what nobody wrote."""
    chunk_layout.release_memory()


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("case", LONG, ids=str)
def test_several_chunks_equal_the_reference(case, dtype):
    assert_close_to_reference(
        diff_attention, make_diff_attention_inputs(case, dtype=dtype), backend="chunked"
    )


@pytest.mark.parametrize("group_bytes", [1, 30_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp64"])
def test_any_grouping_gives_the_reference(group_bytes, dtype, monkeypatch):
    """One head at a time, and groups that do not divide the batch."""
    monkeypatch.setattr(chunk_layout, "GROUP_BYTES", group_bytes)
    case = OpCase(name="", num_queries=33, batch=5, num_kv_heads=2, lam_axes="bth",
                  padding=((3, 0), (0, 2), (33, 0), (0, 0), (1, 1)))  # fmt: skip
    assert_close_to_reference(
        diff_attention, make_diff_attention_inputs(case, dtype=dtype), backend="chunked"
    )


def test_memory_kept_in_inference_mode_serves_training():
    inputs = make_diff_attention_inputs(OP_CASES[2])
    with torch.inference_mode():
        first = diff_attention(*inputs.tensors().values(), backend="chunked")
    out = diff_attention(*inputs.tensors().values(), backend="chunked")
    out.sum().backward()
    assert torch.equal(out, first)


def test_threads_do_not_share_memory():
    inputs = [make_diff_attention_inputs(OP_CASES[3], seed=seed) for seed in range(4)]
    alone = [diff_attention(*x.tensors().values(), backend="chunked") for x in inputs]
    together = [None] * 4

    def run(index):
        for _ in range(20):
            together[index] = diff_attention(*inputs[index].tensors().values(), backend="chunked")

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_nothing_but_the_inputs_is_saved():
    saved = []

    def pack(x):
        saved.append(x)
        return x

    inputs = make_diff_attention_inputs(OP_CASES[3])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        diff_attention(*inputs.tensors().values(), backend="chunked")
    given = {x.data_ptr() for x in inputs.tensors().values()}
    assert {x.data_ptr() for x in saved} == given


def test_registered_operators_follow_the_rules():
    inputs = make_diff_attention_inputs(
        OpCase(name="", num_queries=6, num_keys=9, kv_lengths=(9, 4), lam_axes="h")
    )
    options = (0.3, True, 4, None, inputs.options["kv_lengths"], None)
    tensors = tuple(inputs.tensors().values())
    torch.library.opcheck(chunked._chunked, (*tensors, *options))
    plain = tuple(x.detach() for x in tensors)
    grad = torch.ones(*inputs.q.shape[:3], inputs.v.shape[-1])
    torch.library.opcheck(chunked.chunked_backward, (grad, *plain, *options, True))
    q, k, v, _ = plain
    transposed = torch.rand(*reversed(q.shape[:3])).permute(2, 1, 0)
    torch.library.opcheck(chunked.chunked_backward, (grad, q, k, v, transposed, *options, True))
