"""What the sources import is declared."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions

from install.resolution import ROOT, canonical

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = packages_distributions()
HOSTS = {"vllm"}
"""Imported only by what these programs themselves call."""


def names(requirements):
    """Package names of requirements such as ``lm-eval[hf]>=0.4``."""
    starts = (requirement.split("[")[0].split(">")[0].split(";")[0] for requirement in requirements)
    return {canonical(start.strip()) for start in starts}


def imported():
    """Distribution of every third-party import in the sources, also inside functions."""
    modules = set()
    for path in (ROOT / "src" / "diffattn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(node.module.split(".")[0])
    modules -= {"diffattn", *HOSTS, *sys.stdlib_module_names}
    return {canonical(name) for module in modules for name in DISTRIBUTIONS[module]}


def test_every_import_is_declared():
    extras = PROJECT["optional-dependencies"].values()
    declared = names(PROJECT["dependencies"]).union(*map(names, extras))
    assert imported() - declared == set()
