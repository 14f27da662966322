"""Compile the kernels of a GPU session on a machine without a GPU.

    PYTHONPATH=src python -m tools.compile_ahead tune tests --pack kernels.tar.xz

Most of a search for launches, and of the tests of the kernels, is compilation: on an H100 lent for
minutes the search took 92 s with 492 of 514 kernels compiled before, and the tests 106 s with 1,442
of 2,037 (those of the search among them). On the GPU's machine unpack the file at the same path as
here and name its folder by ``TRITON_CACHE_DIR``.
Triton finds a kernel there if its own version, that of its assembler and this checkout's kernels
are the same, and Python's minor version is; else it compiles as if nothing had been brought.

Here a CPU tensor passes for one on the GPU, and a launch ends when its kernel is compiled.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
AHEAD_OF = "DIFFATTN_AHEAD_OF"
"""In the environment of the tests: ten times the compute capability."""
NAMES = "DIFFATTN_TEST_NAMES"
"""In the environment of the tests: a file of the tests that a GPU's machine would run, by line."""
KEPT = (".json", ".cubin")
"""Files of a compiled kernel that a launch reads."""
MULTIPROCESSORS = 132  # of an H100: into how many parts a group of heads is split depends on it


def pretend(capability: int) -> None:
    """Have Triton and the package take CPU tensors for CUDA tensors, and compile only.

    Before anything of the package is loaded but this. ``capability`` is ten times the compute
    capability.
    """
    os.environ.pop("TRITON_INTERPRET", None)
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    major, minor = divmod(capability, 10)
    properties = SimpleNamespace(
        major=major, minor=minor, multi_processor_count=MULTIPROCESSORS, name="pretended",
        shared_memory_per_block_optin=232_448, total_memory=80 * 2**30,
    )  # fmt: skip
    for name, value in {
        "is_available": True, "device_count": 1, "get_device_capability": (major, minor),
        "get_device_properties": properties,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, lambda device=None, value=value: value)

    class Driver:
        """The questions of a launch before it compiles."""

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability, 32)

    driver.set_active(Driver())
    launch = jit.JITFunction.run

    def compile_only(self: Any, *args: Any, **options: Any) -> object:
        return launch(self, *args, **(options | {"warmup": True}))

    jit.JITFunction.run = compile_only
    from diffattn.ops.inputs import kernel_support

    kernel_support.devices = lambda: ("cpu", "cuda", "meta")
    kernel_support.compute_capability = lambda device: (major, minor)


def searched(capability: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that ``tools/tune.py`` launches: a name and what compiles it."""
    import torch

    from diffattn.ops.triton import configs
    from tools import tune
    from tools.measures.candidates import CANDIDATES, launched_with

    config = tune.TuneConfig(device="cpu")
    row = configs.capability_row(*divmod(capability, 10))

    def passes(small: Any, rows: Any) -> None:
        with launched_with(rows):
            small.backward(small.forward())
            with torch.no_grad():
                small.forward()

    for op, head_dim in ((op, d) for op in tune.KERNELS for d in config.head_dims):
        for attention in ("v1",) if op else tune.ATTENTIONS:
            subject = tune.subject_of(config, row, op, attention, head_dim)
            for mode in tune.PASSES:
                forms = tune.forms_of(subject, mode)
                no_tiles: dict[str, Any] = dict.fromkeys(chain(*forms))
                for form in forms:
                    seeds = {x: subject.seed(x) or CANDIDATES[x][0] for x in form}
                    for launch in form:
                        for tile in CANDIDATES[launch]:
                            rows = no_tiles | seeds | {launch: tile}
                            yield f"{subject} {launch}", partial(passes, subject.small, rows)
                    yield f"{subject} {mode}", partial(passes, subject.small, no_tiles | seeds)


def compile_search(capability: int) -> None:
    """Compile all launches of the search. Launches that do not compile are counted."""
    pretend(capability)
    refused = 0
    for done, (name, make) in enumerate(searched(capability), 1):
        try:
            make()
        except Exception as error:  # compilers raise errors of every class
            refused += 1
            print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
        if done % 25 == 0:
            print(f"{done} launches, the last of {name}", flush=True)
    print(f"{done} launches, {refused} refused")


def compile_tests(capability: int, processes: int) -> None:
    """The tests of the kernels' numbers as far as their launches: none of them can pass."""
    tests = ROOT / "tests"
    paths = [tests / "gpu", tests / "ops" / "triton", *sorted((tests / "ops").glob("test_*.py"))]
    common = ["-p", "no:cacheprovider", "-W", "default", *map(str, paths)]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    folders = [str(ROOT / "src"), str(ROOT), str(tests / "gpu")]
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "pretended_cuda",
         "-m", "gpu and not scheduled", "-k", "not hopper", *common],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    names = Path(os.environ["TRITON_CACHE_DIR"]) / "tests.txt"
    names.write_text(
        "".join(f"{line[4:]}\n" for line in listed.splitlines() if line.startswith("GPU ")),
        encoding="utf-8",
    )
    environment |= {NAMES: str(names), AHEAD_OF: str(capability)}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "tools.compile_ahead",
         "-n", str(processes), "--dist", "worksteal", "-m", "scheduled or not scheduled", *common],
        cwd=ROOT, env=environment, check=False,
    )  # fmt: skip


