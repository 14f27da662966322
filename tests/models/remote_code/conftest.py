"""Processes in which ``diffattn`` cannot be imported."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import transformers.dynamic_module_utils
from transformers.models.auto import configuration_auto, modeling_auto

from children import in_child

SCRIPTS = Path(__file__).parent / "scripts"


def _forget_diffattn(modules_cache):
    """As in a process that never imported it, which takes seconds to start."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "diffattn"]:
        del sys.modules[name]
    runpy.run_path(str(SCRIPTS / "absent.py"))
    configuration_auto.CONFIG_MAPPING._extra_content.clear()
    configuration_auto.CONFIG_MAPPING_NAMES.pop("diff_transformer", None)
    for mapping in vars(modeling_auto).values():
        if hasattr(mapping, "_extra_content"):
            mapping._extra_content.clear()
            mapping._reverse_config_mapping.pop("DiffTransformerConfig", None)
            mapping._model_mapping.pop("diff_transformer", None)
    transformers.dynamic_module_utils.HF_MODULES_CACHE = str(modules_cache)


@pytest.fixture
def without_diffattn(tmp_path):
    """``without_diffattn(function)``: what a call gives in such a fork."""

    def run(function):
        def call():
            _forget_diffattn(tmp_path / "modules")
            value = function()
            assert not any(name.partition(".")[0] == "diffattn" for name in sys.modules)
            return value

        kind, value = in_child(call, seconds=60)
        assert kind == "done", value
        return value

    return run


@pytest.fixture
def script(tmp_path):
    """``script(name, *arguments)``: a script of this folder in a fresh process of that kind."""

    def run(name, *arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-P", SCRIPTS / f"{name}.py", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run
