"""Peak memory of one contender's forward and backward pass, in addition to its inputs.

On a CPU it is the peak of resident memory in a separate process, so that memory of other contenders
does not count. On a GPU PyTorch counts the allocated bytes.
"""

import gc
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from diffattn.lab.benchmark.config import Case
from diffattn.lab.benchmark.contenders import Contender, operator_contenders
from diffattn.lab.records.memory import give_back, highest, reset_highest, resident

# Freed blocks go back to the system at once; otherwise they still count as resident memory.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def peak_memory(case: Case, contender: Contender) -> dict[str, int | None]:
    """``peak_bytes`` of both passes; ``held_bytes`` between them, ``None`` if unknown.

    Empty if the measuring process (CPU only) failed, for example because memory ran out.
    """
    if case.device == "cuda":
        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = contender.forward()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        contender.backward(out)
        torch.cuda.synchronize()
        return {"peak_bytes": torch.cuda.max_memory_allocated() - before, "held_bytes": held}
    package_root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    spec = json.dumps({"case": asdict(case), "name": contender.name, "role": contender.role})
    done = subprocess.run(
        [sys.executable, "-m", "diffattn.lab.benchmark.memory", spec],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | _ALLOCATOR | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )
    return {} if done.returncode else dict(json.loads(done.stdout.splitlines()[-1]))


def _cpu_peak(case: Case, name: str, role: str) -> dict[str, int | None]:
    from diffattn.ops.backends.chunk_layout import release_memory

    torch.set_num_threads(1)
    contender = next(c for c in operator_contenders(case) if (c.name, c.role) == (name, role))
    contender.backward(contender.forward())  # compiles matrix products, which the library keeps
    release_memory()
    give_back()
    can_reset = reset_highest()
    before = resident("VmRSS") if can_reset else highest()
    out = contender.forward()
    give_back()
    held = max(0, resident("VmRSS") - before) if can_reset else None
    contender.backward(out)
    return {"peak_bytes": max(0, highest() - before), "held_bytes": held}


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(_cpu_peak(Case(**request["case"]), request["name"], request["role"])))
