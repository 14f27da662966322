"""Imports point down the stack, files stay short, and torch alone runs the operators."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from import_graph import circles_of, import_graph, imports_of, public_home

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "diffattn"
TESTS = ROOT / "tests"
TOOLS = ROOT / "tools"

RUNNERS = {"lab.training", "lab.evaluation", "lab.analysis", "lab.benchmark"}
LIBRARY = {"ops", "layers", "models", "probes", "files"}
BELOW_RUNNERS = {"lab.inference", "lab.data", "lab.records", "lab.stats", *LIBRARY}
MAY_IMPORT: dict[str, set[str]] = {
    "ops": set(),
    "files": set(),
    "layers": {"ops"},
    "models": {"layers", "ops", "files"},
    "probes": {"models", "layers", "ops"},
    "lab.data": {"lab.records", "files"},
    "lab.records": {"files"},
    "lab.stats": set(),
    "lab.testing": {"ops"},
    "lab.layer_check": {"layers", "ops"},
    "lab.inference": {"lab.data", "lab.records", *LIBRARY},
    "lab.training": BELOW_RUNNERS,
    "lab.evaluation": BELOW_RUNNERS,
    "lab.analysis": BELOW_RUNNERS,
    "lab.benchmark": BELOW_RUNNERS | {"lab.testing"},
    "lab.catalog": {"models", "lab.data", *RUNNERS},  # of the runners their configs only
    "lab.studies": RUNNERS | BELOW_RUNNERS | {"lab.catalog", "lab.report"},
    "lab.inspection": {"lab.evaluation", "lab.report", *BELOW_RUNNERS},  # maps become a page
    "lab.report": {"lab.records", "lab.stats", "lab.catalog", "files"},  # of it models alone
    "lab.cli": {
        "lab.studies", "lab.inspection", "lab.catalog", "lab.report", "lab.testing",
        "lab.layer_check",
        *RUNNERS, *BELOW_RUNNERS,
    },
}  # fmt: skip
LAB_PACKAGES = ("accelerate", "scipy", "jinja2", "plotly", "typer", "rich")
OPTIONAL = {"triton", "lm_eval", "rouge_score", "datasets", "pytest"}
WINGS = {
    "lab.evaluation": {"perplexity", "lm_tasks", "long_context", "icl", "hallucination", "judge"},
    "lab.report": {
        "analysis", "study", "sections", "evaluation", "benchmarks", "claims", "viewer",
    },
    "lab.studies": {"text", "recall", "gradient_flow"},
}  # fmt: skip
"""Folders of one room each: a wing imports no other."""
OF_THE_ROOT = {"lab.evaluation": {"protocol", "metrics"}, "lab.report": {"page", "paper"}}
"""What wings may import of the folder they are in."""
TORCH_ONLY = {"ops", "layers"}
WITHOUT_TORCH = {"lab.records", "lab.report", "lab.stats", "files"}
ONE_FILE = "remote_code/modeling_diff_transformer.py"
KERNELS = ("ops/triton/", "ops/hopper/")
LINES_OF_SOURCE = 54_635
BACKENDS = {"reference", "chunked", "composed", "flex", "decode"}
OPERATORS = {"custom_op"}  # the door to the kernels


def place_of(parts):
    """The floor a module is on: a folder of the library, or ``lab.`` and one of the lab's."""
    return ".".join(parts[:2]) if parts[0] == "lab" else parts[0]


def arrow_fault(path, imported):
    """Why the file at ``path`` (from ``src/diffattn``) may not import that, or ``None``."""
    *folders, _ = path.split("/")
    folder = place_of(folders) if folders and folders != ["lab"] else ""
    top = imported.name.split(".")[0]
    if top != "diffattn":
        return package_fault(path, folder, imported)
    _, *target = public_home(imported.name).split(".")
    if not target or target[0] in ("errors", "__version__"):
        return None
    if not folder:
        return None if path == "__main__.py" and target[:2] == ["lab", "cli"] else "top level"
    if folder not in MAY_IMPORT:
        return f"folder {folder} is not in the map"
    place, inner = place_of(target), target[1 + (target[0] == "lab") :]
    if place == folder:
        return backend_fault(path, inner) or wing_fault(path, folder, inner)
    if place not in MAY_IMPORT[folder]:
        return f"{folder} may not import {place}"
    is_config = bool(inner) and inner[0].endswith("config")
    if folder == "lab.catalog" and place in RUNNERS and not is_config:
        return "recipes import the runners' configs only"
    if folder == "lab.cli" and imported.at_top:
        return "cli imports inside the command that needs it"
    return None


