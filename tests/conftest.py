"""One thread unless asked for more, no network, fixed seeds, and the devices of this machine."""

import gc
import os
import random
import zlib

import numpy as np
import pytest
import torch

# Also for the processes that tests start. cuBLAS asks for its setting in deterministic mode.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "DIFFATTN_DEBUG": "1",  # an unexpected error fails a test, and is not made a line for users
}
# Before a Triton kernel is defined: on a machine without a GPU kernels run in the interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

from diffattn.ops.inputs import backends, kernel_support  # noqa: E402  they read TRITON_INTERPRET

DEVICES = [pytest.param("cpu", id="cpu")]
if torch.cuda.is_available():
    DEVICES.append(pytest.param("cuda", id="cuda", marks=pytest.mark.gpu))
# CPU tensors in Triton's interpreter, CUDA tensors where kernels are compiled: never both.
KERNEL_DEVICES = [param for param in DEVICES if param.id in kernel_support.devices()][:1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave the scheduled tier out unless marks are chosen on the command line.

    Of a product of many options one case in so many runs at every push, always the same: chosen by
    a hash of its name, as every nth would hold one value of an option. The others are scheduled.
    """
    items[:] = [item for item in items if not _compiled_kernel_on_cpu(item)]
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled and zlib.crc32(item.name.encode()) % sampled.kwargs["one_of"]:
            item.add_marker(pytest.mark.scheduled)
    if config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="scheduled tier: run with -m scheduled")
    for item in items:
        if item.get_closest_marker("scheduled"):
            item.add_marker(skip)


def _compiled_kernel_on_cpu(item):
    """A case of a kernel on CPU tensors where there is no interpreter, which is no case at all."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if params.get("device") != "cpu" or "cpu" in kernel_support.devices():
        return False
    kernels = {
        row.name
        for row in backends.table("diff_attention")
        if row.devices is not None and "cpu" not in row.devices
    }
    return params.get("backend", params.get("name")) in kernels


def pytest_collection_finish():
    """Modules and tests are no garbage: looking through them at every collection takes time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=DEVICES)
def device(request):
    return torch.device(request.param)


@pytest.fixture(params=KERNEL_DEVICES)
def kernel_device(request):
    """Where kernels run on this machine: the device of every test that calls one directly."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _seeds():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  libraries draw from the global generator
    torch.manual_seed(0)
