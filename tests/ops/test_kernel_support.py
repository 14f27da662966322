"""What the capability table says of the kernels on a given machine."""

import importlib.util
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from diffattn.ops import kernel_support

pytest.importorskip("triton", reason="its version is what is asked for")


@pytest.fixture
def fresh_look():
    """Nothing remembered of the installed triton, before and after."""
    kernel_support.installed_version.cache_clear()
    yield
    kernel_support.installed_version.cache_clear()


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (None, "needs triton 3.6 to 3.9, which is not installed"),
        ("3.5.1", "needs triton 3.6 to 3.9, got 3.5.1"),
        ("3.10.0", "needs triton 3.6 to 3.9, got 3.10.0"),
        ("3.6.0", None),
        ("3.9.1+cu130", None),
    ],
)
def test_available_names_what_is_missing(installed, reason, monkeypatch, fresh_look):
    def version(name):
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(kernel_support, "version", version)
    assert kernel_support.available() == reason


def test_available_sees_a_blocked_package(monkeypatch, fresh_look):
    def blocked(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", blocked)
    assert kernel_support.available() == "needs triton 3.6 to 3.9, which is not installed"


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert kernel_support.available() == (
        "needs a CUDA device, or TRITON_INTERPRET=1 set before Python starts, got neither"
    )
    assert "cpu" not in kernel_support.devices()
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernel_support.available() is None
    assert "cpu" in kernel_support.devices()


def test_widths():
    assert kernel_support.accepts_widths(64, 128)
    assert kernel_support.accepts_widths(96, 96)
    assert not kernel_support.accepts_widths(80, 160)
    assert not kernel_support.accepts_widths(64, 32)
