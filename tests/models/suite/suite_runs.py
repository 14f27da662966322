"""Run a module of transformers' own tests on our models, and sort its cases by outcome."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from diffattn.models.config.attention_types import ATTENTION

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"


def run_module(module, folder, report, *options, path=(), **environment):
    """Names of the tests of ``module`` in ``folder`` that failed, passed and were skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-W", "ignore", module, "--tb=line", f"--junitxml={report}", *options]
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(SOURCE), str(HERE)])
    environment = os.environ | environment
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=3_600, env=environment)
    assert done.returncode in (0, 1), done.stdout[-2_000:]  # else the tests were not run
    results = {"failed": set(), "passed": set(), "skipped": set()}
    for case in ElementTree.parse(report).iter("testcase"):
        kind = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            kind = "failed"
        elif case.find("skipped") is not None:
            kind = "skipped"
        results[kind].add(case.get("name").split(" ")[0].split("[")[0])
    return results


def expected_failures(attention_type):
    """Tests that cannot pass, of models alone and of generation."""
    # Expects sdpa by default; our default is our own operator.
    names = {"test_sdpa_can_dispatch_non_composite_models"}
    of_layers = [ATTENTION[name] for name in attention_type.split(",")]
    if not any(facts.lambda_vectors and facts.head_norm for facts in of_layers):
        # Expects both weights that files name otherwise: λ's vectors and the norm of a head.
        names.add("test_reverse_loading_mapping")
    return names
