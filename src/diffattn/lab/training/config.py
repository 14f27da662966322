"""Settings of one training run, on text or on a recall task."""

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from diffattn.errors import check_known
from diffattn.lab.data.recall_tasks import (
    LookupConfig,
    ManyShotConfig,
    NoisyRecallConfig,
    TaskConfig,
)
from diffattn.lab.data.tokenizer import LARGEST_VOCAB_SIZE, SMALLEST_VOCAB_SIZE
from diffattn.lab.records.fields import AtLeast, AtMost, check_settings, require

if TYPE_CHECKING:  # settings are checked and listed without torch
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of the execution. A continued run may change them."""

    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Whether several processes keep whole copies of the model, or shards."""
    activation_checkpointing: bool = False
    """Compute the activations of a layer again in the backward pass instead of keeping them."""
    compile: bool = False
    loss_chunk_tokens: Count | None = None
    """Tokens whose logits are in memory at once; the backward pass computes logits a second time.
    Default: the whole micro batch, or on GPUs parts of 2²⁹ logits; logits are computed once."""
    save_every: Count | None = None
    """Steps between checkpoints. Default: one at every evaluation. If ``guard`` may roll the run
    back, every evaluation writes one too."""
    keep_checkpoints: Count = 2
    """How many of the newest checkpoints are kept until the run ends."""
    keep_every: Count | None = None
    """Checkpoints at multiples of so many steps stay in ``kept/``, each loadable as a model."""
    report_to: str = "none"
    """Trackers of transformers, separated by commas: tensorboard, wandb, trackio."""
    watch_every: Count | None = None
    """Steps between rows of ``watch.jsonl``: activations, λ, speed. Default: none are measured."""
    peak_flops: float | None = None
    """Peak FLOP/s of all devices of the run together, for the model FLOPs utilisation (MFU)."""

    def __post_init__(self) -> None:
        check_settings(self)
        where, peak = "EngineConfig", self.peak_flops
        require(where, peak is None or peak > 0, "peak_flops must be more than 0", peak)
        must = "peak_flops must come with watch_every, whose rows hold the MFU"
        require(where, peak is None or self.watch_every is not None, must, peak)
        for name in self.trackers:
            check_known(where, "report_to", name, ("none", "tensorboard", "wandb", "trackio"))
        must = "report_to must be none or names of trackers"
        require(where, "none" not in self.trackers, must, self.report_to)

    def shards(self, devices: int, where: str = "training") -> int:
        """Number of a run's devices that share one copy of the model: 1, or with ``"fsdp"`` all."""
        must = "engine.parallel 'fsdp' must have several devices (torchrun, plan --gpus)"
        require(where, self.parallel == "ddp" or devices > 1, must, devices)
        return 1 if self.parallel == "ddp" else devices

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names in ``report_to``; empty for ``"none"``."""
        names = tuple(name.strip() for name in self.report_to.split(","))
        return () if names == ("none",) else names


Seed = Annotated[int, AtLeast(0), AtMost(2**32 - 1)]
_UPSAMPLE_FACTOR = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The corpus, and how it becomes tokens."""

    source: str = "stdlib"
    """See :func:`diffattn.lab.data.corpora.load_corpus`."""
    text_field: str = "text"
    """Field of a JSONL file or hub dataset that holds the text."""
    tokenizer: str | None = None
    """A tokenizer's name or folder. Default: byte-level BPE trained on both splits of the corpus.
    Its merges have seen the held-out text, but all models of a comparison share them."""
    vocab_size: Annotated[int, AtLeast(SMALLEST_VOCAB_SIZE), AtMost(LARGEST_VOCAB_SIZE)] = 1_024
    """Entries of the tokenizer trained here, and rows of the model's embedding. The smallest
    vocabulary holds all bytes and the end token."""
    validation_fraction: float = 0.05

    def __post_init__(self) -> None:
        check_settings(self)
        share = self.validation_fraction
        require("DataConfig", 0 < share < 1, "validation_fraction must be between 0 and 1", share)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """How packed documents become training sequences."""

    documents: Literal["joined", "apart"] = "joined"
    """``"apart"``: a token attends to its document only, positions begin again with each document,
    and nothing predicts a document's first token, in training and validation alike."""
    upsample_longer_than: Count | None = None
    """Documents of more tokens are read more often, within each source; see
    :class:`diffattn.lab.data.tokens.UpsampledTokens`. Default: all are read equally often."""
    upsample_factor: float = _UPSAMPLE_FACTOR

    def __post_init__(self) -> None:
        check_settings(self)
        where, factor = "WindowConfig", self.upsample_factor
        is_used = self.upsample_longer_than is not None or factor == _UPSAMPLE_FACTOR
        require(where, is_used, "upsample_factor must come with upsample_longer_than", factor)
        must = "upsample_factor must be more than 1 and at most 1e6"
        require(where, 1 < factor <= 1e6, must, factor)

    @property
    def apart(self) -> bool:
        """Whether documents do not see each other."""
        return self.documents == "apart"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One training run. Written to ``run.json`` before step 0."""

    num_steps: Count
    batch_tokens: Count = 4_096
    """Tokens per optimizer step, summed over devices and accumulation."""
    seq_len: Annotated[int, AtLeast(2)] = 256
    micro_batch_sequences: int | None = None
    """Sequences per forward pass of one device. Default: the device's whole share of a batch."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    final_learning_rate: float = 1e-4
    """Learning rate of the last step, where the linear decay ends."""
    warmup_steps: int = 20
    beta_1: float = 0.9
    beta_2: float = 0.95
    weight_decay: Annotated[float, AtLeast(0), AtMost(10**30)] = 0.1
    """Not applied to λ vectors, norms and biases."""
    max_grad_norm: Annotated[float, AtLeast(0)] = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    """``"bfloat16"`` is autocast: weights, λ and optimizer state stay float32."""
    log_every: Count = 10
    """Steps between rows of training loss."""
    evaluate_every: Count = 100
    """Steps between rows of validation loss and λ. Without ``save_every``, a checkpoint each."""
    evaluation_tokens: Annotated[int, AtLeast(2)] = 16_384
    """Validation tokens of each evaluation in training. The final loss reads the whole split."""
    seed: Seed = 0
    """Seed of the initial weights."""
    data_seed: Seed = 0
    """Seed of the order of training windows; equal for all models of a comparison."""

    def __post_init__(self) -> None:
        check_settings(self)
        steps, warmup, seq_len = self.num_steps, self.warmup_steps, self.seq_len
        rate, final = self.learning_rate, self.final_learning_rate
        micro, sequences = self.micro_batch_sequences, self.batch_sequences
        divides = micro is None or (micro >= 1 and sequences % micro == 0)
        for name, holds, must in (
            ("beta_1", 0 <= self.beta_1 < 1, "0 or more and less than 1"),
            ("beta_2", 0 <= self.beta_2 < 1, "0 or more and less than 1"),
            ("batch_tokens", self.batch_tokens % seq_len == 0, f"a multiple of seq_len={seq_len}"),
            ("warmup_steps", 0 <= warmup < steps, f"0 or more and less than num_steps={steps}"),
            # A larger rate overflows in the first step.
            ("learning_rate", 0 < rate <= 1e30, "more than 0 and at most 1e30"),
            ("final_learning_rate", 0 <= final <= rate, f"in [0, learning_rate={rate}]"),
            ("micro_batch_sequences", divides, f"a divisor of {sequences}, a batch's sequences"),
        ):
            require("TrainConfig", holds, f"{name} must be {must}", getattr(self, name))

    def at(self, learning_rate: float, seed: int, **changes: Any) -> "TrainConfig":
        """The same training at another peak rate, with the same ratio of final to peak rate."""
        return replace(
            self,
            learning_rate=learning_rate,
            final_learning_rate=learning_rate * (self.final_learning_rate / self.learning_rate),
            seed=seed,
            data_seed=seed,
            **changes,
        )

    @property
    def batch_sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.batch_tokens // self.seq_len

    def micro_batch(self, devices: int, where: str) -> int:
        """Sequences per forward pass of one device, if several devices share a batch evenly."""
        sequences, share = self.batch_sequences, self.batch_sequences // devices
        batch = f"a batch of {sequences} sequences (train.batch_tokens / train.seq_len)"
        must = f"{batch} must be shared out evenly to all devices"
        require(where, sequences % devices == 0, must, devices)
        micro = self.micro_batch_sequences or share
        must = f"train.micro_batch_sequences must divide {share}, the sequences of a device"
        require(where, share % micro == 0, must, micro)
        return micro


