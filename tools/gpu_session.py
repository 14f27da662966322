"""Test, tune and time the kernels on a GPU, in one command and half an hour.

    PYTHONPATH=src python -m tools.gpu_session --out FOLDER

Stages run in the order of their value: correctness, attention, tuning, models, decoding, a matched
pair, the Hopper kernel; the last one trains the study for leases as long as there is time. Each
runs in processes of its own, has a limit and writes its record to ``FOLDER/STAGE.json`` as soon as
it ends; a stage that has its record is not run again, also not one that failed or overran, unless
with ``--again``. Where a command may take ten minutes at most, ``--within 560`` starts no stage
whose limit does not fit into what is left of that time, and the same command again goes on behind
it. Kernels are timed only where the tests of their numbers passed, and after the tuning as it found
best: a record's facts say by which table of launches.
``--plan`` prints the stages and their limits, ``--stages 1,2`` chooses. ``--scale tiny --device
cpu`` shows that all of it runs: it measures nothing. ``--accept FOLDER`` prints the row of the
table of tested GPUs, if the tests of the kernels' numbers passed.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()  # what is loaded from here on takes seconds

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.files.io import write_json
from diffattn.lab.benchmark.config import require_cuda
from diffattn.lab.benchmark.models import CUT, SIZES
from diffattn.lab.records.results import BenchResult
from diffattn.lab.records.run import git_state
from diffattn.lab.report.paper import THROUGHPUT_SOURCE, throughput
from diffattn.models import presets
from tools import gpu_plan, stages
from tools.gpu_plan import JUDGE

ROOT = Path(__file__).parents[1]
AUTOMATIC = ("triton", "triton_decode")
"""Kernels that ``auto`` chooses, dense and through pages."""


def machine(device: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Versions of triton and its assembler, and what the driver says of the GPU."""
    versions = {"triton": metadata.version("triton")}
    if device == "cpu":
        return versions, {}
    import torch

    properties = torch.cuda.get_device_properties(0)
    versions["ptxas"] = ptxas_version(10 * properties.major + properties.minor)
    return versions, {
        "gpu": properties.name, "gpu_bytes": properties.total_memory, "cuda": torch.version.cuda,
        "capability": [properties.major, properties.minor],
    }  # fmt: skip


