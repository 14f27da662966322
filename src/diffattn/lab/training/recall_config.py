"""Settings of one training run on a recall task."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diffattn.lab.data.recall_tasks import (
    LookupConfig,
    ManyShotConfig,
    NoisyRecallConfig,
    TaskConfig,
)
from diffattn.lab.records.fields import require
from diffattn.lab.training.config import TrainConfig

if TYPE_CHECKING:
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

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

    def __post_init__(self) -> None:
        where = "RecallConfig"
        for name, value, needed in (
            ("train.seq_len", self.train.seq_len, self.task.seq_len),
            ("model.vocab_size", self.model.vocab_size, self.task.vocab_size),
        ):
            require(where, value == needed, f"{name} must be the task's {needed}", value)
        accuracy, micro = self.solved_accuracy, self.train.micro_batch_sequences
        must = "solved_accuracy must be more than 0 and at most 1"
        require(where, 0 < accuracy <= 1, must, accuracy)
        must = "train.micro_batch_sequences must be None, as a batch is read whole"
        require(where, micro is None, must, micro)

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