@dataclass(frozen=True, kw_only=True, slots=True)
class InitConfig:
    """Initial weights in place of fresh ones, as
    :func:`diffattn.lab.training.initial.initial_weights` finds them."""

    folder: str
    """Not part of the run's settings: the folder may move before the run is continued."""
    weights: str
    """SHA-256 of the weights file, part of the settings. Several files: hash of their hashes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """Policies against bad batches. By default a number that is not finite ends the run."""

    not_finite: Literal["stop", "skip", "roll_back"] = "stop"
    """Action after a loss or gradient that is not finite: end the run; skip this batch; or go
    back to the last evaluation and leave out all batches from there to this batch."""
    spike: Literal["ignore", "stop", "skip", "roll_back"] = "ignore"
    """Action after a loss or gradient norm far above the 32 steps before; see
    :func:`diffattn.lab.stats.spikes.spike_steps`."""
    limit: Count = 10
    """Most decisions of the guard to leave batches out; a further decision ends the run."""
    lam: Literal["report", "clip", "reinitialise"] = "report"
    """A λ outside [0, 1], possible in V1 and Shared DIFF, is left as it is; or moved to the edge by
    the smallest change of one λ vector; or the layer's λ vectors are drawn anew."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def judges_batches(self) -> bool:
        """Whether every step is judged before its update."""
        return self.not_finite != "stop" or self.spike != "ignore"

    @property
    def intervenes(self) -> bool:
        """Whether a policy may change a run."""
        return self.judges_batches or self.lam != "report"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A model, its training and its data; and how the run is executed."""

    name: str
    model: "DiffTransformerConfig"
    train: TrainConfig
    data: DataConfig
    windows: WindowConfig = field(default_factory=WindowConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    init: InitConfig | None = None
    """Weights to start from. Default: fresh weights, drawn with ``train.seed``."""
    gradient_steps: tuple[int, ...] = ()
    """Steps, counted from 1, whose gradients and updates are written to ``gradients.jsonl``."""

    def __post_init__(self) -> None:
        where, steps = "RunConfig", list(self.gradient_steps)
        size, least = self.model.vocab_size, self.data.vocab_size
        must = f"model.vocab_size must be at least data.vocab_size={least}"
        require(where, size >= least, must, size)
        context, seq_len = self.model.max_position_embeddings, self.train.seq_len
        must = f"model.max_position_embeddings must be at least train.seq_len={seq_len}"
        require(where, context >= seq_len, must, context)
        last = self.train.num_steps
        rises = steps == sorted(set(steps)) and all(1 <= step <= last for step in steps)
        must = f"gradient_steps must rise from 1 or more to at most train.num_steps={last}"
        require(where, rises, must, steps)
        can_measure = not (steps and self.engine.compile)  # compiled code calls no later hooks
        must = "engine.compile must be false where gradient_steps are measured"
        require(where, can_measure, must, self.engine.compile)

    def resolved(self) -> dict[str, Any]:
        """All settings that shape the result as plain values, for records. The sections below
        ``data`` appear only if they differ from the default."""
        settings: dict[str, Any] = {
            "model": self.model.settings(),
            "train": asdict(self.train),
            "data": asdict(self.data),
        }
        if self.windows != WindowConfig():
            settings["windows"] = asdict(self.windows)
        if self.guard != GuardConfig():
            settings["guard"] = asdict(self.guard)
        if self.init is not None:
            settings["init"] = {"weights": self.init.weights}
        if self.gradient_steps:
            settings["gradient_steps"] = list(self.gradient_steps)
        return settings

    def shown(self) -> dict[str, Any]:
        """The output of a dry run: the settings, the folder of initial weights, and the engine's
        settings that are not default."""
        default = asdict(EngineConfig())
        engine = {key: value for key, value in asdict(self.engine).items() if value != default[key]}
        init = {} if self.init is None else {"init": asdict(self.init)}
        return self.resolved() | init | ({"engine": engine} if engine else {})


TASKS: dict[str, type[TaskConfig]] = {
    "noisy_recall": NoisyRecallConfig,
    "lookup": LookupConfig,
    "many_shot": ManyShotConfig,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallConfig:
    """A model, its training and the task it is trained and tested on.

    Every step reads fresh sequences, a function of ``train.data_seed`` and the step alone.
    ``train.evaluation_tokens`` is the size of the validation set; the test set is as large.
    """

    name: str
    model: "DiffTransformerConfig"
    train: TrainConfig
    task: TaskConfig
    solved_accuracy: float = 0.99
    """Validation accuracy that, at two evaluations in a row, ends training as solved."""
    stops_when_solved: bool = True
    """``False``: use up all steps, so that all models read equally many sequences."""

    @property
    def task_name(self) -> str:
        """A key of :data:`TASKS`."""
        return next(name for name, kind in TASKS.items() if isinstance(self.task, kind))

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        trains_on = {} if self.stops_when_solved else {"stops_when_solved": False}
        return trains_on | {
            "model": self.model.settings(),
            "train": asdict(self.train),
            "task": {"name": self.task_name, **asdict(self.task)},
            "solved_accuracy": self.solved_accuracy,
        }
