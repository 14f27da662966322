"""A plugin of pytest that writes every outcome at once: a run that is stopped keeps what it did.

``pytest -p diffattn.testing.outcomes`` appends ``{"test": ..., "outcome": ...}`` to the file that
``DIFFATTN_OUTCOMES`` names.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

VARIABLE = "DIFFATTN_OUTCOMES"
_FILES = {
    **dict.fromkeys(
        ("test_decode.py", "test_paged_decode.py", "test_softmax_decode.py"), "triton_decode"
    ),
    "test_hopper.py": "hopper",
}
_KERNELS = ("triton_decode", "hopper", "triton")  # the longer name first


def pytest_runtest_logreport(report: Any) -> None:
    """The outcome of a test: of its body, or of what failed or was skipped before or after it."""
    if report.when == "call" or report.outcome != "passed":
        _write(report)


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is a failure."""
    if report.outcome == "failed":
        _write(report)


def _write(report: Any) -> None:
    line = json.dumps({"test": report.nodeid, "outcome": report.outcome})
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def read_outcomes(path: Path) -> dict[str, Any]:
    """Counts of a file of outcomes.

    Args:
        path: What the plugin wrote; a file that is not there holds nothing.

    Returns:
        ``passed``, ``failed`` and ``skipped``; ``failures``: names of tests; ``kernels``: per
        kernel ``passed`` and ``failed``.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    outcomes = {entry["test"]: entry["outcome"] for entry in map(json.loads, lines)}
    counts = Counter(outcomes.values())
    kernels: dict[str, Counter[str]] = {kernel: Counter() for kernel in _KERNELS}
    for test, outcome in outcomes.items():
        if (kernel := kernel_of(test)) is not None:
            kernels[kernel][outcome] += 1
    return {
        **{name: counts[name] for name in ("passed", "failed", "skipped")},
        "failures": [test for test, outcome in outcomes.items() if outcome == "failed"],
        "kernels": {k: {n: c[n] for n in ("passed", "failed")} for k, c in kernels.items()},
    }


def kernel_of(test: str) -> str | None:
    """The kernel that a test is of, by its name, or ``None``."""
    file, _, name = test.partition("::")
    if file.rpartition("/")[2] in _FILES:
        return _FILES[file.rpartition("/")[2]]
    if kernel := next((kernel for kernel in _KERNELS if kernel in name), None):
        return kernel
    return "triton" if "ops/triton/" in file else None
