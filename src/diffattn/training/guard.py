"""What a run does when its numbers go wrong."""

from dataclasses import dataclass
from typing import Literal

from diffattn.errors import ConfigError
from diffattn.training.setting_types import check_types


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """Policies. The defaults change nothing: a number that is not finite ends the run."""

    not_finite: Literal["stop", "skip", "roll_back"] = "stop"
    """Of a loss or gradient that is not finite: end the run; leave the batch out, whose step then
    passes without an update; or go back to the last evaluation before it and leave out all batches
    from there up to it."""
    spike: Literal["ignore", "stop", "skip", "roll_back"] = "ignore"
    """The same of a loss or gradient norm that sticks out above the 32 steps before; see
    :func:`diffattn.stats.spikes.spike_steps`."""
    limit: int = 10
    """Times that batches are left out; once more ends the run."""
    lam: Literal["report", "clip", "reinitialise"] = "report"
    """Of a layer's λ outside [0, 1] (V1 and Shared DIFF; V2's cannot leave it): leave it, move it
    to the edge by the smallest change of one λ vector, or draw its vectors anew."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.limit < 1:
            raise ConfigError(f"GuardConfig: limit must be 1 or more, got {self.limit}.")

    @property
    def judges_batches(self) -> bool:
        """Whether every step is looked at before its update."""
        return self.not_finite != "stop" or self.spike != "ignore"

    @property
    def rolls_back(self) -> bool:
        """Whether a run may go back to an earlier evaluation."""
        return "roll_back" in (self.not_finite, self.spike)