def backend_fault(path, target):
    """Backends never import one another; the registered operators import their kernels."""
    backend = path.removeprefix("ops/backends/").removesuffix(".py")
    if not path.startswith("ops/backends/") or backend not in BACKENDS | OPERATORS:
        return None
    if target[0] in ("triton", "hopper") and backend not in OPERATORS:
        return f"backend {backend} may not import kernels"
    if target[:1] == ["backends"] and len(target) > 1 and target[1] in BACKENDS - {backend}:
        return f"backend {backend} may not import backend {target[1]}"
    return None


def wing_fault(path, folder, target):
    """A wing imports itself, and of the root what is named above."""
    wing = path.split("/")[2] if folder.startswith("lab.") else ""
    if folder == "lab.report" and wing == "page" and target and target[0] in WINGS[folder]:
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
    if top == "tools":
        return "the tools are not in the wheel"
    if top in OPTIONAL:
        if imported.at_top and not path.startswith(KERNELS):
            return f"{top} is optional: import it inside the function that needs it"
        return None
    if folder in TORCH_ONLY and top != "torch":
        return f"{folder} imports torch only"
    if folder in ("files", "lab.records"):
        return f"{folder} imports the standard library only"
    if folder in WITHOUT_TORCH and top in ("torch", "transformers", "accelerate"):
        return f"{folder} works without {top}"
    return None


FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
GRAPH = import_graph({path: (SOURCE / path).read_text(encoding="utf-8") for path in FILES})
LIMITED = [path for folder in (SOURCE, TESTS, TOOLS) for path in folder.rglob("*.py")]


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
        ("ops/x.py", "import transformers", "ops imports torch only"),
        ("ops/inputs/x.py", "from ...models import presets", "ops may not import models"),
        ("ops/x.py", "def f():\n    import diffattn.models.presets", "ops may not import models"),
        ("ops/x.py", "from diffattn import DiffAttention", "ops may not import layers"),
        ("ops/x.py", "importlib.import_module('diffattn.layers')", "ops may not import layers"),
        ("lab/catalog/recipes/x.py", "from diffattn.lab.training.run import train",
         "recipes import the runners' configs only"),
        ("lab/report/x.py", "def f():\n    import torch", "lab.report works without torch"),
        ("lab/testing/x.py", "import pytest",
         "pytest is optional: import it inside the function that needs it"),
        ("lab/data/x.py", "async def f():\n    import datasets", None),
        ("lab/cli/x.py", "from diffattn.lab.studies import reproduce",
         "cli imports inside the command that needs it"),
        ("lab/cli/x.py", "def f():\n    from tools import tune", "the tools are not in the wheel"),
        ("helpers/x.py", "from diffattn.ops import attention", "folder helpers is not in the map"),
        ("errors.py", "from diffattn.ops import attention", "top level"),
        ("ops/backends/composed.py", "from diffattn.ops.backends import reference",
         "backend composed may not import backend reference"),
        ("ops/backends/chunked.py", "from diffattn.ops.triton import forward",
         "backend chunked may not import kernels"),
        ("lab/evaluation/icl/x.py", "from diffattn.lab.evaluation.runner import evaluate",
         "wing icl may not import runner of the root"),
        ("lab/report/page/x.py", "from diffattn.lab.report.study import files",
         "page may not import wings"),
    ],
)  # fmt: skip
def test_the_rule_itself(path, source, fault):
    """What is allowed stands in the package."""
    package = ".".join(["diffattn", *path.split("/")[:-1]])
    (imported,) = imports_of(source, package)
    assert arrow_fault(path, imported) == fault


def test_no_import_circles():
    """At the top or inside functions."""
    assert not circles_of(GRAPH)


def test_no_circles_of_folders():
    """Within a folder, the folders and files beside one another import in one direction."""
    folders = {name.rsplit(".", level)[0] for name in GRAPH for level in range(1, name.count("."))}
    for folder in folders:
        depth = folder.count(".") + 2
        children: dict[str, set[str]] = {}
        for name, imported in GRAPH.items():
            inside = {other for other in imported if other.startswith(f"{folder}.")}
            if not name.startswith(f"{folder}."):
                continue
            child, *others = (".".join(entry.split(".")[:depth]) for entry in (name, *inside))
            children.setdefault(child, set()).update(set(others) - {child})
        for other in set().union(*children.values()) - children.keys():
            children[other] = set()
        assert not circles_of(children), folder


