"""Check which backends run on this machine, and whether their results are right."""

from functools import partial
from typing import Any

import torch

from diffattn.errors import BackendError
from diffattn.lab.benchmark.checking import Exact, error_line
from diffattn.lab.testing.assertions import exact_weights, output_and_gradients
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops import attention
from diffattn.ops.inputs import backends, kernel_support

_WIDTHS: dict[str, Any] = {"num_heads": 8, "num_kv_heads": 8, "head_dim": 128, "value_dim": 256}
TRAINING_SHAPE = OpCase("training", 2048, batch=1, lam_axes="bth", **_WIDTHS)
"""The shape checked in bfloat16 on a GPU: one sequence in a layer of 2,048 channels."""
SMALL_SHAPE = OpCase("small", 16, 64, num_kv_heads=2, head_dim=64, value_dim=128, lam_axes="h")


def list_gpus() -> list[dict[str, str]]:
    """Each GPU with its name, compute capability, and whether ``auto`` chooses kernels on it."""
    return [
        {
            "device": str(device),
            "name": torch.cuda.get_device_name(device),
            "capability": kernel_support.dotted(capability),
            "auto": kernel_support.auto_says(capability),
        }
        for device in (torch.device("cuda", i) for i in range(torch.cuda.device_count()))
        if (capability := kernel_support.compute_capability(device)) is not None
    ]


def check_backends() -> list[dict[str, Any]]:
    """Try every backend on every device of this machine, with its gradient if it has one."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    exact = _compute(torch.float64, "cpu", "reference", True)
    return [
        _check_backend(row.name, device, device not in row.no_gradient_on, exact)
        for row in backends.table("diff_attention")
        for device in devices
    ]


def _check_backend(
    name: str, device: str, differentiable: bool, exact: list[torch.Tensor]
) -> dict[str, Any]:
    error, training, why_not, failed = None, None, "", False
    try:
        measured = _compute(torch.float32, device, name, differentiable)
        error = max(
            float((a - b).abs().max() / b.abs().max())
            for a, b in zip(measured, exact[: len(measured)], strict=True)
        )
    except BackendError as refusal:
        # Without the name of the backend and the list of other backends, which the table shows.
        why_not = str(refusal).split(f"{name!r} ", 1)[-1].split(". Usable here")[0]
    except Exception as failure:  # errors of compilers and drivers have any class
        why_not, failed = error_line(failure), True
    try:
        if device != "cpu" and not failed:
            training = at_training_shape(name, device, differentiable)
    except Exception as failure:
        why_not, failed = error_line(failure), True
    is_wrong = error is not None and not error < 1e-4
    return {
        "backend": name,
        "device": device,
        "runs": error is not None or training is not None,
        "error": error,
        "training": training,
        "gradient": differentiable,
        "why_not": "" if training is not None else why_not,
        "wrong": failed or is_wrong or (training is not None and not training["passed"]),
    }


def _compute(
    dtype: torch.dtype, device: str, backend: str, differentiable: bool
) -> list[torch.Tensor]:
    """Output of a small input, and its gradients if ``differentiable``, float64 on the CPU."""
    tensors = make_diff_attention_inputs(SMALL_SHAPE, dtype=dtype, device=device).tensors()
    with torch.set_grad_enabled(differentiable):
        out = attention.diff_attention(*tensors.values(), backend=backend)
    weights = exact_weights(out) if differentiable else None
    return [x.double().cpu() for x in output_and_gradients(out, tensors, weights).values()]


def at_training_shape(name: str, device: str, gradients: bool) -> dict[str, Any] | None:
    """Check at the training shape, see :meth:`Exact.check`; ``None`` if the backend refuses it."""
    inputs = make_diff_attention_inputs(TRAINING_SHAPE, dtype=torch.bfloat16, device=device)
    call = partial(attention.diff_attention, *inputs.tensors().values(), backend=name)
    try:
        return Exact(inputs).check(call, gradients)
    except BackendError:
        return None  # the check of the small input has the reason
