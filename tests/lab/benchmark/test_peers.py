"""Attention by others' kernels gives what ours gives; the kernels have stand-ins on a CPU."""

import sys
from contextlib import nullcontext
from types import ModuleType

import torch

from diffattn.lab.benchmark import peers
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.attention import diff_attention
from diffattn.ops.softmax_attention import softmax_attention


def flash_attn_func(q, k, v, *, softmax_scale, causal):
    return softmax_attention(q, k, v, scale=softmax_scale, causal=causal), None


def test_peers_compute_what_ours_compute(monkeypatch):
    package, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    cute.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    monkeypatch.setattr(peers, "sdpa_kernel", lambda kernel: nullcontext())
    shape = {"num_queries": 9, "num_kv_heads": 2, "lam_axes": "bth"}
    for shared, peer in (
        (True, peers.one_call_of_flash_attention_4),
        (True, peers.two_calls_by_cudnn),
        (False, peers.two_calls_by_cudnn),
    ):
        case = OpCase(name="", shared_keys=shared, **shape)
        tensors = make_diff_attention_inputs(case, dtype=torch.float64).tensors().values()
        expected = diff_attention(*tensors, backend="reference")
        torch.testing.assert_close(peer(*tensors), expected, rtol=1e-10, atol=1e-10)
