"""Context lengths and depths of a protocol, and the longest length that a model still masters."""

from collections.abc import Mapping, Sequence

from diffattn.errors import ConfigError
from diffattn.inference.language_model import LanguageModel
from diffattn.stats.bootstrap import bootstrap_mean_of_means
from diffattn.stats.intervals import Interval
from diffattn.stats.proportions import wilson_interval

LENGTHS = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072)
"""Tokens; what long-context tables print."""


def lengths_that_fit(
    name: str,
    wanted: Sequence[int] | None,
    model: LanguageModel,
    standard: Sequence[int] = LENGTHS,
    *,
    overhead: int = 0,
) -> tuple[int, ...]:
    """The lengths that were asked for, or all standard ones that fit the model.

    Args:
        name: Of the protocol, for messages.
        wanted: In tokens. Default: as many of ``standard`` as fit.
        model: The model.
        standard: Rising.
        overhead: Tokens that come on top of a length. Default 0: lengths hold everything.

    Raises:
        ConfigError: A wanted length, or every standard one, is longer than the model takes.
    """
    room = model.max_length - overhead
    lengths = tuple(wanted or (n for n in standard if n <= room))
    besides = f" without the {overhead} of prompt and answer" if overhead else ""
    if not lengths:
        raise ConfigError(
            f"{name}: {model.label} must take {min(standard)} tokens or more, got "
            f"{room}{besides}. Set shorter lengths: --set {name}.lengths=[{max(1, room)}]"
        )
    if max(lengths) > room:
        raise ConfigError(
            f"{name}: lengths must fit the {room} tokens of {model.label}{besides}, "
            f"got {max(lengths)}."
        )
    return lengths


def require_lengths(name: str, lengths: Sequence[int] | None, least: int = 1) -> None:
    """Raise unless lengths are ``None`` or different integers from ``least`` on.

    Raises:
        ConfigError: They are not.
    """
    if lengths is None:
        return
    if (
        not lengths
        or not all(isinstance(n, int) and n >= least for n in lengths)
        or len(set(lengths)) < len(lengths)
    ):
        raise ConfigError(
            f"{name}: lengths must be different numbers of tokens from {least} on, got {lengths}."
        )


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


def effective_length(scores: Mapping[int, float], least: float) -> int:
    """The longest length with a score of at least ``least``; 0 if none has it.

    Args:
        scores: Score by length in tokens.
        least: Threshold, on the scale of the scores.
    """
    return max((length for length, score in scores.items() if score >= least), default=0)


def mean_over_tasks(scores: Sequence[Sequence[float]]) -> Interval:
    """Mean of the tasks' mean scores, every task with equal weight.

    The bootstrap within tasks; where every score is 0, or every score is 1, resampling would show
    no spread at all, and Wilson's interval over all items is given.

    Args:
        scores: Per task one or more, from 0 to 1.
    """
    every = {score for of_task in scores for score in of_task}
    if every in ({0.0}, {1.0}):
        n = sum(map(len, scores))
        return wilson_interval(n if every == {1.0} else 0, n)
    return bootstrap_mean_of_means(scores)
