"""Settings of one training run."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What is trained on, and how it becomes tokens."""

    source: str = "stdlib"
    """``"stdlib"``, a text file, folder or JSONL file, or ``"hub:NAME[:CONFIG]"``."""
    text_field: str = "text"
    """Field of a JSONL file or hub dataset that holds the text."""
    tokenizer: str | None = None
    """A tokenizer's name or folder. Default: byte-level BPE trained on the corpus."""
    vocab_size: int = 1_024
    """Entries of the tokenizer trained here, and rows of the model's embedding."""
    validation_fraction: float = 0.05
    """Share of the documents held out."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"DataConfig: validation_fraction must be between 0 and 1, "
                f"got {self.validation_fraction}."
            )
        if self.vocab_size < 257:
            raise ConfigError(
                f"DataConfig: vocab_size must be 257 or more (256 bytes and the end token), "
                f"got {self.vocab_size}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One training run. Written to ``run.json`` before step 0."""

    num_steps: int
    batch_tokens: int = 4_096
    """Tokens per optimizer step, summed over devices and accumulation."""
    seq_len: int = 256
    """Tokens per sequence."""
    micro_batch_sequences: int | None = None
    """Sequences per forward pass. Default: the whole batch at once."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    final_learning_rate: float = 1e-4
    """Floor that the linear decay reaches at the last step."""
    warmup_steps: int = 20
    beta_1: float = 0.9
    beta_2: float = 0.95
    weight_decay: float = 0.1
    """Not applied to λ vectors, norms and biases."""
    max_grad_norm: float = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    """``"bfloat16"`` is autocast: weights, λ and optimizer state stay float32."""
    log_every: int = 10
    """Steps between rows of training loss."""
    evaluate_every: int = 100
    """Steps between rows of validation loss and λ, and between checkpoints."""
    evaluation_tokens: int = 16_384
    """Validation tokens read while training; the final loss reads all of them."""
    seed: int = 0
    """Initial weights."""
    data_seed: int = 0
    """Order of the training windows; equal for every member of a comparison."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "batch_tokens", "seq_len", "log_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"TrainConfig: {name} must be 1 or more, got {getattr(self, name)}."
                )
        if self.seq_len < 2:
            raise ConfigError(f"TrainConfig: seq_len must be 2 or more, got {self.seq_len}.")
        if self.batch_tokens % self.seq_len:
            raise ConfigError(
                f"TrainConfig: batch_tokens must be a multiple of seq_len={self.seq_len}, "
                f"got {self.batch_tokens}."
            )
        if not 0 <= self.warmup_steps < self.num_steps:
            raise ConfigError(
                f"TrainConfig: warmup_steps must be less than num_steps={self.num_steps}, "
                f"got {self.warmup_steps}."
            )
        if not 0 <= self.final_learning_rate <= self.learning_rate:
            raise ConfigError(
                f"TrainConfig: final_learning_rate must lie in [0, learning_rate="
                f"{self.learning_rate}], got {self.final_learning_rate}."
            )
        micro = self.micro_batch_sequences
        if micro is not None and (micro < 1 or self.batch_sequences % micro):
            raise ConfigError(
                f"TrainConfig: micro_batch_sequences must divide {self.batch_sequences}, "
                f"got {micro}."
            )
        if self.precision not in ("float32", "bfloat16"):
            raise ConfigError(
                f"TrainConfig: precision must be float32 or bfloat16, got {self.precision!r}."
            )

    @property
    def batch_sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.batch_tokens // self.seq_len


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A model, its training and its data."""

    name: str
    model: DiffTransformerConfig
    train: TrainConfig
    data: DataConfig

    def __post_init__(self) -> None:
        if self.model.vocab_size < self.data.vocab_size and self.data.tokenizer is None:
            raise ConfigError(
                f"RunConfig: model.vocab_size must be at least data.vocab_size="
                f"{self.data.vocab_size}, got {self.model.vocab_size}."
            )

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "model": self.model.settings(),
            "train": asdict(self.train),
            "data": asdict(self.data),
        }
