"""Controls of a recall study: models with one thing changed, trained beside the types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """A member of the study that no learning rate is chosen for."""

    name: str
    attention_type: str
    like: str
    """The type whose learning rate it uses."""
    match: str | None = None
    """What it keeps equal to the softmax model. Default: what the study does."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model's configuration to set."""
    what: str
    """What is changed, for tables."""

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "attention_type": self.attention_type,
            "like": self.like,
            "match": self.match,
            "changes": dict(self.changes),
            "what": self.what,
        }


BLIND = ("no_attention", "no_attention_wide")
"""They never see another token: above a guess they show that the task leaks its answers."""
IMITATIONS = ("softmax_half", "softmax_minus_mean")
"""Softmax attention with a side effect of the difference, and without a second map that learns: a
lead over softmax that one of them has too is no effect of that map."""
WITHOUT_NORM = "diff_no_head_norm"
"""V1 without what its authors added beside the difference."""
_ROWS = (
    Control(
        name="no_attention",
        attention_type="none",
        like="softmax",
        match="heads",
        what="no attention: zero in its place",
    ),
    Control(
        name="no_attention_wide",
        attention_type="none",
        like="softmax",
        match="params",
        what="no attention, its parameters given to the FFN",
    ),
    Control(
        name="softmax_half",
        attention_type="softmax_half",
        like="softmax",
        what="softmax times ½",
    ),
    Control(
        name="softmax_minus_mean",
        attention_type="softmax_minus_mean",
        like="softmax",
        what="softmax minus 0.7 times the mean value",
    ),
    Control(
        name=WITHOUT_NORM,
        attention_type="diff",
        like="diff",
        changes={"head_norm": False},
        what="DIFF V1 without head norm",
    ),
)
CONTROLS = {control.name: control for control in _ROWS}
"""Name to control, in the order of tables."""
