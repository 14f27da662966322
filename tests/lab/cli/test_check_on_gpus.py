"""What ``diffattn check`` says of GPUs: the choice of ``auto``, and bfloat16 as in training."""

import json
from dataclasses import replace

import pytest
import torch

from diffattn.lab.benchmark import backends_here
from diffattn.lab.cli import check
from diffattn.ops import attention as api
from diffattn.ops.inputs import backends, kernel_support


@pytest.mark.parametrize(
    ("capability", "tested", "variable", "message"),
    [
        ((9, 0), {}, None, "auto chooses the Triton kernels: they were not tested on "),
        ((9, 0), {(9, 0): ("3.7",)}, None, "auto chooses the Triton kernels: all tests passed on "),
        ((9, 0), {(9, 0): ("3.6",)}, None, " under triton 3.7.0, only under 3.6. DIFFATTN_UNVER"),
        ((9, 0), {}, "0", "auto does not choose the Triton kernels: they were not tested on "),
        ((7, 5), {}, None, "auto cannot choose the Triton kernels: backend 'triton' needs compute"),
    ],
)
def test_check_says_for_each_gpu_what_auto_does(
    capability, tested, variable, message, cli, monkeypatch
):
    """On a machine with one GPU, on which nothing is run."""
    pytest.importorskip("triton", reason="without it nothing is chosen")
    monkeypatch.delenv(kernel_support.VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(kernel_support.VARIABLE, variable)
    facts = {"_INTERPRETED": False, "_CAPABILITIES": {0: capability}}
    for name, value in (facts | {"TESTED": tested, "_INSTALLED": "3.7.0"}).items():
        monkeypatch.setattr(kernel_support, name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Fake")
    monkeypatch.setattr(backends_here, "check_backends", list)
    (gpu,) = json.loads(cli("check", "--json").out)["gpus"]
    assert message in gpu["auto"]
    shown = " ".join(cli("check").out.split())
    dotted = ".".join(map(str, capability))
    assert f"cuda:0, NVIDIA Fake, compute capability {dotted}: {gpu['auto']}" in shown


def test_the_training_shape_is_compared_by_the_derived_budget(monkeypatch):
    """On the CPU, shorter and narrower, but of too many pairs to be compared whole."""
    small = {"num_queries": 513, "head_dim": 16, "value_dim": 32}
    shape = replace(backends_here.TRAINING_SHAPE, **small)
    monkeypatch.setattr(backends_here, "TRAINING_SHAPE", shape)
    right = backends_here.at_training_shape("chunked", "cpu", True)
    assert right["passed"]
    assert right["compared"].endswith(" rows of 8 heads")
    assert backends_here.at_training_shape("triton_decode", "cpu", False) is None  # of 513 queries
    real = api.diff_attention

    def off(q, k, v, lam, **options):
        k.register_hook(lambda grad: grad * 1.5)
        return real(q, k, v, lam, **options)

    monkeypatch.setattr(api, "diff_attention", off)
    wrong = backends_here.at_training_shape("chunked", "cpu", True)
    assert not wrong["passed"]
    assert wrong["worst"] == "gradient of k"
    row = {"backend": "chunked", "device": "cuda", "runs": True, "error": 1e-6, "gradient": True}
    row |= {"training": wrong, "why_not": "", "wrong": True}
    assert check._shown(row)["verdict"] == (
        f"wrong in bfloat16: gradient of k of {right['compared']}"
    )


def test_check_measures_every_backend_and_fails_if_one_is_wrong_or_fails(cli, monkeypatch):
    small = {"num_queries": 4, "num_keys": 8, "batch": 1, "head_dim": 32, "value_dim": 64}
    shape = replace(backends_here.SMALL_SHAPE, **small)  # for the interpreter
    monkeypatch.setattr(backends_here, "SMALL_SHAPE", shape)
    real = api.diff_attention

    def broken(*tensors, backend, **options):
        if backend == "chunked":
            raise RuntimeError("ptxas died\nof it")
        out = real(*tensors, backend=backend, **options)
        return out * (1.001 if backend == "composed" else 1)

    monkeypatch.setattr(api, "diff_attention", broken)
    called = cli("check", "--json")
    assert (called.code, called.err) == (1, "")
    facts = json.loads(called.out)
    assert set(facts) == {"versions", "hardware", "gpus", "backends"}
    rows = {row["backend"]: row for row in facts["backends"] if row["device"] == "cpu"}
    assert tuple(rows) == backends.names("diff_attention")
    verdicts = {name: check._shown(row)["verdict"] for name, row in rows.items() if row["wrong"]}
    assert verdicts == {"chunked": "failed: RuntimeError: ptxas died of it", "composed": "wrong"}
    assert rows.pop("hopper")["why_not"].startswith("needs")
    assert all(row["error"] < 1e-5 for name, row in rows.items() if name not in verdicts)
    assert {row["training"] for row in rows.values()} == {None}  # for GPUs


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_backend_on_a_gpu_is_right_at_the_training_shape(cli):
    called = cli("check", "--json")
    assert called.code == 0
    rows = [row for row in json.loads(called.out)["backends"] if row["device"] == "cuda"]
    compared = [row["backend"] for row in rows if row["training"] is not None]
    assert {"reference", "composed", "decode"} <= set(compared)
