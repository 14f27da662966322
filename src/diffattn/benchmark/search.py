"""A search among options: check each, time the right ones side by side, take the fastest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from diffattn.benchmark.timing import spread
from diffattn.records.results import Spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What became of one option."""

    seconds: Spread | None = None
    """Of one run; ``None`` if it was refused."""
    refused: str | None = None
    """Why it was not timed."""


Option = TypeVar("Option")
OnFailure = Callable[[str, Exception], None]


def search(
    options: Mapping[str, Option],
    *,
    check: Callable[[Option], str | None],
    time: Callable[[Mapping[str, Option], OnFailure], Mapping[str, Sequence[float]]],
    why: Callable[[Option, Exception], str],
) -> dict[str, Tried]:
    """Time the options that are right.

    Args:
        options: By name.
        check: Why an option cannot be taken, ``None`` if it can. What it raises ends the search.
        time: Seconds of every round, by name; called once, with the options that passed and with
            what is to be told of each that raises.
        why: Why an option that raised in ``time`` cannot be taken. What it raises ends the search.

    Returns:
        Every option, in the order given.
    """
    refused = {name: check(option) for name, option in options.items()}
    right = {name: option for name, option in options.items() if refused[name] is None}

    def refuse(name: str, error: Exception) -> None:
        refused[name] = why(options[name], error)

    samples = time(right, refuse) if right else {}
    return {
        name: Tried(seconds=spread(list(samples[name])) if name in samples else None, refused=why)
        for name, why in refused.items()
    }


def best(tried: Mapping[str, Tried], seed: str | None) -> str | None:
    """The fastest option by its median.

    The seed stays unless another one's median is below the seed's lower quartile: within what
    rounds differ by, nothing says that the other is faster.

    Args:
        tried: From :func:`search`.
        seed: What there was before, which may be no option or refused.

    Returns:
        Its name; ``None`` if every option was refused.
    """
    seconds = {name: of.seconds for name, of in tried.items() if of.seconds is not None}
    if not seconds:
        return None
    fastest = min(seconds, key=lambda name: seconds[name].median)
    if seed in seconds and not seconds[fastest].median < seconds[seed].low:
        return seed
    return fastest
