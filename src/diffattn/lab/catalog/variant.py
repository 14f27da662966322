"""A model that studies compare. Loads without torch and transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diffattn.errors import ConfigError

if TYPE_CHECKING:
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
    from diffattn.models.twins import Twin


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a comparison, made from the softmax base."""

    role: str
    """``"baseline"``, ``"type"``, ``"control"``, ``"ablation"``, ``"match"`` or ``"rank"``."""
    name: str
    title: str
    """Name in tables and charts."""
    compared_with: str
    """Name of its baseline. It uses the baseline's learning rate unless its own rate is swept."""
    summary: str
    """The model in words, or the effect that it separates."""
    also: tuple[str, ...] = ()
    """Names of further baselines, used if they take part in the study."""
    color: str = "#999999"
    attends: bool = True
    """Whether a position sees other positions."""
    side_effect_of: tuple[str, ...] = ()
    """Types whose side effect this control has without their learned second map. If the control
    leads softmax too, the lead of these types need not come from their second map."""
    layer: str = ""
    """Attention type of its layers. Default: the name."""
    match: str | None = None
    """Budget that it shares with the softmax model. Default: the comparison's budget."""
    heads: float = 1.0
    """Number of heads divided by the softmax model's number."""
    width: int = 1
    """Width of a head divided by the softmax model's width."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Field of the model's configuration -> changed value."""

    @property
    def attention_type(self) -> str:
        """Attention type of its layers."""
        return self.layer or self.name

    def twin(self, base: "DiffTransformerConfig", match: str) -> "Twin[DiffTransformerConfig]":
        """The model of this variant.

        Args:
            base: The softmax model.
            match: Budget that the comparison keeps equal, of :data:`diffattn.models.twins.MATCHES`.

        Raises:
            ConfigError: The number of heads would not be whole.
        """
        changes = dict(self.changes)
        if (self.heads, self.width) != (1, 1):
            for name in ("num_heads", "num_kv_heads"):
                count = getattr(base, name) * self.heads
                if not count.is_integer():
                    raise ConfigError(f"{self.name}: {name} must be whole, got {count:g}.")
                changes[name] = int(count)
            changes["head_dim"] = base.head_dim * self.width
        return base.twin(self.attention_type, self.match or match, **changes)
