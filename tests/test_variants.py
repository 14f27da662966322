"""The script that runs the tests with the kernels of other CPUs."""

import json
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "variants"


@pytest.fixture
def variants(monkeypatch, tmp_path):
    """The script as a module, with a record of its own and a CPU of AVX2."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("variants", str(SCRIPT))
    module = module_from_spec(spec_from_loader("variants", loader))
    loader.exec_module(module)
    module.RECORD = tmp_path / "records" / "cpu_variants.json"
    module.cpu = lambda: ("a CPU", {"sse2", "avx2"})
    return module


def run(variants, monkeypatch, *arguments, output="3 passed, 1 skipped in 0.1s", code=0):
    """The exit code, and the environment of every run."""
    environments = []

    def pytest_run(command, *, env, **options):
        environments.append({key: env.get(key) for key in variants.VARIABLES})
        return subprocess.CompletedProcess(command, code, stdout=f"...\n{output}\n")

    monkeypatch.setattr(subprocess, "run", pytest_run)
    monkeypatch.setattr("sys.argv", ["variants", *arguments])
    return variants.main(), environments


def test_what_a_cpu_cannot_run_is_named_and_keeps_its_record(variants, monkeypatch, capsys):
    variants.RECORD.parent.mkdir()
    variants.RECORD.write_text(json.dumps({"skylakex": {"status": "passed", "cpu": "another"}}))
    monkeypatch.setenv("MKL_CBWR", "AVX2")  # of the caller: no variant's
    code, environments = run(variants, monkeypatch)
    assert code == 0
    assert environments == [
        {key: variants.environment(name).get(key) for key in variants.VARIABLES}
        for name in ("haswell", "zen", "prescott")
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("haswell: passed: 3 passed, 1 skipped in 0 s | OPENBLAS_CORETYPE=")
    assert lines[2].startswith("skylakex: not run: a CPU has no avx512f")
    record = json.loads(variants.RECORD.read_text())
    assert record["skylakex"]["cpu"] == "another"
    assert record["zen"]["counts"] == {"passed": 3, "skipped": 1}


def test_the_fast_part_writes_no_record_and_fails_with_its_tests(variants, monkeypatch):
    code, environments = run(variants, monkeypatch, "--fast", output="1 failed in 2s", code=1)
    assert (code, len(environments), variants.RECORD.exists()) == (1, 1, False)
    root = SCRIPT.parents[1]
    for name in variants.FAST_TESTS:
        path, _, test = name.partition("::")
        assert (root / path).exists()
        assert not test or f"def {test}(" in (root / path).read_text(encoding="utf-8")