@pytest.mark.parametrize(
    ("source", "circle"),
    [
        ("def f():\n    from .. import a", {"a", "b", "b.c"}),
        ("from diffattn import b", {"b", "b.c"}),
        ("from diffattn.d import x", None),
    ],
)
def test_the_circle_rule_itself(source, circle):
    sources = {"__init__.py": "", "a.py": "import diffattn.b", "d.py": "", "b/c.py": source}
    sources["b/__init__.py"] = "from diffattn.b import c"
    expected = {frozenset(f"diffattn.{name}" for name in circle)} if circle else set()
    assert circles_of(import_graph(sources)) == expected


@pytest.mark.parametrize("package", ["ops", "ops/inputs", "ops/backends", "layers", "lab/testing"])
def test_a_package_holds_no_code(package):
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    assert len(tree.body) == 1


def test_files_are_short():
    """400 lines, Triton kernels and the model that is copied as one file 500; the tests too."""
    long = {}
    for path in LIMITED:
        name = path.relative_to(ROOT).as_posix()
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        if num_lines > (500 if any(part in name for part in (*KERNELS, ONE_FILE)) else 400):
            long[name] = num_lines
    assert not long


def test_functions_are_short():
    """60 lines, with the docstring; the tests too."""
    long = {
        f"{path.relative_to(ROOT).as_posix()}: {node.name}": size
        for path in LIMITED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := node.end_lineno - node.lineno + 1) > 60
    }
    assert not long


def test_the_source_only_shrinks():
    """A change that must add lines raises the number, and says why in its commit."""
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py"))
    assert lines <= LINES_OF_SOURCE


def test_folders_are_small():
    """At most 20 files; a folder that grows beyond becomes wings."""
    sizes = {
        folder.relative_to(ROOT).as_posix(): len(list(folder.glob("*.py")))
        for folder in [SOURCE, *SOURCE.rglob("*/"), TOOLS]
    }
    assert not {name: size for name, size in sizes.items() if size > 20}


def run_blocked(blocked, code):
    """Run ``code`` in a fresh process that cannot import the packages in ``blocked``."""
    prelude = f"""
        import sys
        from importlib.machinery import PathFinder
        find_spec = PathFinder.find_spec
        def find_unless_blocked(name, path=None, target=None):
            return None if name in {set(blocked)!r} else find_spec(name, path, target)
        PathFinder.find_spec = find_unless_blocked
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
                if not module.name.startswith(("diffattn.ops.triton", "diffattn.ops.hopper")):
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
        import diffattn, diffattn.lab.records, diffattn.lab.report
        for package in (diffattn.lab.records, diffattn.lab.report):
            for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                importlib.import_module(module.name)
        record = diffattn.lab.records.run.RunRecord(name="x", config={}, seed=0)
        assert record.versions["python"]
        try:
            diffattn.DiffAttention
        except ImportError:
            print("ran")
        """,
    )
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_the_library_needs_no_lab(tmp_path):
    """Every module loads, and every part of the library runs, where the lab is not installed."""
    done = run_blocked(
        [*LAB_PACKAGES, "diffattn.lab"],
        f"""
        sys.path.insert(0, {str(TESTS)!r})
        from install.library import use
        use({str(tmp_path)!r})
        """,
    )
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_the_command_says_how_to_add_the_lab():
    done = run_blocked(["typer"], "import diffattn.__main__ as command; command.main()")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr == (
        "diffattn: the command line and the lab need typer. Run: pip install 'diffattn[lab]'\n"
    )
    done = run_blocked(["scipy", "rich"], "import diffattn; diffattn.reproduce")
    assert done.stderr.endswith("need scipy, rich. Run: pip install 'diffattn[lab]'\n")


def test_a_machine_without_plotly_trains_and_measures():
    """As those that are lent: what draws pages, and other people's data sets, are not there."""
    done = run_blocked(
        ["plotly", "datasets", "lm_eval"],
        f"""
        sys.path.insert(0, {str(TESTS.parent)!r})
        import tools.gpu_session, tools.lease
        import diffattn.lab.cli.reproduce, diffattn.lab.training.settings
        from diffattn.lab.report.page.render import _chart_script
        try:
            _chart_script()
        except diffattn.DiffAttnError as error:
            print(error)
        """,
    )
    assert done.stdout == (
        "report: a page needs plotly, got none. Run: pip install 'diffattn[lab]'\n"
    ), done.stderr
