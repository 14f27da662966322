"""What a training run really allocates on a CPU, against what ``diffattn plan`` counts.

``python tools/measures/memory.py docs/records/memory.json`` trains every case of ``CASES`` for two
steps, each in fresh processes, and writes the record; what it holds already is kept and only
estimated again. Runs with shards are of two processes. Two measurements:

- allocated: the most that PyTorch's allocator had given out at once, by its profiler. It sees what
  operators take for themselves; this is what the estimate has to meet.
- resident: growth of the process's largest resident memory over that before the run, after a tiny
  run has loaded every library. It also holds what the C library keeps of freed blocks, and pages
  of the data files.
"""

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffattn.lab.training.config import RunConfig
    from diffattn.lab.training.prepare import PreparedData

TYPES = ("softmax", "diff", "diff_v2", "shared_diff")
SIZES: dict[str, dict[str, int]] = {
    "0.9M": {"hidden_size": 128, "layers": 4, "vocab_size": 1024, "sequences": 8, "passes": 1},
    "6M": {"hidden_size": 256, "layers": 6, "vocab_size": 4096, "sequences": 8, "passes": 1},
    "29M": {"hidden_size": 512, "layers": 8, "vocab_size": 8192, "sequences": 4, "passes": 2},
}
CASES: list[dict[str, Any]] = [
    {"type": kind, "size": size, "checkpointing": checkpointing}
    | {"precision": precision, "processes": processes}
    for size, kinds, precisions, processes in (
        ("0.9M", TYPES, ("float32", "bfloat16"), 1),
        ("6M", TYPES, ("float32",), 1),
        ("29M", ("softmax", "diff"), ("float32",), 1),
        ("29M", ("diff",), ("float32", "bfloat16"), 2),
    )
    for precision in precisions
    for kind in kinds
    for checkpointing in (False, True)
]


def run_config(case: dict[str, Any], *, tiny: bool = False) -> "RunConfig":
    """The run of a case; ``tiny`` loads the same code and takes no memory."""
    from diffattn.lab.training.config import DataConfig, EngineConfig, RunConfig, TrainConfig
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

    size = SIZES[case["size"]]
    hidden = 32 if tiny else size["hidden_size"]
    seq_len = 32 if tiny else 256
    softmax = DiffTransformerConfig(
        attention_type="softmax",
        vocab_size=300 if tiny else size["vocab_size"],
        hidden_size=hidden,
        num_hidden_layers=2 if tiny else size["layers"],
        num_heads=4 if tiny else hidden // 32,
        max_position_embeddings=seq_len,
    )
    return RunConfig(
        name="measured",
        model=softmax.twin(case["type"], match="heads").config,
        train=TrainConfig(
            num_steps=2,
            batch_tokens=size["sequences"] * size["passes"] * case["processes"] * seq_len,
            seq_len=seq_len,
            micro_batch_sequences=size["sequences"],
            warmup_steps=0,
            log_every=1,
            evaluate_every=2,
            evaluation_tokens=seq_len,
            precision=case["precision"],
        ),
        data=DataConfig(vocab_size=300),
        engine=EngineConfig(
            activation_checkpointing=case["checkpointing"],
            parallel="fsdp" if case["processes"] > 1 else "ddp",
        ),
    )


def estimated(case: dict[str, Any]) -> tuple[str, int]:
    """Backend, and bytes of a device at the peak of a step, as ``diffattn plan`` counts them."""
    from diffattn.lab.training.planning.plan import device_phases
    from diffattn.lab.training.planning.step_memory import largest, step_memory

    run = run_config(case)
    step = step_memory(
        run.model,
        run.train,
        sequences=SIZES[case["size"]]["sequences"],
        accumulates=SIZES[case["size"]]["passes"] > 1,
        device="cpu",
        checkpointing=run.engine.activation_checkpointing,
    )
    shared = device_phases(
        step, devices=case["processes"], shards=run.engine.shards(case["processes"])
    )
    return step.backend, sum(largest(shared).values())


