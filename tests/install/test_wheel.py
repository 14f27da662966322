"""The wheel alone, without extras and without the sources, trains and reports on a CPU."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from install.resolution import CONSTRAINTS, ROOT, why_no_index

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")
# Kernels, and what compiles or tunes them, are triton's; nothing that they stand on needs it.
NEED_TRITON = (
    "diffattn.ops.triton",
    "diffattn.lab.testing.aot",
    "diffattn.lab.benchmark.tuning.table",
    "diffattn.lab.benchmark.tuning.tune",
)
WITHOUT_EXTRAS = f"""
import importlib, pkgutil, sys
import diffattn
assert diffattn.__file__.startswith(sys.prefix), diffattn.__file__
for module in pkgutil.walk_packages(diffattn.__path__, "diffattn."):
    if not module.name.startswith({NEED_TRITON}) and module.name != "diffattn.__main__":
        importlib.import_module(module.name)
for name in diffattn.__all__:
    getattr(diffattn, name)
print("imported")
"""


def run(command, cwd, **options):
    """Run a command that must end well, in an environment that does not know this project."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment,
        capture_output=True, text=True, check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with torch and the wheel, and an empty folder to work in."""
    reason = why_no_index()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("wheel")
    # A copy: setuptools would put files of an earlier build folder into the wheel.
    sources = folder / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", sources / "src", ignore=ignored)
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, sources], folder)
    shutil.rmtree(sources)
    (wheel,) = folder.glob("*.whl")
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    install = [python, *pip[1:], "install", "--quiet", "-c", CONSTRAINTS]
    # As `make install`: torch first, so that a CPU build of it can be chosen.
    run([*install, *shlex.split(os.environ.get("PIP_TORCH_ARGS", "")), "torch"], folder)
    run([*install, wheel], folder)
    work = folder / "work"
    work.mkdir()
    return python, work


@pytest.mark.scheduled
def test_everything_imports_without_extras(environment):
    python, work = environment
    run([python, "-m", "pip", "check"], work)
    assert run([python, "-W", "error", "-c", WITHOUT_EXTRAS], work) == "imported\n"


@pytest.mark.scheduled
def test_the_smoke_run_trains_and_reports(environment):
    python, work = environment
    run(
        [python.parent / "diffattn", "reproduce", "text", "--scale", "smoke", "--out", "smoke"],
        work,
    )
    results = work / "smoke" / "results.json"
    page = work / "smoke" / "report.html"
    assert results.stat().st_size
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert sorted(path.name for path in work.iterdir()) == ["smoke"]
