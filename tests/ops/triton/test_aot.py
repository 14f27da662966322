"""The compile gate: kernels keep the limits of chips that are not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diffattn.errors import BackendError
from tools import aot

pytest.importorskip("triton", reason="the kernels need triton")

ROOT = Path(__file__).parents[3]
PYTHONS = [sys.executable, *filter(None, os.environ.get("DIFFATTN_AOT_PYTHONS", "").split(":"))]
"""Interpreters of the full matrix: this one, and those that have other versions of Triton."""
CASES = {80: ["v1-d64-dkv"], 90: ["hopper-fwd-d128-dv256-causal"]}
"""What every push compiles; the scheduled tier compiles all."""


def fresh(arguments, cache, python=sys.executable):
    """What Python prints without Triton's interpreter, chosen when a kernel is defined."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache)}
    folders = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    done = subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_chosen_kernels_keep_the_limits(tmp_path):
    code = f"""
from tools import aot
for capability, names in {CASES}.items():
    cases = {{case.name: case for case in aot.registered_cases(capability)}}
    for name in names:
        report = aot.compile_case(cases[name], capability)
        aot.assert_within_limits(report)
        aot.assert_no_waste(report)
        print(report.instructions)
"""
    made = fresh(["-c", code], tmp_path).splitlines()
    assert made == ["mma", "wgmma tma setmaxnreg"]


@pytest.mark.scheduled
def test_a_growing_cache_is_one_compilation(tmp_path):
    """By Triton's own key of a launch, at lengths that it would tell apart."""
    code = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit
from diffattn.lab.benchmark.host import no_device
from diffattn.ops.triton import decode
from diffattn.ops.inputs.masking import AttentionMask

class Compiled:
    def __getitem__(self, grid):
        return lambda *arguments: None

keys = {}
def note(kernel, *args, grid, warmup, **options):
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    keys.setdefault(kernel.fn.__name__, set()).add(str(bind(*args, **options)[1:]))
    return Compiled()

jit.JITFunction.run = note
placed = no_device()
placed.__enter__()
decode.num_multiprocessors = lambda device: 132
for length in (1, 16, 17, 300, 4096):
    q, lam = torch.zeros(1, 1, 2, 2, 64), torch.zeros(1, 1, 1)
    k, v = torch.zeros(1, length, 2, 2, 64), torch.zeros(1, length, 2, 128)
    mask = AttentionMask(window=length, key_padding_mask=torch.ones(1, length, dtype=torch.bool))
    decode.decode(q, k, v, lam, scale=0.1, mask=mask)
    table = torch.zeros(1, length, dtype=torch.int32)
    pages = (x.expand(length, 16, *x.shape[2:]) for x in (k[:, :1], v[:, :1]))
    decode.decode(q, *pages, lam, scale=0.1, mask=AttentionMask(window=length), block_table=table)
print({name: len(compiled) for name, compiled in keys.items()})
"""
    assert fresh(["-c", code], tmp_path).strip() == (
        "{'_diff_attention_decode_kernel': 2, '_diff_attention_combine_kernel': 1}"
    )


@pytest.mark.scheduled
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("capability", aot.SHARED_BYTES)
def test_all_kernels_keep_the_limits(capability, python, tmp_path):
    fresh(["-m", "tools.aot", str(capability)], tmp_path, python)


@pytest.mark.parametrize(
    ("capability", "message"),
    [
        (90, "only in a process without TRITON_INTERPRET=1"),
        (75, r"capability must be in \{80, 86, 90, 100, 120\}, got 75"),
    ],
)
def test_interpreted_kernels_and_unknown_chips_are_refused(capability, message, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(BackendError, match=message):
        aot.compile_case(aot.registered_cases(90)[0], capability)
