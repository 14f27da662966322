"""Importing the folder is light: scipy loads with the first call that needs it."""

import subprocess
import sys
from pathlib import Path

import diffattn.lab.stats

MODULES = sorted(path.stem for path in Path(diffattn.lab.stats.__path__[0]).glob("*.py"))


def test_no_module_loads_scipy_or_torch():
    names = ", ".join(f"diffattn.lab.stats.{name}" for name in MODULES if name != "__init__")
    assert "intervals" in names
    code = f"import sys, {names}; print({{'scipy', 'torch'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
