"""Grids of lengths and depths: what every protocol over long contexts checks first."""

from collections.abc import Sequence

from diffattn.errors import ConfigError
from diffattn.inference.language_model import LanguageModel


def check_grid(name: str, lengths: Sequence[int], depths: Sequence[float], samples: int) -> None:
    """Lengths, depths and samples that make sense.

    Args:
        name: Of the protocol.
        lengths: In tokens, 1 or more each.
        depths: In percent, from 0 to 100.
        samples: 1 or more.

    Raises:
        ConfigError: One is missing, repeated or out of range.
    """
    if not lengths or min(lengths) < 1 or len(set(lengths)) < len(lengths):
        raise ConfigError(f"{name}: lengths must be 1 or more and distinct, got {lengths}.")
    if not depths or not all(0 <= d <= 100 for d in depths) or len(set(depths)) < len(depths):
        raise ConfigError(f"{name}: depths must be from 0 to 100 and distinct, got {depths}.")
    if samples < 1:
        raise ConfigError(f"{name}: samples must be 1 or more, got {samples}.")


def check_length(name: str, lengths: Sequence[int], model: LanguageModel, setting: str) -> None:
    """Lengths that the model takes.

    Args:
        name: Of the protocol.
        lengths: In tokens.
        model: The model.
        setting: How to choose other lengths; ``{}`` stands for the model's own.

    Raises:
        ConfigError: One is longer.
    """
    if max(lengths) > model.max_length:
        raise ConfigError(
            f"{name}: lengths must fit the {model.max_length} tokens of {model.label}, got "
            f"{max(lengths)}. Choose others: --set '{name}.{setting.format(model.max_length)}'."
        )
