"""How packed documents become training sequences."""

from dataclasses import dataclass
from typing import Any, Literal

from diffattn.errors import ConfigError
from diffattn.lab.training.setting_types import check_types

_FACTOR = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """The defaults are what every run did before there was a choice."""

    documents: Literal["joined", "apart"] = "joined"
    """Of one sequence. ``"apart"``: a token attends to its own document only, positions begin again
    with each, and nothing predicts a document's first token, in training and validation alike."""
    upsample_longer_than: int | None = None
    """Train more often on documents of more tokens, within each source; see
    :class:`diffattn.lab.data.upsampling.UpsampledTokens`. Default: read the split as it was
    packed."""
    upsample_factor: float = _FACTOR
    """How much more often."""

    def __post_init__(self) -> None:
        check_types(self)
        longer_than, factor = self.upsample_longer_than, self.upsample_factor
        if longer_than is not None and longer_than < 1:
            raise ConfigError(
                f"WindowConfig: upsample_longer_than must be 1 or more, got {longer_than}."
            )
        if longer_than is None and factor != _FACTOR:
            raise ConfigError(
                f"WindowConfig: upsample_factor must come with upsample_longer_than, got {factor}."
            )
        if not 1 < factor <= 1e6:
            raise ConfigError(
                f"WindowConfig: upsample_factor must be more than 1 and at most 1e6, got {factor}."
            )

    @property
    def apart(self) -> bool:
        """Whether documents do not see each other."""
        return self.documents == "apart"

    def resolved(self) -> dict[str, Any]:
        """Plain values, for records: of up-sampling only where there is any."""
        settings: dict[str, Any] = {"documents": self.documents}
        if self.upsample_longer_than is not None:
            settings["upsample_longer_than"] = self.upsample_longer_than
            settings["upsample_factor"] = self.upsample_factor
        return settings


def repetition(windows: WindowConfig, read: int, held: int) -> str | None:
    """A line where training reads its text more than once. ``None``: it does not, or draws it.

    Args:
        windows: Up-sampled documents are drawn, of which the run says more.
        read: Tokens of all steps.
        held: Tokens of the training split.
    """
    if read <= held or windows.upsample_longer_than is not None:
        return None
    return f"{held:,} training tokens are read {read / held:,.1f} times"
