"""A plugin of pytest that writes every outcome at once, so that a stopped run keeps its outcomes.

``pytest -p tools.outcomes`` writes ``{"test": ..., "outcome": ..., "error": ...}``, one a
line, to the file that ``DIFFATTN_OUTCOMES`` names. After a CUDA error every call of the same
process fails, whatever it computes: such a process of pytest-xdist ends then, and another one goes
on behind the test that broke it.
"""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

VARIABLE = "DIFFATTN_OUTCOMES"
CHOICE = "DIFFATTN_TESTS_OF"
"""In the environment ``"kernels"`` or ``"others"``: which of the two :func:`kernel_of` tells apart
run. Both if empty."""
KERNELS = ("triton", "triton_decode", "hopper")
_WORKER = "PYTEST_XDIST_WORKER"
_MOST_CHARACTERS = 1_000  # of an error
_CUDA_ERROR = re.compile(r"CUDA error\b|Triton Error \[CUDA\]|\bAcceleratorError\b")
_BY_PARAMETER = (
    "gpu/test_operators_on_gpu.py", "ops/test_diff_attention.py", "ops/test_gradients.py",
    "ops/test_properties.py", "ops/test_softmax_backends.py",
)  # fmt: skip
"""Tests that compare the numbers of the backend that a parameter names."""
_SAME_BITS = "test_the_same_bits_again"
_BY_FILE = {
    "ops/triton/test_diff_attention_kernels.py": "triton",
    "ops/triton/test_fused_backward.py": "triton",
    "ops/triton/test_softmax_kernels.py": "triton",
    "ops/triton/test_decode.py": "triton_decode",
    "ops/triton/test_paged_decode.py": "triton_decode",
    "ops/triton/test_softmax_decode.py": "triton_decode",
    "ops/triton/test_hopper.py": "hopper",
    "ops/triton/test_hopper_backward.py": "hopper",
}
"""Tests that compare the numbers of one kernel, but those of PyTorch's machinery around it."""
_MACHINERY = re.compile(r"opcheck|compiles|export|refused")


def pytest_sessionstart() -> None:
    """Delete outcomes of an earlier run: tests may have changed since."""
    if _WORKER not in os.environ:
        Path(os.environ[VARIABLE]).write_text("", encoding="utf-8")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what was not chosen."""
    choice = os.environ.get(CHOICE)
    if not choice:
        return
    if choice not in ("kernels", "others"):
        raise ValueError(f"{CHOICE} must be 'kernels', 'others' or empty, got {choice!r}.")

    def is_chosen(item: Any) -> bool:
        return (kernel_of(item.nodeid) is not None) == (choice == "kernels")

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = filter(is_chosen, items)


def pytest_runtest_logreport(report: Any) -> None:
    """The outcome of a test: of its body, or of what failed or was skipped before or after it."""
    if report.when == "call" or report.outcome != "passed":
        _write(report)
    failed_by_cuda = report.outcome == "failed" and _CUDA_ERROR.search(report.longreprtext)
    if _WORKER in os.environ and failed_by_cuda:
        # Not an exception: what pytest would still do may wait for the GPU.
        os._exit(1)


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is a failure."""
    if report.outcome == "failed":
        _write(report)


def _write(report: Any) -> None:
    error = report.longreprtext[-_MOST_CHARACTERS:] if report.outcome == "failed" else None
    line = json.dumps({"test": report.nodeid, "outcome": report.outcome, "error": error})
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read_outcomes(path: Path) -> dict[str, Any]:
    """Counts of a file of outcomes; a file that is not there holds nothing.

    Returns:
        ``passed``, ``failed`` and ``skipped``: of all tests. ``kernels``: the same per kernel, of
        the tests that compare its numbers. ``wrong_numbers``: of these, the ones that failed, and
        the ends of their errors; ``other_failures``: all others.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may have been cut off
    outcomes: dict[str, str] = {}
    errors: dict[str, str] = {}
    for entry in map(json.loads, lines):
        # A test fails once: in its body or after it, in the words of the process that ran it or of
        # the one that saw it end.
        if outcomes.get(entry["test"]) != "failed":
            outcomes[entry["test"]] = entry["outcome"]
            if entry["outcome"] == "failed":
                errors[entry["test"]] = entry["error"]
    names = ("passed", "failed", "skipped")
    kernels: dict[str, Counter[str]] = {kernel: Counter() for kernel in KERNELS}
    for test, outcome in outcomes.items():
        if (kernel := kernel_of(test)) is not None:
            kernels[kernel][outcome] += 1
    counts = Counter(outcomes.values())
    return {
        **{name: counts[name] for name in names},
        "kernels": {k: {name: c[name] for name in names} for k, c in kernels.items()},
        "wrong_numbers": {test: e for test, e in errors.items() if kernel_of(test) is not None},
        "other_failures": {test: e for test, e in errors.items() if kernel_of(test) is None},
    }


def kernel_of(test: str) -> str | None:
    """The kernel whose numbers a test compares, by the test's name, or ``None``."""
    file, _, name = test.partition("::")
    file = file.rpartition("tests/")[2]
    name, _, parameters = name.partition("[")
    if file in _BY_PARAMETER or name == _SAME_BITS:
        values = parameters.rstrip("]").split("-")
        return next((kernel for kernel in KERNELS if kernel in values), None)
    return None if _MACHINERY.search(name) else _BY_FILE.get(file)
