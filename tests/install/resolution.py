"""Which versions a user's installation gets, asked of the public package index alone.

Nothing is installed and only metadata is read.
"""

import os
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PLATFORMS = {
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "macOS arm64": "aarch64-apple-darwin",
}
PYTHONS = ("3.11", "3.12", "3.13")
PAIRS = list(product(PLATFORMS, PYTHONS))
EXTRAS = ("lab", "test", "data", "triton", "eval", "track", "docs", "onnx")
# Pure Python, published as source only; everything else must have a wheel for the platform.
SOURCE_ONLY = ("rouge-score", "sqlitedict", "word2number")


class ResolutionError(Exception):
    """What the resolver printed instead of versions."""


def canonical(name):
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_versions(text):
    """``{name: version}`` of the lines ``name==version``."""
    lines = re.findall(r"^([\w.-]+)==(\S+)$", text, flags=re.MULTILINE)
    return {canonical(name): version for name, version in lines}


def public_environment():
    """The environment without settings of pip and uv: no local wheels, no further indexes."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "UV_CACHE_DIR" or not name.startswith(("PIP_", "UV_"))
    } | {
        "PIP_CONFIG_FILE": os.devnull,
        "MACOSX_DEPLOYMENT_TARGET": "14.0",  # the oldest macOS that torch is built for
    }


def compile_versions(requirements, *options):
    """Versions that the resolver picks for a requirements file or ``pyproject.toml``."""
    command = [find_uv_bin(), "pip", "compile", "--no-config", "--quiet"]
    command += ["--no-header", "--no-annotate", "--no-sources", *options, str(requirements)]
    done = subprocess.run(
        command, env=public_environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ResolutionError(done.stderr.strip())
    return read_versions(done.stdout)


def why_no_index():
    """Why the public index does not answer here, or ``None`` if it does."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.in")
        requirements.write_text("packaging\n", encoding="utf-8")
        try:
            compile_versions(requirements, "--refresh")
        except ResolutionError as error:
            return f"the package index does not answer: {str(error).splitlines()[-1].strip()}"
    return None


def resolve(platform, python, constraints=CONSTRAINTS):
    """Versions of everything that ``pip install '.[extras]'`` puts on one platform and Python."""
    options = ["--python-platform", PLATFORMS[platform], "--python-version", python]
    options += ["--constraints", str(constraints), "--only-binary", ":all:"]
    for name in SOURCE_ONLY:
        options += ["--no-binary", name]
    for extra in EXTRAS:
        options += ["--extra", extra]
    return compile_versions(ROOT / "pyproject.toml", *options)
