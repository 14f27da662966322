"""A plugin of pytest: as far as collection can tell, there is one GPU of compute capability 9.0."""

from types import SimpleNamespace

import torch

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(major=9, minor=0)


def pytest_collection_finish(session):
    """One line for every test: whether it is of the GPU tier, and its name."""
    for item in session.items:
        print("GPU" if item.get_closest_marker("gpu") else "ANY", item.nodeid)
