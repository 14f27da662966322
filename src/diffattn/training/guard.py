"""What a run does when its numbers go wrong."""

from dataclasses import dataclass
from typing import Literal

from diffattn.training.setting_types import check_types


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """Policies. The defaults change nothing: a number that is not finite ends the run."""

    not_finite: Literal["stop", "skip", "roll_back"] = "stop"
    """Of a loss or gradient that is not finite: end the run, leave the batch out, or go back to
    the last checkpoint and leave it out."""
    spike: Literal["ignore", "stop", "skip", "roll_back"] = "ignore"
    """The same of a loss or gradient that sticks out; see :mod:`diffattn.stats.spikes`."""
    lam: Literal["report", "clip", "reinitialise"] = "report"
    """Of a layer's λ outside [0, 1]: write it down, bring it back to the edge, or draw its vectors
    anew."""

    def __post_init__(self) -> None:
        check_types(self)
