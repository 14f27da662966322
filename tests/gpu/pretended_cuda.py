"""A plugin of pytest: as far as collection can tell, there is one GPU of compute capability 9.0."""

from types import SimpleNamespace

import torch

for name, value in {
    "is_available": True,
    "device_count": 1,
    "get_device_capability": (9, 0),
    "get_device_properties": SimpleNamespace(major=9, minor=0),
}.items():
    setattr(torch.cuda, name, lambda device=None, value=value: value)


def pytest_collection_finish(session):
    """One line for every test: whether it is of the GPU tier, and its name."""
    for item in session.items:
        print("GPU" if item.get_closest_marker("gpu") else "ANY", item.nodeid)
