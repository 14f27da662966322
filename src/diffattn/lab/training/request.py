"""One training run as a user asks for it. Loads without torch."""

from dataclasses import dataclass
from pathlib import Path

from diffattn.errors import ConfigError
from diffattn.files.destination import require_folder_destination
from diffattn.lab.training.settings import read_changes
from diffattn.models.checkpoint_folder import checkpoint_folder
from diffattn.models.config.attention_types import checked_types


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRequest:
    """All that a user asks for besides the recipe. Names are checked when it is made."""

    out: Path
    """Run directory."""
    changes: tuple[str, ...] = ()
    """``KEY=VALUE`` changes to the recipe."""
    attention: str | None = None
    """Train the twin of this attention type. Default: the recipe's model."""
    data: Path | None = None
    """Folder of packed data. Default: pack the recipe's corpus into the run directory."""
    init_from: Path | None = None
    """A run directory or model folder, whose weights training starts from."""
    same_model: bool = False
    """Train the model of ``init_from`` in place of the recipe's."""
    verify: bool = True
    """Compare the files of ``data`` and ``init_from`` with their hashes."""
    resume: bool = False
    """Raise an error unless ``out`` holds a run to continue. Without it a new run may begin."""
    recipe_vocab_size: int
    """The recipe's vocabulary size. A note names it if the data has another size."""

    def __post_init__(self) -> None:
        read_changes(self.changes)
        if self.attention is not None:
            checked_types("twin", self.attention)
        require_folder_destination(self.out)
        if self.same_model and (self.init_from is None or self.attention is not None):
            got = "no --init-from" if self.init_from is None else "--attention too"
            raise ConfigError(f"train: --same-model takes the model of --init-from, got {got}.")
        if self.init_from is not None:
            checkpoint_folder(str(self.init_from))
