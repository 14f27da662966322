"""Controls of a recall study: models with one thing changed, trained beside the types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """A member of the study that no learning rate is chosen for."""

    name: str
    """As the page calls it; the comparison on text has the same."""
    attention_type: str
    like: str
    """The type whose learning rate it uses."""
    match: str | None = None
    """What it keeps equal to the softmax model. Default: what the study does."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model's configuration to set."""

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return {
            "attention_type": self.attention_type,
            "like": self.like,
            "match": self.match,
            "changes": dict(self.changes),
        }


BLIND = ("none", "none_ffn")
"""They never see another token: above a guess they show that the task leaks its answers."""
IMITATIONS = ("softmax_half", "softmax_minus_mean")
"""Softmax attention with a side effect of the difference, and without a second map that learns: a
lead over softmax that one of them has too is no effect of that map."""
WITHOUT_NORM = "diff_no_norm"
"""V1 without what its authors added beside the difference."""
_ROWS = (
    Control(
        name="none",
        attention_type="none",
        like="softmax",
        match="heads",
    ),
    Control(
        name="none_ffn",
        attention_type="none",
        like="softmax",
        match="params",
    ),
    Control(
        name="softmax_half",
        attention_type="softmax_half",
        like="softmax",
    ),
    Control(
        name="softmax_minus_mean",
        attention_type="softmax_minus_mean",
        like="softmax",
    ),
    Control(
        name=WITHOUT_NORM,
        attention_type="diff",
        like="diff",
        changes={"head_norm": False},
    ),
)
CONTROLS = {control.name: control for control in _ROWS}
"""Name to control, in the order of tables."""
