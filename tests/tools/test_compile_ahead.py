"""``tools/compile_ahead.py``: kernels for a GPU that is not here, as a file."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

from tools.compile_ahead import pack

ROOT = Path(__file__).parents[2]


def compiled(cache, key, *names):
    folder = cache / key
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(name)
    paths = {name: str(folder / name) for name in ("k.json", "k.cubin", "k.ptx")}
    (folder / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))


def test_what_launches_read_is_packed(tmp_path):
    cache = tmp_path / "kernels"
    compiled(cache, "whole", "k.json", "k.cubin", "k.ptx")
    compiled(cache, "stopped", "k.json")
    assert pack(cache, tmp_path / "kernels.tar.xz") == 1
    with tarfile.open(tmp_path / "kernels.tar.xz") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there" / "kernels" / "whole"
    assert {path.name for path in there.iterdir()} == {"k.json", "k.cubin", "__grp__k.json"}
    assert (there / "k.cubin").read_text() == "k.cubin"
    kept = json.loads((there / "__grp__k.json").read_text())["child_paths"]
    assert kept == {name: str(cache / "whole" / name) for name in ("k.json", "k.cubin")}


@pytest.mark.scheduled
def test_launches_end_when_their_kernels_are_compiled(tmp_path):
    """And are found by the next process, without what was not packed."""
    code = """
import sys, time
from tools import compile_ahead
compile_ahead.pretend(90)
name, make = next(compile_ahead.searched(90))
began = time.monotonic()
make()
print(name, time.monotonic() - began)
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def run(cache):
        return subprocess.run(
            [sys.executable, "-c", code], env=environment | {"TRITON_CACHE_DIR": str(cache)},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    cache = tmp_path / "kernels"
    assert run(cache).startswith("diff v1 d 128 Dv 256 fwd ")
    kernels = {path.name for path in cache.glob("*/*.cubin")}
    assert {"_diff_attention_fwd_kernel.cubin", "_diff_attention_bwd_dq_kernel.cubin"} <= kernels
    for path in cache.glob("*/*.ptx"):
        path.unlink()
    before = {path: path.stat().st_mtime_ns for path in cache.glob("*/*.cubin")}
    run(cache)
    assert {path: path.stat().st_mtime_ns for path in cache.glob("*/*.cubin")} == before
