"""Time of the host for one call of the operator, from the call in Python to the last launch."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from diffattn.errors import BackendError
from diffattn.files.io import write_text
from diffattn.lab.benchmark.session import describe_run
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops import layer_parts
from diffattn.ops.attention import diff_attention
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs import backends, kernel_support, validation
from diffattn.ops.inputs.backends import Inputs, describe
from diffattn.ops.inputs.masking import AttentionMask

SHAPES: dict[str, dict[str, Any]] = {
    "V1": {"head_dim": 64, "value_dim": 128},
    "V2": {"head_dim": 64, "value_dim": 64, "shared_keys": True},
}
_CALLS, _ROUNDS = 100, 15
_SCOPE = {
    "cpu": "Processor time without a device: kernels are compiled for an H100 and not started, so "
    "that the time in Triton's C launcher and the driver is missing.",
    "cuda": "Time until the last launch is queued, the device idle before every call.",
}
_CHIP = {"max_shared_mem": 232_448, "multiprocessor_count": 132}


class _NoDevice:
    """A Triton driver that pretends to be an H100: kernels are compiled but not started."""

    launcher_cls = staticmethod(lambda source, metadata: lambda *arguments: None)

    def __init__(self) -> None:
        self.utils = self

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return _CHIP

    def load_binary(self, *arguments: Any) -> tuple[Any, ...]:
        return self, None, 0, 0, 1_024


@contextmanager
def no_device() -> Iterator[None]:
    """Compile the kernels for an H100, and treat CPU tensors as if they were on it."""
    if reason := kernel_support.why_refused(kernel_support.installed_version()):
        raise BackendError(f"bench host: {reason}.")
    import triton

    from diffattn.ops.triton import configs, launch

    if triton.knobs.runtime.interpret:
        raise BackendError("bench host: needs TRITON_INTERPRET unset, got 1.")

    def as_on_a_gpu(*tensors: Any, **options: Any) -> Inputs:
        facts = describe(*tensors, **options)
        return replace(facts, device="cuda", capability=(9, 0), elsewhere=True)

    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(_NoDevice())
    number = _CHIP["multiprocessor_count"]
    try:
        with (
            patch.object(backends, "describe", as_on_a_gpu),
            patch.object(layer_parts, "kernels_run_on", lambda device: True),
            patch.object(validation, "_values_of", lambda *arguments: None),
            patch.object(configs, "device_row", lambda device: 90),
            patch.object(launch, "num_multiprocessors", lambda device: number),
        ):
            yield
    finally:
        driver.set_active(before)


def measure_host(device: str, out: Path) -> dict[str, Any]:
    """Time V1 and V2, forward alone and with backward, and write the record, which is returned."""
    torch.set_num_threads(1)
    with no_device() if device == "cpu" else nullcontext():
        calls = [
            measure_call(name, with_backward, device)
            for name, with_backward in product(SHAPES, (False, True))
        ]
    record = {"scope": _SCOPE[device], "run": asdict(describe_run(device, {})), "calls": calls}
    write_text(out, json.dumps(record, indent=1) + "\n")
    return record


def measure_call(name: str, with_backward: bool, device: str) -> dict[str, Any]:
    """Time one call of type ``name`` in ``SHAPES``, and its three stages, in milliseconds."""
    from diffattn.ops.triton.launch import run_kernel

    public, inner = host_call(name, with_backward, device)
    launches = record_launches(public)

    def launch() -> None:
        for arguments, constants in launches:
            run_kernel(*arguments, **constants)

    total, checked, launched = _interleaved((public, inner, launch), device)
    return {
        "type": name,
        "passes": "forward + backward" if with_backward else "forward",
        "milliseconds": total,
        "launches": len(launches),
        "stages": {
            "checks and choice": total - checked,
            "autograd and tensors": checked - launched,
            "all launches": launched,
        },
    }


def host_call(name: str, with_backward: bool, device: str) -> tuple[Callable[[], Any], ...]:
    """A call with 128 tokens and four heads: of the public function, and of the backend alone."""
    case = OpCase(name="", num_queries=128, batch=1, **SHAPES[name])
    inputs = make_diff_attention_inputs(case, dtype=torch.bfloat16, device=device)
    q, k, v, lam = (x.detach().requires_grad_(with_backward) for x in inputs.tensors().values())
    grad = torch.ones(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=device)
    options: dict[str, Any] = {"scale": q.shape[-1] ** -0.5, "mask": AttentionMask()}

    def differentiated(call: Callable[[], Tensor]) -> Callable[[], Any]:
        if not with_backward:
            return call
        return lambda: torch.autograd.grad(call(), (q, k, v, lam), grad)

    return (
        differentiated(lambda: diff_attention(q, k, v, lam)),
        differentiated(lambda: custom_op.diff_attention(q, k, v, lam, **options)),
    )


def record_launches(call: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """Run a call, and return the arguments of each of its kernel launches."""
    from diffattn.ops.triton import backward, forward
    from diffattn.ops.triton import launch as launcher

    launches = []

    def note(*arguments: Any, **constants: Any) -> None:
        launches.append((arguments, constants))
        launcher.run_kernel(*arguments, **constants)

    with patch.object(forward, "run_kernel", note), patch.object(backward, "run_kernel", note):
        call()
    return launches


def _interleaved(calls: tuple[Callable[[], Any], ...], device: str) -> list[float]:
    """Median milliseconds of each call: processor time on a CPU, time to queue on a GPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS + 1):
        for call, kept in zip(calls, times, strict=True):
            spent = 0.0
            for _ in range(_CALLS):
                start = clock()
                call()
                spent += clock() - start
                if device == "cuda":
                    torch.cuda.synchronize()
            kept.append(1e3 * spent / _CALLS)
    return [statistics.median(kept[1:]) for kept in times]
