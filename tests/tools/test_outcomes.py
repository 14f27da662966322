"""Outcomes of tests: which count for a kernel, and what a broken process leaves behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import outcomes as plugin
from tools.outcomes import CHOICE, VARIABLE, kernel_of, read_outcomes

GPU = "tests/gpu/test_operators_on_gpu.py::test_every_case"
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def test_only_tests_of_numbers_count_for_a_kernel():
    kernels = {
        f"{GPU}[cuda-triton-bf16-v1]": "triton",
        f"/code/{GPU}[cuda-triton_decode-bf16-v1]": "triton_decode",
        f"{GPU}[cuda-composed-bf16-v1]": None,
        "tests/gpu/test_torch_features_on_gpu.py::test_compile[cuda-triton-v1]": None,
        "tests/gpu/test_torch_features_on_gpu.py::test_the_same_bits_again[cuda-triton-v1]":
            "triton",
        "tests/ops/test_gradients.py::test_backends_agree[cuda-hopper-v1]": "hopper",
        "tests/ops/triton/test_decode.py::test_decode_matches_reference[T1]": "triton_decode",
        "tests/ops/triton/test_decode.py::test_compiles_and_exports_as_one_graph": None,
        "tests/ops/triton/test_decode.py::test_a_gradient_is_refused": None,
        "tests/ops/triton/test_paged_decode.py::test_opcheck_of_the_paged_operator[T1]": None,
        "tests/ops/triton/test_paged_decode.py::test_pages_in_16_bits[T1]": "triton_decode",
        "tests/ops/triton/test_fused_backward.py": "triton",
        "tests/layers/test_every_layer.py::test_shapes[cuda-triton]": None,
    }  # fmt: skip
    assert {test: kernel_of(test) for test in kernels} == kernels


@pytest.mark.parametrize(
    ("choice", "kept"), [("kernels", [0, 2]), ("others", [1]), (None, [0, 1, 2])]
)
def test_kernels_and_others_are_chosen_by_an_environment_variable(monkeypatch, choice, kept):
    names = (f"{GPU}[cuda-triton-v1]", f"{GPU}[cuda-flex-v1]", f"{GPU}[cuda-hopper-v1]")
    items = [SimpleNamespace(nodeid=name) for name in names]
    wanted, left_out = [items[i] for i in kept], []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    monkeypatch.delenv(CHOICE, raising=False)
    if choice:
        monkeypatch.setenv(CHOICE, choice)
    plugin.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)
    assert items == wanted
    assert len(left_out) == 3 - len(kept)


def test_what_the_plugin_names_is_there():
    """Else a kernel would be timed without its tests."""
    for file in (*plugin._BY_PARAMETER, *plugin._BY_FILE):
        assert (TESTS / file).is_file(), file
    features = (TESTS / "gpu" / "test_torch_features_on_gpu.py").read_text()
    assert f"def {plugin._SAME_BITS}(" in features


def test_failures_of_numbers_and_others_are_told_apart(tmp_path):
    numbers, other = f"{GPU}[cuda-triton-bf16-v1]", f"{GPU}[cuda-flex-bf16-v1]"
    lines = [
        (numbers, "failed", "off by 1"), (numbers, "failed", "the process ended"),
        (other, "passed", None), (other, "failed", "after it"),
        (f"{GPU}[cuda-triton-bf16-v2]", "passed", None),
        (f"{GPU}[cuda-triton-bf16-v3]", "skipped", None),
    ]  # fmt: skip
    path = tmp_path / "outcomes"
    path.write_text("".join(
        json.dumps(dict(zip(("test", "outcome", "error"), line, strict=True))) + "\n"
        for line in lines
    ))  # fmt: skip
    facts = read_outcomes(path)
    assert (facts["passed"], facts["failed"], facts["skipped"]) == (1, 2, 1)
    assert facts["kernels"]["triton"] == {"passed": 1, "failed": 1, "skipped": 1}
    assert facts["wrong_numbers"] == {numbers: "off by 1"}
    assert facts["other_failures"] == {other: "after it"}
    assert read_outcomes(tmp_path / "none")["passed"] == 0
    with path.open("a") as file:
        file.write('{"test": "cut')  # by a kill
    assert read_outcomes(path) == facts


BROKEN = """
import os, pytest

@pytest.mark.parametrize("i", range(5))
def test_each(i):
    if os.environ.get("BROKE"):
        raise RuntimeError("whatever is called now fails")
    if i == 1:
        os.environ["BROKE"] = "1"
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    assert i != 3, "wrong number"
"""


def test_a_process_that_a_cuda_error_broke_runs_no_other_test(tmp_path):
    """What comes behind is run by another one, which has nothing of the error."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_fake.py").write_text(BROKEN)
    outcomes = tmp_path / "outcomes.jsonl"
    outcomes.write_text(json.dumps({"test": "of an earlier run", "outcome": "failed"}) + "\n")
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {VARIABLE: str(outcomes), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tools.outcomes",
         "-p", "no:cacheprovider", "--tb=short", "-n", "1", "test_fake.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    facts = read_outcomes(outcomes)
    assert (facts["passed"], facts["failed"], facts["skipped"]) == (3, 2, 0)
    broken, wrong = (facts["other_failures"][f"test_fake.py::test_each[{i}]"] for i in (1, 3))
    assert "CUDA error: an illegal memory access" in broken
    assert "wrong number" in wrong
