"""The constraints resolve for a stranger: from the public index alone, on every platform."""

import json
import subprocess
import sys

import pytest

from install.resolution import (
    CONSTRAINTS,
    EXTRAS,
    PAIRS,
    ROOT,
    ResolutionError,
    canonical,
    public_environment,
    read_versions,
    resolve,
    why_no_index,
)

PINNED = read_versions(CONSTRAINTS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def _index():
    """Skip, with the reason, where no package index answers."""
    reason = why_no_index()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.scheduled
@pytest.mark.usefixtures("_index")
@pytest.mark.parametrize(("platform", "python"), PAIRS)
def test_constraints_resolve(platform, python):
    versions = resolve(platform, python)
    missing = {"triton"} if platform.startswith("macOS") else set()
    assert {name: versions.get(name) for name in PINNED} == PINNED | dict.fromkeys(missing)


@pytest.mark.scheduled
@pytest.mark.usefixtures("_index")
def test_a_triton_that_torch_does_not_take_is_refused(tmp_path):
    text = CONSTRAINTS.read_text(encoding="utf-8")
    wrong = tmp_path / "constraints.txt"
    wrong.write_text(text.replace(f"triton=={PINNED['triton']}", "triton==3.6.0"), encoding="utf-8")
    with pytest.raises(ResolutionError, match=r"torch==\S+ depends on triton"):
        resolve("Linux x86-64", "3.12", wrong)


@pytest.mark.scheduled
@pytest.mark.usefixtures("_index")
def test_pip_resolves_them_for_this_python(tmp_path):
    """The installer that most people use, on this machine's platform; downloads torch's wheels."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--dry-run", "--quiet"]
    command += ["--ignore-installed", "--report", report, "-c", CONSTRAINTS]
    command.append(f"{ROOT}[{','.join(EXTRAS)}]")
    done = subprocess.run(
        command, env=public_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    packages = json.loads(report.read_text(encoding="utf-8"))["install"]
    versions = {
        canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in packages
    }
    assert {name: versions.get(name, version) for name, version in PINNED.items()} == PINNED
    local = [
        item["metadata"]["name"]
        for item in packages
        if not item["download_info"]["url"].startswith("https://")
    ]
    assert local == ["diffattn"]


def test_local_wheels_and_other_indexes_are_switched_off(monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("UV_INDEX", "/index")
    environment = public_environment()
    assert not {"PIP_FIND_LINKS", "UV_INDEX"} & set(environment)
    assert environment["PIP_CONFIG_FILE"] == "/dev/null"
