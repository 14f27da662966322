"""transformers' own tests of causal language models and of generation pass, but for a list.

They are in its repository alone, not in what it publishes for installation:
``DIFFATTN_TRANSFORMERS_REPOSITORY`` is a folder with a copy of it, whose library is used, too: run
them by a Python that has what this version of it asks for, and its tests (``parameterized``).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from diffattn.models.config.attention_types import ATTENTION_TYPES

HERE = Path(__file__).parent
REPOSITORY = os.environ.get("DIFFATTN_TRANSFORMERS_REPOSITORY")
pytestmark = [
    pytest.mark.scheduled,
    pytest.mark.skipif(
        not REPOSITORY, reason="DIFFATTN_TRANSFORMERS_REPOSITORY names no copy of transformers"
    ),
]
EXCEPTIONS = {
    "test_sdpa_can_dispatch_non_composite_models": "expects sdpa by default; our default is our "
    "own operator",
}
EXCEPTIONS_WITHOUT_RENAMED_WEIGHTS = {
    "test_reverse_loading_mapping": "expects every model of a type to have weights that files "
    "name otherwise; softmax attention and V2 have none"
}

SKIPPED = {
    "test_question_answering_model": "no such head",
    "test_token_classification_model": "no such head",
}
"""What is skipped here and not for Llama."""


def outcomes(module, environment, report, *options):
    """Names of the tests that failed, passed and were skipped."""
    path = os.pathsep.join([f"{REPOSITORY}/src", str(HERE.parents[2] / "src"), str(HERE)])
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore",
            module, "--tb=line", f"--junitxml={report}", *options,
        ],
        cwd=REPOSITORY, capture_output=True, timeout=3_600,
        env=os.environ | environment | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-2_000:]  # else the tests were not run
    results = {"failed": set(), "passed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kind = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            kind = "failed"
        elif case.find("skipped") is not None:
            kind = "skipped"
        results[kind].add(case.get("name").split(" ")[0])
    return results


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    report = tmp_path_factory.mktemp("llama") / "report.xml"
    module = "tests/models/llama/test_modeling_llama.py"
    return outcomes(module, {}, report, "-k", "LlamaModelTest")


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_all_pass_but_the_listed(attention_type, llama, tmp_path):
    folder = Path(REPOSITORY, "tests", "models", "diff_transformer")
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    shutil.copy(HERE / "causal_lm_tests.py", folder / "test_ours.py")
    results = outcomes(
        "tests/models/diff_transformer/test_ours.py",
        {"ATTENTION_TYPE": attention_type},
        tmp_path / "report.xml",
    )
    expected = set(EXCEPTIONS)
    if attention_type in ("softmax", "diff_v2"):
        expected |= set(EXCEPTIONS_WITHOUT_RENAMED_WEIGHTS)
    print(attention_type, {kind: len(names) for kind, names in results.items()})
    assert results["failed"] == expected
    assert results["skipped"] - llama["skipped"] == set(SKIPPED)
    assert len(results["passed"]) > 130
