"""Several processes that train one model together, started by torchrun."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.lab.training.config import TrainConfig

Made = TypeVar("Made")

_SEEN_SECONDS = 120.0
# The process group that sends Python objects. It uses gloo, also where tensors use NCCL.
_objects: Any = None


def num_processes() -> int:
    """Number of processes that torchrun launched together; 1 without torchrun."""
    given = os.environ.get("WORLD_SIZE", "1")
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"training: WORLD_SIZE must be a number of processes, got {given!r}.")
    return int(given)


def process_index() -> int:
    """Index of this process among all of them, from 0."""
    return 0 if num_processes() == 1 else int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Whether this process is the first, which writes records, messages and progress."""
    return process_index() == 0


def local_processes() -> int:
    """Processes of the launch on this machine, which share its memory; 1 without a launch."""
    return 1 if num_processes() == 1 else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def run_device() -> str:
    """Device type of a run. Apple's GPU is left out: it has no float64 for the losses."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def take_gpu() -> None:
    """Make this process's GPU the current one, before any other use of a GPU: a process that
    touches the first GPU holds some of its memory until the process ends."""
    if num_processes() == 1:
        return
    needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in needed if name not in os.environ]:
        raise ConfigError(
            f"training: WORLD_SIZE={num_processes()} must come from torchrun, got no {missing[0]}."
        )
    if run_device() != "cuda":
        return
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= gpus:
        raise ConfigError(
            f"training: torchrun --nproc-per-node must be at most {gpus}, the GPUs of this "
            f"machine, got a process with LOCAL_RANK={local}."
        )
    torch.cuda.set_device(local)


def require_one_process(activity: str) -> None:
    """Refuse a distributed launch of an activity."""
    if num_processes() > 1:
        raise ConfigError(
            f"training: {activity} must have one process, got WORLD_SIZE={num_processes()}."
        )


def micro_batch(config: TrainConfig) -> int:
    """Sequences per forward pass of one process of this launch."""
    processes = num_processes()
    return config.micro_batch(processes, f"training with WORLD_SIZE={processes}")


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join the process group of the launch, if there are other processes and it is not joined."""
    global _objects
    if num_processes() == 1 or dist.is_initialized():
        yield
        return
    take_gpu()
    dist.init_process_group("cpu:gloo,cuda:nccl" if run_device() == "cuda" else "gloo")
    try:
        # The others wait while the first process packs a corpus or hashes a checkpoint.
        _objects = dist.new_group(backend="gloo", timeout=timedelta(days=1))
        yield
    finally:
        _objects = None
    # Not after an error: NCCL would wait up to ten minutes for the other processes. The group ends
    # with this process.
    dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until every process has called this function."""
    if _objects is not None:
        dist.barrier(group=_objects)


def from_first(make: Callable[[], Made]) -> Made:
    """Call ``make`` on the first process. Its result, as a pickle, or its error comes to all."""
    if _objects is None:
        return make()
    sent: list[Any] = [None]
    with together():
        if is_first():
            sent[0] = make()
    dist.broadcast_object_list(sent, src=0, group=_objects)
    made: Made = sent[0]
    return made


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Raise an error of one process on all of them, once all have left the block."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if _objects is not None:
        failures: list[DiffAttnError | None] = [None] * num_processes()
        sent = None if failure is None else _sendable(failure)
        dist.all_gather_object(failures, sent, group=_objects)
        failure = failure or next(filter(None, failures), None)
    if failure is not None:
        raise failure


def wait_for_files(folder: Path, names: Iterable[str]) -> None:
    """Wait until this process sees the files of another one, for two minutes at most: network file
    systems are late."""
    late = time.monotonic() + _SEEN_SECONDS
    while missing := [name for name in names if not (folder / name).is_file()]:
        if time.monotonic() > late:
            raise ConfigError(
                f"{folder}: must be the same folder for every process, got no {missing[0]} on "
                f"process {process_index()}, which another one has written there."
            )
        time.sleep(_SEEN_SECONDS / 100)


def _sendable(failure: Exception) -> DiffAttnError:
    """An error of the same class that can be pickled and raised on the other processes."""
    known = (ConfigError, CheckpointError)
    kind = next((kind for kind in known if isinstance(failure, kind)), DiffAttnError)
    process = f"process {process_index()}" if process_index() else "the first process"
    return kind(f"training: {process} failed: {failure}")