def ptxas_version(capability: int) -> str:
    """Version of the assembler that triton calls for this chip, for example ``12.8.93``."""
    from triton.backends.nvidia.compiler import get_ptxas

    # triton itself knows major and minor alone.
    command = [get_ptxas(capability).path, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    version = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    assert version, f"the version of an assembler, got {output!r}"
    return version[1]


def accepted_row(record: dict[str, Any]) -> str:
    """The row of ``docs/reference/verified_devices.md`` for a correctness record.

    It counts the tests that compare the numbers of the kernels that ``auto`` chooses.
    """
    hardware, versions, facts = record["hardware"], record["versions"], record["facts"]
    if record["outcome"] not in (stages.PASSED, stages.FAILED) or "gpu" not in hardware:
        raise CheckpointError(
            f"{JUDGE}.json: must be of a whole run on a GPU, got {record['outcome']!r} on "
            f"{hardware.get('gpu', 'a CPU')}."
        )
    if record["commit"] is None:
        raise CheckpointError(
            f"{JUDGE}.json: must name the commit of the code, got none: its session ran without a "
            "checkout and without --commit."
        )
    kernels = [facts["kernels"][kernel] for kernel in AUTOMATIC]
    for name, counts in zip(AUTOMATIC, kernels, strict=True):
        if counts["failed"] or not counts["passed"]:
            raise CheckpointError(
                f"{JUDGE}.json: tests of {name!r} must pass, got {counts['failed']} failed and "
                f"{counts['passed']} passed."
            )
    counts = [str(sum(c[name] for c in kernels)) for name in ("passed", "failed", "skipped")]
    cells = [
        hardware["gpu"],
        ".".join(map(str, hardware["capability"])),
        *(versions[name] for name in ("triton", "torch", "ptxas")),
        f"`{record['commit'][:7]}`",
        record["date"][:10],
        *counts,
    ]
    return f"| {' | '.join(cells)} |"


def beside_table_7(result: BenchResult) -> list[dict[str, Any]]:
    """Tokens per second of both models at full depth, from two depths, beside those printed.

    Seconds grow by the same amount with every layer; what two depths differ by is layers alone.
    """
    seconds = {
        (case.shape["size"], case.shape["N"], case.mode, row.contender): row.seconds.median
        for case in result.cases
        if case.suite == "models"
        for row in case.rows
        if row.seconds is not None
    }
    rows = []
    for (preset, length, mode), printed in throughput().items():
        shallow, deep = CUT[preset]
        depth = presets.preset_settings(preset).num_hidden_layers
        tokens = length * SIZES[preset].batch
        measured = {}
        for name in ("softmax_sdpa", "softmax", "diff"):
            keys = [(f"{preset}-{n}-layers", length, mode, name) for n in (shallow, deep)]
            if all(key in seconds for key in keys):
                first, second = (seconds[key] for key in keys)
                per_layer = (second - first) / (deep - shallow)
                measured[name] = tokens / (first + (depth - shallow) * per_layer)
        rows.append({
            "preset": preset, "tokens": length, "mode": mode, "tokens_per_second": measured,
            "printed": printed._asdict(), "source": THROUGHPUT_SOURCE,
        })  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the session, or what fits of it; 1 if a stage failed, overran or was refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_session"))
    parser.add_argument("--stages", help="numbers or names, separated by commas [all]")
    parser.add_argument("--scale", choices=gpu_plan.SCALES, default="full")
    parser.add_argument("--device", choices=gpu_plan.DEVICES, default="cuda")
    parser.add_argument("--again", action="store_true",
                        help="run stages again that have a record, also those that failed or "
                        "overran")  # fmt: skip
    parser.add_argument("--within", type=float, metavar="SECONDS",
                        help="start no stage whose limit exceeds what is left of these seconds"
                        )  # fmt: skip
    parser.add_argument("--limit", action="append", default=[], metavar="STAGE=SECONDS",
                        help="another limit for one stage than planned (repeatable)")  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="print the stages and stop")
    parser.add_argument("--commit", help="commit of the code, without a checkout [git's]")
    parser.add_argument("--accept", type=Path, metavar="FOLDER", help="print the row of its GPU")
    options = parser.parse_args(arguments)
    try:
        if options.accept is not None:
            print(accepted_row(stages.read_stage(options.accept / f"{JUDGE}.json")))
            return 0
        out = options.out.absolute()
        planned = stages.with_limits(
            gpu_plan.gpu_stages(options.scale, options.device, ROOT, out), options.limit
        )
        chosen = stages.choose(planned, options.stages)
        if options.plan:
            for number, stage in enumerate(planned, 1):
                mark = "" if stage in chosen else " (left out)"
                print(f"{number} {stage.name}: {stage.title}, {stage.limit_seconds:g} s{mark}")
            print(f"at most {sum(stage.limit_seconds for stage in chosen) / 60:g} minutes")
            return 0
        # Whoever ends the session ends the running stage too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        commit = options.commit or git_state()[0]
        if options.scale == "full" and not re.fullmatch("[0-9a-f]{7,40}", commit or ""):
            raise ConfigError(
                "commit: must be 7 to 40 hexadecimal digits, and given where there is no checkout, "
                f"got {commit}."
            )
        if options.device == "cuda":
            require_cuda()
        versions, hardware = machine(options.device)
        records = stages.run_stages(
            chosen, out, again=options.again, commit=commit, versions=versions, machine=hardware,
            until=None if options.within is None else BEGAN + options.within,
        )  # fmt: skip
    except DiffAttnError as error:
        print(error, file=sys.stderr)
        return 2
    measured = out / "bench" / "models.json"
    if measured.exists():
        rows = beside_table_7(BenchResult.read(measured))
        write_json(out / "table_7.json", {"schema": 1, "rows": rows})
    good = (stages.PASSED, stages.STOPPED)
    return 0 if all(record["outcome"] in good for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