def child(case: dict[str, Any], how: str, folder: Path) -> int:
    """Train a case in this process and return the bytes measured."""
    from diffattn.lab.training.config import DataConfig
    from diffattn.lab.training.distributed import from_first, joined
    from diffattn.lab.training.prepare import open_data, prepare_data

    texts = folder / "texts"

    def pack() -> None:
        texts.mkdir()
        rng = random.Random(0)
        for number in range(8):
            words = (rng.choice(("red", "cat", "sat", "mat")) for _ in range(3000))
            (texts / f"{number}.txt").write_text(" ".join(words), encoding="utf-8")
        prepare_data(
            DataConfig(source=str(texts), vocab_size=300, validation_fraction=0.3), folder / "data"
        )

    with joined():
        from_first(pack)
        return _trained(case, how, folder, open_data(folder / "data"))


def _trained(case: dict[str, Any], how: str, folder: Path, data: "PreparedData") -> int:
    import resource

    from torch.profiler import ProfilerActivity, profile

    from diffattn.lab.training.run import train

    train(run_config(case, tiny=True), data, folder / "tiny")
    if how == "resident":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        train(run_config(case), data, folder / "run")
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(run_config(case), data, folder / "run")
    return most_given_out(_allocations(profiler.profiler.kineto_results.experimental_event_tree()))


def _allocations(events: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """When, where and how many bytes were taken (above 0) or given back (below 0)."""
    from torch._C._profiler import _EventType

    for event in events:
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            yield event.start_time_ns, fields.ptr, fields.alloc_size
        yield from _allocations(event.children)


def most_given_out(allocations: Iterable[tuple[int, int, int]]) -> int:
    """The most bytes held at once.

    The profiler does not see what gloo's own threads give back. Of such a block only that its
    address is taken again tells, so blocks are told apart by address: a sum over all events would
    count it for ever.
    """
    held: dict[int, int] = {}
    now = most = 0
    for _, address, size in sorted(allocations):
        now -= held.pop(address, 0)
        if size > 0:
            held[address] = size
            now += size
        most = max(most, now)
    return most


def _name(case: dict[str, Any]) -> str:
    keys = ("type", "size", "checkpointing", "precision", "processes")
    return json.dumps([case[key] for key in keys])


def measured(case: dict[str, Any], how: str) -> int:
    """Bytes measured in fresh processes: of the one that needs most."""
    command = [sys.executable, __file__, "--child", json.dumps(case), how]
    processes = case["processes"]
    # A launch of one process would have the buckets of DistributedDataParallel too.
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577", "WORLD_SIZE": str(processes)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    launches = [group | rank for rank in ranks] if processes > 1 else [{}]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        children = [
            running.enter_context(
                subprocess.Popen(
                    [*command, folder],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"OMP_NUM_THREADS": "1"} | launch,
                )
            )
            for launch in launches
        ]
        message = [child.communicate()[0] for child in children]
        assert all(child.returncode == 0 for child in children)
    return max(int(text.splitlines()[-1]) for text in message)


def main() -> None:
    """Write the record."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=3, metavar=("CASE", "HOW", "FOLDER"))
    parser.add_argument("record", nargs="?", type=Path)
    options = parser.parse_args()
    if options.child:
        case, how, folder = options.child
        print(child(json.loads(case), how, Path(folder)))
        return
    rows = []
    kept = {}
    if options.record.exists():
        for row in json.loads(options.record.read_text(encoding="utf-8"))["runs"]:
            kept[_name(row)] = [row["allocated_bytes"], row["resident_bytes"]]
    for case in CASES:
        backend, needed = estimated(case)
        allocated, resident = kept.get(_name(case)) or (
            measured(case, how) for how in ("allocated", "resident")
        )
        measured_bytes = {"allocated_bytes": allocated, "resident_bytes": resident}
        row = case | {"backend": backend, "estimated_bytes": needed} | measured_bytes
        rows.append(row | {"estimated_over_allocated": round(needed / allocated, 4)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        today, version = str(datetime.date.today()), torch.__version__
        record = {"date": today, "torch": version, "device": "cpu", "runs": rows}
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
