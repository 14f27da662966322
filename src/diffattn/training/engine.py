"""How a run is executed, as opposed to what it computes."""

from dataclasses import dataclass
from typing import Literal

from diffattn.errors import ConfigError
from diffattn.training.setting_types import check_types


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Nothing here changes what is computed, but for rounding; a continued run may change it."""

    parallel: Literal["ddp", "fsdp"] = "ddp"
    """What several processes do: keep whole copies of the model, or shards of it."""
    activation_checkpointing: bool = False
    """Compute the activations of a layer again in the backward pass instead of keeping them."""
    compile: bool = False
    """torch.compile the model."""
    loss_chunk_tokens: int | None = None
    """Tokens whose logits are in memory at once; the backward pass computes them again. Default:
    those of the whole micro batch."""
    save_every: int | None = None
    """Steps between checkpoints. Default: one at every evaluation."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept until the run ends."""
    report_to: str = "none"
    """Trackers of transformers, separated by commas: tensorboard, wandb, trackio."""
    watch_every: int | None = None
    """Steps between measurements of activations. Default: none are made."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("loss_chunk_tokens", "save_every", "keep_checkpoints", "watch_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"EngineConfig: {name} must be 1 or more, got {value}.")
