"""What the capability table says of the kernels on a given machine."""

from pathlib import Path

import pytest
import torch

from diffattn.ops.inputs import kernel_support

triton = pytest.importorskip("triton", reason="its version is what is asked for")


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
def test_available_names_what_is_missing(installed, reason, monkeypatch):
    monkeypatch.setattr(kernel_support, "_INTERPRETED", True)
    monkeypatch.setattr(kernel_support, "_WRONG_VERSION", kernel_support.why_refused(installed))
    assert kernel_support.why_unavailable() == reason


def test_compiled_code_asks_as_auto_does_without_a_warning(monkeypatch):
    monkeypatch.delenv(kernel_support.VARIABLE, raising=False)
    monkeypatch.setattr(kernel_support, "TESTED", {(9, 0): ("3.7",)})
    monkeypatch.setattr(kernel_support, "_INSTALLED", "3.7.0")
    monkeypatch.setattr(kernel_support, "_INTERPRETED", True)

    @torch.compile(fullgraph=True, backend="eager")
    def asked(x):
        reasons = [kernel_support.takes_kernels(chip) for chip in ((9, 0), (8, 0))]
        return x, *reasons, kernel_support.why_unavailable()

    assert asked(torch.ones(())) == (1, True, True, None)


def test_cpu_tensors_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(kernel_support, "_CAPABILITIES", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(kernel_support, "_INTERPRETED", False)
    assert kernel_support.why_unavailable() == (
        "needs a CUDA device, or TRITON_INTERPRET=1 set before Python starts, got neither"
    )
    assert "cpu" not in kernel_support.devices()
    monkeypatch.setattr(kernel_support, "_INTERPRETED", True)
    assert kernel_support.why_unavailable() is None
    assert "cpu" in kernel_support.devices()


def test_rocm_is_no_cuda(monkeypatch):
    """Its devices are of type "cuda" and have numbers that mean something else."""
    monkeypatch.setattr(kernel_support, "_INTERPRETED", False)
    monkeypatch.setattr(kernel_support, "_CAPABILITIES", {})
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", None)
    assert kernel_support.why_unavailable() == "needs a CUDA device, got ROCm"
    assert kernel_support.compute_capability(torch.device("cuda", 97)) is None


class Chip:
    def __init__(self, major, minor):
        self.major, self.minor = major, minor


def test_the_capability_is_that_of_the_tensors_device_and_asked_once(monkeypatch):
    asked = []

    def properties(device):
        asked.append(device.index)
        return Chip(7, 5) if device.index == 1 else Chip(9, 0)

    monkeypatch.setattr(kernel_support, "_CAPABILITIES", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    for _ in range(2):
        assert kernel_support.compute_capability(torch.device("cuda", 0)) == (9, 0)
        assert kernel_support.compute_capability(torch.device("cuda", 1)) == (7, 5)
    assert asked == [0, 1]
    assert kernel_support.compute_capability(torch.device("cuda")) == (9, 0)
    assert asked == [0, 1, None]  # the current device may be another one each time
    assert kernel_support.compute_capability(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("tested", "capability", "reason"),
    [
        ({}, (9, 0), "they were not tested on compute capability 9.0"),
        ({(9, 0): ("3.7",)}, (8, 0), "they were not tested on compute capability 8.0"),
        ({(9, 0): ("3.6", "3.7")}, (9, 0), None),
        (
            {(9, 0): ("3.6", "3.8")},
            (9, 0),
            "they were not tested on compute capability 9.0 under triton 3.7.0, only under "
            "3.6, 3.8",
        ),
        ({(9, 0): ("3.7",)}, None, "its compute capability is unknown"),
    ],
)
def test_kernels_wait_for_tests_on_their_device(tested, capability, reason, monkeypatch):
    monkeypatch.delenv(kernel_support.VARIABLE, raising=False)
    monkeypatch.setattr(kernel_support, "TESTED", tested)
    monkeypatch.setattr(kernel_support, "_INSTALLED", "3.7.0")
    assert kernel_support.why_untested(capability) == reason


def test_without_triton_any_tested_version_counts(monkeypatch):
    monkeypatch.setattr(kernel_support, "TESTED", {(9, 0): ("3.7",)})
    for installed, passed in ((None, True), ("3.7.1", True), ("3.8.0", False)):
        monkeypatch.setattr(kernel_support, "_INSTALLED", installed)
        assert (kernel_support.why_untested((9, 0)) is None) == passed


def test_every_tested_version_has_a_row_in_the_document():
    page = Path(__file__).parents[2] / "docs" / "reference" / "verified_devices.md"
    for (major, minor), versions in kernel_support.TESTED.items():
        for version in versions:
            assert f"| {major}.{minor} | {version}." in page.read_text(encoding="utf-8")
