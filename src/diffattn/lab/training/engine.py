"""Settings of the execution of a run, which change its result by rounding at most."""

from dataclasses import dataclass
from typing import Annotated, Literal

from diffattn.errors import check_known
from diffattn.lab.records.fields import AtLeast, check_settings, require

Count = Annotated[int, AtLeast(1)]

TRACKERS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
"""Tracker -> modules; at least one of them must be installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of the execution. A continued run may change them."""

    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Whether several processes keep whole copies of the model, or shards."""
    replicas: Count = 1
    """Copies of the model, each sharded over one group of processes. With one group per machine,
    only gradients travel between machines."""
    activation_checkpointing: bool = False
    """Compute the activations of a layer again in the backward pass instead of keeping them."""
    compile: bool = False
    """torch.compile the model."""
    loss_chunk_tokens: Count | None = None
    """Tokens whose logits are in memory at once; the backward pass computes logits a second time.
    Default: the whole micro batch, or on GPUs parts of 2²⁹ logits; logits are computed once."""
    save_every: Count | None = None
    """Steps between checkpoints. Default: one at every evaluation. If ``guard`` may roll the run
    back, every evaluation writes one too."""
    keep_checkpoints: Count = 2
    """How many of the newest checkpoints are kept until the run ends."""
    keep_every: Count | None = None
    """Checkpoints at multiples of so many steps are copied to ``kept/``, each loadable as a model.
    Default: no copies."""
    report_to: str = "none"
    """Trackers of transformers, separated by commas: tensorboard, wandb, trackio."""
    watch_every: Count | None = None
    """Steps between rows of ``watch.jsonl``: activations, λ, speed. Default: none are measured."""
    peak_flops: float | None = None
    """Peak FLOP/s of all devices of the run together, for the model FLOPs utilisation (MFU).
    Default: unknown, and no MFU is written."""

    def __post_init__(self) -> None:
        check_settings(self)
        where, peak = "EngineConfig", self.peak_flops
        must = "replicas above 1 must come with parallel 'fsdp'"
        require(where, self.replicas == 1 or self.parallel == "fsdp", must, self.replicas)
        require(where, peak is None or peak > 0, "peak_flops must be more than 0", peak)
        must = "peak_flops must come with watch_every, whose rows hold the MFU"
        require(where, peak is None or self.watch_every is not None, must, peak)
        for name in self.trackers:
            check_known(where, "report_to", name, ("none", *TRACKERS))
        must = "report_to must be none or names of trackers"
        require(where, "none" not in self.trackers, must, self.report_to)

    def shards(self, devices: int, where: str = "training") -> int:
        """Number of devices that share one copy of the model: 1, or with ``"fsdp"`` several.

        ``ConfigError`` if ``devices``, of the whole run, are too few to shard over, or if
        ``replicas`` does not divide them.
        """
        if self.parallel != "fsdp":
            return 1
        replicas, options = self.replicas, "(torchrun --nproc-per-node, plan --gpus)"
        must = f"engine.replicas must divide the {devices} devices {options}"
        require(where, devices % replicas == 0, must, replicas)
        must = f"engine.parallel 'fsdp' must have more devices {options} than engine.replicas"
        require(where, devices > replicas, must, devices)
        return devices // self.replicas

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names in ``report_to``; empty for ``"none"``."""
        names = tuple(name.strip() for name in self.report_to.split(","))
        return () if names == ("none",) else names
