"""The names that users import, and that nothing else is promised or loaded early."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest

import diffattn

ROOT = Path(__file__).parents[1]
ERRORS = {"BackendError", "CheckpointError", "ConfigError", "DiffAttnError", "ShapeError"}
PUBLIC = ERRORS | {
    "__version__", "reproduce", "backends",
    "diff_attention", "diff_attention_maps", "flex_diff_attention", "paged_decode",
    "rotary_embedding", "softmax_attention", "softmax_attention_maps",
    "DiffAttention", "DiffAttentionV2", "SharedDiffAttention", "SoftmaxAttention", "DexAttention",
    "GroupedDiffAttention",
    "DiffTransformerConfig", "DiffTransformerForCausalLM",
    "DiffTransformerForSequenceClassification", "DiffTransformerModel",
}  # fmt: skip


def test_the_public_names_are_a_decision():
    assert set(diffattn.__all__) == PUBLIC - {"reproduce"}  # it needs the lab
    assert dir(diffattn) == sorted(diffattn.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_name_is_what_it_says_and_documented(name):
    value = getattr(diffattn, name)
    assert value.__name__.rsplit(".", 1)[-1] == name
    assert value.__doc__
    assert getattr(diffattn, name) is value
    assert vars(diffattn)[name] is value  # found without __getattr__ from now on


def test_errors_form_one_family():
    errors = vars(import_module("diffattn.errors"))
    assert {name for name in errors if name.endswith("Error")} == ERRORS
    assert all(issubclass(errors[name], diffattn.DiffAttnError) for name in ERRORS)
    mistakes = {name for name in ERRORS if issubclass(errors[name], ValueError)}
    assert mistakes == {"ShapeError", "ConfigError"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'diffattn' has no attribute 'DifAttention'"):
        diffattn.DifAttention  # noqa: B018


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def test_a_module_never_hides_behind_its_function():
    """``diffattn.reproduce`` is the function; its module is reached by its full name."""
    assert run_python(
        "import diffattn.lab.studies.reproduce, diffattn.ops.attention, diffattn; "
        "print(callable(diffattn.reproduce), callable(diffattn.diff_attention), "
        "diffattn.backends.names('diff_attention')[0])"
    ) == ("True True reference\n", "")


def test_importing_the_package_loads_nothing_heavy():
    assert run_python(
        "import sys, diffattn; diffattn.__version__; diffattn.ConfigError; dir(diffattn); "
        "print(*{'torch', 'transformers', 'numpy', 'plotly', 'typer'} & set(sys.modules))"
    ) == ("\n", "")


def test_version_is_the_same_everywhere():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert diffattn.__version__ == declared["version"] == metadata.version("diffattn")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(diffattn.__version__)}\b", changelog, flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {diffattn.__version__}" in citation.replace('"', "")


def test_types_are_shipped():
    assert (Path(diffattn.__file__).parent / "py.typed").exists()
