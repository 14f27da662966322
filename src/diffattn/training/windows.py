"""How packed documents become training sequences."""

from dataclasses import dataclass
from typing import Literal

from diffattn.training.setting_types import check_types


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """The defaults are what every run did before there was a choice."""

    documents: Literal["joined", "apart"] = "joined"
    """Of one sequence. ``"apart"``: a token attends to its own document only, positions begin again
    with each, and nothing predicts a document's first token, in training and validation alike."""

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def apart(self) -> bool:
        """Whether documents do not see each other."""
        return self.documents == "apart"
