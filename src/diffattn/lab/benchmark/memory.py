"""Peak memory of one contender's forward and backward pass, in addition to its inputs.

On a CPU it is the peak of resident memory in a separate process, so that memory of other contenders
does not count. A warm-up on the same shape comes first, since the first call of a shape also
compiles matrix products, which the library keeps. On a GPU PyTorch counts the allocated bytes.
"""

import gc
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contenders import Contender
from diffattn.lab.records.memory import give_back, highest, reset_highest, resident

# Freed blocks go back to the system at once; otherwise they still count as resident memory.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """Bytes in addition to the inputs."""

    peak_bytes: int
    held_bytes: int | None
    """Bytes held between forward and backward, output included; ``None`` if unknown."""


def peak_memory(case: Case, contender: Contender) -> Peak | None:
    """Measure a contender's forward and backward pass on a shape.

    ``None`` if the measuring process (CPU only) failed, for example because memory ran out.
    """
    if case.device == "cuda":
        return _cuda_peak(contender)
    package_root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    spec = json.dumps({"case": case.plain(), "name": contender.name, "role": contender.role})
    done = subprocess.run(
        [sys.executable, "-m", "diffattn.lab.benchmark.memory", spec],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | _ALLOCATOR | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    return None if done.returncode else Peak(**json.loads(done.stdout.splitlines()[-1]))


def _cuda_peak(contender: Contender) -> Peak:
    torch.cuda.synchronize()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = contender.forward()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    contender.backward(out)
    torch.cuda.synchronize()
    return Peak(peak_bytes=torch.cuda.max_memory_allocated() - before, held_bytes=held)


def _cpu_peak(case: Case, name: str, role: str) -> Peak:
    """Measure in this process, which must be a new one."""
    from diffattn.lab.benchmark.suites import contenders
    from diffattn.ops.backends.chunk_layout import release_memory

    torch.set_num_threads(1)

    contender = next(c for c in contenders(case) if (c.name, c.role) == (name, role))
    contender.backward(contender.forward())
    release_memory()
    give_back()
    can_reset = reset_highest()
    before = resident("VmRSS") if can_reset else highest()
    out = contender.forward()
    give_back()
    held = resident("VmRSS") - before if can_reset else None
    contender.backward(out)
    peak = highest() - before
    return Peak(peak_bytes=max(0, peak), held_bytes=held if held is None else max(0, held))


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(asdict(_cpu_peak(Case(**request["case"]), request["name"], request["role"]))))
