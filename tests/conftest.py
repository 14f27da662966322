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

DEVICES = [pytest.param("cpu", id="cpu")]
if torch.cuda.is_available():
    DEVICES.append(pytest.param("cuda", id="cuda", marks=pytest.mark.gpu))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave the scheduled tier out unless marks are chosen on the command line.

    Of a product of many options one case in so many runs at every push, always the same: chosen by
    a hash of its name, as every nth would hold one value of an option. The others are scheduled.
    """
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


def pytest_collection_finish():
    """Modules and tests are no garbage: looking through them at every collection takes time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=DEVICES)
def device(request):
    """Every device of this machine in turn."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _seeds():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  libraries draw from the global generator
    torch.manual_seed(0)