def _run_only(op: Any, inputs: Any, *, backend: str, gradients: bool = True, **_: Any) -> dict:
    import torch

    from diffattn.lab.testing.assertions import exact_weights, output_and_gradients

    out = op(*inputs.tensors().values(), backend=backend, **inputs.options)
    if gradients and torch.is_grad_enabled():
        output_and_gradients(out, inputs.tensors(), exact_weights(out))
        with torch.no_grad():
            op(*inputs.tensors().values(), backend=backend, **inputs.options)
    return {}


def _run_softmax_only(exact: Any, run: Callable[[], Any], gradients: bool) -> dict[str, bool]:
    import torch

    torch.autograd.grad(run().sum(), tuple(exact.leaves.values()))
    return {"passed": True}


def become_a_plugin() -> None:
    """Become a plugin of pytest as soon as it is imported: the first test module needs a GPU."""
    pretend(int(os.environ[AHEAD_OF]))
    from diffattn.lab.benchmark import checking
    from diffattn.lab.testing import assertions

    comparisons: Any = assertions
    checks: Any = checking.Exact
    comparisons.assert_close_to_reference = comparisons.compare_to_reference = _run_only
    checks.check = _run_softmax_only


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep what a GPU's machine would run of the kernels, on the tensors that there are."""
    from tools.outcomes import kernel_of

    names_to_run = set(Path(os.environ[NAMES]).read_text(encoding="utf-8").splitlines())
    items[:] = [
        item
        for item in items
        if "[cuda" not in item.nodeid
        and kernel_of(item.nodeid) is not None
        and item.nodeid.replace("[cpu", "[cuda", 1) in names_to_run
    ]


def pack(cache: Path, file: Path) -> int:
    """Write what launches read of a cache; returns the number of kernels."""
    num = 0
    with tarfile.open(file, "w:xz") as archive:
        for group in sorted(cache.glob("*/__grp__*.json")):
            paths = json.loads(group.read_text(encoding="utf-8"))["child_paths"]
            kept = {name: path for name, path in paths.items() if name.endswith(KEPT)}
            if not all(map(os.path.exists, kept.values())):
                continue  # the compiler was stopped
            for name, path in kept.items():
                archive.add(path, f"{cache.name}/{group.parent.name}/{name}")
            text = json.dumps({"child_paths": kept}).encode()
            entry = tarfile.TarInfo(f"{cache.name}/{group.parent.name}/{group.name}")
            entry.size = len(text)
            archive.addfile(entry, BytesIO(text))
            num += 1
    return num


def main(arguments: list[str] | None = None) -> int:
    """Compile what is asked for, then pack."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="+", choices=("tune", "tests"))
    parser.add_argument("--capability", type=int, default=90, help="times ten [90: Hopper]")
    parser.add_argument("--cache", type=Path, default=Path("/tmp/diffattn_kernels"),
                        help="cache, at the same path there [/tmp/diffattn_kernels]")  # fmt: skip
    parser.add_argument("--pack", type=Path, metavar="FILE", help="a .tar.xz for that machine")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="for tests")
    options = parser.parse_args(arguments)
    if "tests" in options.what and find_spec("xdist") is None:
        parser.error("tests: needs pytest-xdist, got none installed")
    cache = options.cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    began = time.monotonic()
    if "tests" in options.what:  # in processes of their own
        compile_tests(options.capability, options.processes)
    if "tune" in options.what:
        compile_search(options.capability)
    print(f"{len(list(cache.glob('*/*.cubin')))} kernels, {time.monotonic() - began:.0f} s")
    if options.pack:
        print(f"{pack(cache, options.pack)} kernels packed: {options.pack}")
    return 0


if AHEAD_OF in os.environ:
    become_a_plugin()
if __name__ == "__main__":
    sys.exit(main())
