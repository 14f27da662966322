"""The wheel alone gives the library; with its lab it trains and reports, without the sources."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from install.resolution import CONSTRAINTS, ROOT, why_no_index

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")
WITH_THE_LAB = """
import diffattn, library
library.import_all(("lab", *library.PARTS))
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
    """Python of an environment with torch and the wheel, pip's arguments for it, a work folder."""
    reason = why_no_index()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("wheel")
    # A copy: setuptools would put files of an earlier build folder into the wheel.
    sources = folder / "sources"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, sources], folder)
    shutil.rmtree(sources)
    (wheel,) = folder.glob("*.whl")
    folders = {name.split("/")[0] for name in ZipFile(wheel).namelist()}
    assert folders == {"diffattn", "-".join(wheel.name.split("-")[:2]) + ".dist-info"}  # no tools
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    install = [python, *pip[1:], "install", "--quiet", "-c", CONSTRAINTS]
    # As `make install`: torch first, so that a CPU build of it can be chosen.
    run([*install, *shlex.split(os.environ.get("PIP_TORCH_ARGS", "")), "torch"], folder)
    run([*install, wheel], folder)
    work = folder / "work"
    work.mkdir()
    return python, [*install, f"{wheel}[lab]"], work


@pytest.mark.scheduled
def test_the_wheel_alone_is_the_library(environment):
    python, _, work = environment
    run([python, "-m", "pip", "check"], work)
    where = run([python, "-c", "import diffattn; print(diffattn.__file__)"], work)
    assert where.startswith(str(python.parents[1]))
    program = Path(__file__).with_name("library.py")
    assert run([python, "-W", "error", program, work], work) == "ran\n"
    packages = json.loads(run([python, "-m", "pip", "list", "--format", "json"], work))
    assert not {"accelerate", "scipy", "plotly"} & {row["name"] for row in packages}
    command = [python.parent / "diffattn", "--version"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("Run: pip install 'diffattn[lab]'\n")


@pytest.mark.scheduled
def test_the_lab_trains_and_reports(environment):
    python, install_the_lab, work = environment
    run(install_the_lab, work)
    run([python, "-m", "pip", "check"], work)
    shutil.copy(Path(__file__).with_name("library.py"), work)
    assert run([python, "-W", "error", "-c", WITH_THE_LAB], work) == "imported\n"
    shutil.rmtree(work)
    work.mkdir()
    words = ("reproduce", "text", "--scale", "smoke", "--out", "smoke")
    run([python.parent / "diffattn", *words], work)
    assert (work / "smoke" / "results.json").stat().st_size
    page = (work / "smoke" / "report.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert sorted(path.name for path in work.iterdir()) == ["smoke"]
