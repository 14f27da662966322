"""Imports point down the stack, files stay short, and torch alone runs the operators."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from import_graph import imports_of, public_home

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "diffattn"
TESTS = ROOT / "tests"

RUNNERS = {"training", "evaluation", "analysis", "benchmark"}
BELOW_RUNNERS = {"inference", "probes", "models", "layers", "ops", "data", "records", "stats"}
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "data": {"records"},
    "records": set(),
    "stats": set(),
    "layers": {"ops"},
    "testing": {"ops"},
    "models": {"layers", "ops", "records"},
    "probes": {"models", "layers", "ops"},
    "inference": {"probes", "models", "layers", "ops", "data"},
    "training": BELOW_RUNNERS,
    "evaluation": BELOW_RUNNERS,
    "analysis": BELOW_RUNNERS,
    "benchmark": BELOW_RUNNERS | {"testing"},
    "recipes": {"models", "data", *RUNNERS},  # of the runners their configs only
    "studies": RUNNERS | BELOW_RUNNERS | {"recipes", "report"},  # reproduce ends in a report
    "inspection": {"evaluation", "report", *BELOW_RUNNERS},  # maps become a page
    "report": {"records", "stats"},
    "cli": {"studies", "inspection", "recipes", "report", "testing", *RUNNERS, *BELOW_RUNNERS},
}
OPTIONAL = {"triton", "lm_eval", "rouge_score", "datasets", "tiktoken", "pytest"}
WINGS = {
    "evaluation": {"perplexity", "lm_tasks", "long_context", "icl", "hallucination", "judge"},
    "report": {
        "analysis",
        "study",
        "recall",
        "stability",
        "scaling",
        "gradient_flow",
        "evaluation",
        "benchmarks",
        "claims",
        "papers",
        "viewer",
    },
    "studies": {"text", "recall", "stability", "scaling", "gradient_flow"},
}
"""Folders of one room each: a wing imports no other."""
OF_THE_ROOT = {"evaluation": {"protocol", "metrics"}, "report": {"page", "paper"}}
"""What wings may import of the folder they are in."""
TORCH_ONLY = {"ops", "layers"}
WITHOUT_TORCH = {"records", "report", "stats"}
KERNELS = "ops/diff_attention/triton/"
BACKENDS = {"reference", "chunked", "composed", "flex", "decode", "triton"}
OPERATORS = {"custom_op", "decode_op", "hopper_op"}  # the doors to the kernels


def arrow_fault(path, imported):
    """Why the file at ``path`` (from ``src/diffattn``) may not import that, or ``None``."""
    folder = path.split("/")[0] if "/" in path else ""
    top = imported.name.split(".")[0]
    if top != "diffattn":
        return package_fault(path, folder, imported)
    _, *target = public_home(imported.name).split(".")
    if not target or target[0] in ("errors", "__version__"):
        return None
    if not folder:
        return None if path == "__main__.py" and target[0] == "cli" else "a top-level module"
    if folder not in MAY_IMPORT:
        return f"folder {folder} is not in the map"
    if target[0] == folder:
        return backend_fault(path, target[1:]) or wing_fault(path, folder, target[1:])
    if target[0] not in MAY_IMPORT[folder]:
        return f"{folder} may not import {target[0]}"
    is_config = len(target) > 1 and target[1].endswith("config")
    if folder == "recipes" and target[0] in RUNNERS and not is_config:
        return "recipes import the runners' configs only"
    if folder == "cli" and imported.at_top:
        return "cli imports inside the command that needs it"
    return None


def backend_fault(path, target):
    """Backends never import one another, but ``custom_op`` its kernels."""
    own = path.removeprefix("ops/diff_attention/").split("/")[0].removesuffix(".py")
    if own in OPERATORS and target[1:2] == ["triton"]:
        return None
    if own not in BACKENDS | OPERATORS or target[:1] != ["diff_attention"] or len(target) < 2:
        return None
    if target[1] in BACKENDS - {own}:
        return f"backend {own} may not import backend {target[1]}"
    return None


def wing_fault(path, folder, target):
    """A wing imports itself, and of the root what is named above."""
    wing = path.split("/")[1]
    if folder == "report" and wing == "page" and target and target[0] in WINGS[folder]:
        return "page may not import wings"
    if wing not in WINGS.get(folder, ()) or not target or target[0] == wing:
        return None
    if target[0] in WINGS[folder]:
        return f"wing {wing} may not import wing {target[0]}"
    if target[0] not in OF_THE_ROOT.get(folder, target):
        return f"wing {wing} may not import {target[0]} of the root"
    return None


def package_fault(path, folder, imported):
    """What a folder may import from elsewhere."""
    top = imported.name.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top in OPTIONAL:
        if imported.at_top and not path.startswith(KERNELS):
            return f"{top} is optional: import it inside the function that needs it"
        return None
    if folder in TORCH_ONLY and top != "torch":
        return f"{folder} imports torch only"
    if folder == "records":
        return "records import the standard library only"
    if folder in WITHOUT_TORCH and top in ("torch", "transformers", "accelerate"):
        return f"{folder} works without {top}"
    return None


FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_imports_point_down(path):
    package = ".".join(["diffattn", *path.split("/")[:-1]])
    source = (SOURCE / path).read_text(encoding="utf-8")
    faults = [
        f"{imported.name}: {fault}"
        for imported in imports_of(source, package)
        if (fault := arrow_fault(path, imported))
    ]
    assert not faults


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("ops/x.py", "import torch", None),
        ("ops/x.py", "from diffattn.errors import ShapeError", None),
        ("ops/x.py", "from diffattn.ops import masking", None),
        ("ops/x.py", "import transformers", "ops imports torch only"),
        ("ops/x.py", "import numpy", "ops imports torch only"),
        ("ops/x.py", "from diffattn.layers.norm import HeadNorm", "ops may not import layers"),
        ("ops/x.py", "from ..models import presets", "ops may not import models"),
        ("ops/diff_attention/x.py", "from ...models import presets", "ops may not import models"),
        ("ops/x.py", "def f():\n    import diffattn.models.presets", "ops may not import models"),
        ("ops/x.py", "from diffattn import DiffAttention", "ops may not import layers"),
        ("ops/x.py", "import_module('diffattn.layers.norm')", "ops may not import layers"),
        ("ops/x.py", "importlib.import_module('diffattn.layers')", "ops may not import layers"),
        ("layers/x.py", "from diffattn import diff_attention", None),
        ("layers/x.py", "from diffattn.testing import inputs", "layers may not import testing"),
        ("models/x.py", "import transformers", None),
        ("training/x.py", "from diffattn.evaluation.config import A",
         "training may not import evaluation"),
        ("recipes/x.py", "from diffattn.training.config import RunConfig", None),
        ("recipes/x.py", "from diffattn.training.recall_config import RecallConfig", None),
        ("recipes/x.py", "from diffattn.training.trainer import train",
         "recipes import the runners' configs only"),
        ("benchmark/x.py", "from diffattn.testing import inputs", None),
        ("report/x.py", "from diffattn.models import presets", "report may not import models"),
        ("report/x.py", "def f():\n    import torch", "report works without torch"),
        ("records/x.py", "import numpy", "records import the standard library only"),
        ("testing/x.py", "import pytest",
         "pytest is optional: import it inside the function that needs it"),
        ("testing/x.py", "def f():\n    import pytest", None),
        ("data/x.py", "async def f():\n    import datasets", None),
        ("ops/diff_attention/triton/forward.py", "import triton", None),
        ("cli/x.py", "from diffattn.cli import app", None),
        ("cli/x.py", "from diffattn.studies import reproduce",
         "cli imports inside the command that needs it"),
        ("cli/x.py", "def f():\n    from diffattn.studies import reproduce", None),
        ("helpers/x.py", "from diffattn.ops import masking", "folder helpers is not in the map"),
        ("errors.py", "from diffattn.ops import masking", "a top-level module"),
        ("__main__.py", "from diffattn.cli.app import main", None),
        ("ops/diff_attention/composed.py", "from diffattn.ops.diff_attention import reference",
         "backend composed may not import backend reference"),
        ("ops/diff_attention/triton/forward.py", "from diffattn.ops.diff_attention.decode import f",
         "backend triton may not import backend decode"),
        ("ops/diff_attention/custom_op.py",
         "def f():\n    from diffattn.ops.diff_attention.triton import forward", None),
        ("ops/diff_attention/api.py", "from diffattn.ops.diff_attention import reference", None),
        ("inference/x.py", "from diffattn.models.loading import load_model", None),
        ("inference/x.py", "from diffattn.evaluation.protocol import Item",
         "inference may not import evaluation"),
        ("evaluation/icl/x.py", "from diffattn.evaluation.icl import data", None),
        ("evaluation/icl/x.py", "from diffattn.evaluation.metrics import metric", None),
        ("evaluation/icl/x.py", "from diffattn.evaluation.registry import parts",
         "wing icl may not import registry of the root"),
        ("evaluation/icl/x.py", "from diffattn.evaluation.judge import prompt",
         "wing icl may not import wing judge"),
        ("evaluation/registry.py", "from diffattn.evaluation.icl import data", None),
        ("report/study/x.py", "from diffattn.report.recall import files",
         "wing study may not import wing recall"),
        ("report/page/x.py", "from diffattn.report.study import files",
         "page may not import wings"),
    ],
)  # fmt: skip
def test_the_rule_itself(path, source, fault):
    package = ".".join(["diffattn", *path.split("/")[:-1]])
    (imported,) = imports_of(source, package)
    assert arrow_fault(path, imported) == fault


@pytest.mark.parametrize("package", ["ops", "ops/diff_attention", "layers", "testing"])
def test_a_package_holds_no_code(package):
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assert len(tree.body) == 1


def test_files_are_short():
    """400 lines, Triton kernels 500; the tests too."""
    long = {}
    for path in [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]:
        name = path.relative_to(ROOT).as_posix()
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        if num_lines > (500 if KERNELS in name else 400):
            long[name] = num_lines
    assert not long


def test_folders_are_small():
    """At most 20 files; a folder that grows beyond becomes wings."""
    sizes = {
        folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py")))
        for folder in [SOURCE, *SOURCE.rglob("*/")]
    }
    assert not {name: size for name, size in sizes.items() if size > 20}


def run_blocked(blocked, code):
    """Run ``code`` in a fresh process that cannot import the packages in ``blocked``."""
    prelude = f"""
        import sys
        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {set(blocked)!r}:
                    raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
        sys.meta_path.insert(0, Blocker())
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )


def test_operators_and_layers_need_torch_alone():
    """Every module of the two folders loads and runs with transformers and triton blocked."""
    done = run_blocked(
        ["transformers", "triton", "accelerate"],
        """
        import importlib, pkgutil, torch
        import diffattn, diffattn.ops, diffattn.layers
        for package in (diffattn.ops, diffattn.layers):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if not module.name.startswith("diffattn.ops.diff_attention.triton"):
                    importlib.import_module(module.name)
        q, k, v = torch.randn(1, 3, 2, 2, 4), torch.randn(1, 3, 2, 2, 4), torch.randn(1, 3, 2, 8)
        for backend in diffattn.backends.names("diff_attention"):
            if backend in ("triton", "triton_decode", "hopper"):
                continue
            out = diffattn.diff_attention(q, k, v, torch.tensor(0.3), backend=backend)
            assert out.shape == (1, 3, 2, 8)
        layer = diffattn.SharedDiffAttention(8, 2, 4, shared_rank=2)
        layer(torch.randn(1, 3, 8)).sum().backward()
        assert not {"transformers", "triton", "accelerate"} & set(sys.modules)
        print("ran")
        """,
    )
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_records_and_report_need_no_torch():
    done = run_blocked(
        ["torch", "transformers"],
        """
        import importlib, pkgutil
        import diffattn, diffattn.records, diffattn.report
        for package in (diffattn.records, diffattn.report):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                importlib.import_module(module.name)
        print("ran")
        """,
    )
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_the_block_blocks():
    done = run_blocked(["torch"], "import diffattn.ops.masking")
    assert done.returncode != 0
    assert "blocked: torch" in done.stderr
