"""Context lengths and depths of a protocol, and scores by length."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.metrics import metric, rows_with
from diffattn.lab.evaluation.protocol import SHORT_CONTEXT, Protocol
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.intervals import mean_of_shares, share_interval


def most_that_fits(count: Callable[[int], int], limit: int, *, least: int, most: int) -> int | None:
    """The most units from ``least`` to ``most`` whose context has at most ``limit`` tokens.

    ``None`` if ``least`` does not fit. Tokens grow almost in proportion, so secant steps need about
    six counts; every second step halves the bracket, so the search ends for any function. Where
    tokens merge, ``count`` may fall: the result still fits, and one unit more does not.
    """
    low, low_count = least, count(least)
    if low_count > limit:
        return None
    first, step = low_count, 8
    while True:  # grow to a number that does not fit
        if low >= most:
            return low
        high = min(most, low + step)
        high_count = count(high)
        if high_count > limit:
            break
        low, low_count = high, high_count
        per_unit = (low_count - first) / (low - least)
        # 1 % too far on purpose, so that the upper end of the bracket is close, too.
        reach = int((limit - low_count) / per_unit * 1.01) + 1 if per_unit > 0 else 0
        step = max(reach, 1) if per_unit > 0 else 2 * step
    halve = False
    while high - low > 1:
        if halve or high_count <= low_count:
            guess = (low + high) // 2
        else:
            guess = low + (limit - low_count) * (high - low) // (high_count - low_count)
        guess = min(max(guess, low + 1), high - 1)
        guess_count = count(guess)
        if guess_count <= limit:
            low, low_count = guess, guess_count
        else:
            high, high_count = guess, guess_count
        halve = not halve
    return low


LENGTHS = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072)  # the standard ones, in tokens


class LengthProtocol(Protocol):
    """A protocol over contexts of several lengths."""

    def lengths_that_fit(
        self, model: LanguageModel, standard: Sequence[int] = LENGTHS, *, overhead: int = 0
    ) -> tuple[int, ...]:
        """The setting ``lengths``, or if ``None`` the standard ones that fit the model with prompts
        that have ``overhead`` tokens more; raises if none fits."""
        room, wanted = model.max_length - overhead, self.lengths  # type: ignore[attr-defined]
        lengths = tuple(wanted or (n for n in standard if n <= room))
        besides = f" without the {overhead} of prompt and answer" if overhead else ""
        if not lengths:
            advice = f" Set them: --set {self.name}.lengths=[{room}]"
            raise ConfigError(
                f"{self.name}: {model.label} must take {min(standard)} tokens or more, got "
                f"{room}{besides}.{advice if room >= SHORT_CONTEXT else ''}"
            )
        if max(lengths) > room:
            raise ConfigError(
                f"{self.name}: lengths must fit the {room} tokens of {model.label}{besides}, "
                f"got {max(lengths)}."
            )
        return lengths

    def require_depths(self, depths: Sequence[float]) -> None:
        """Raise unless depths are different numbers from 0 to 100."""
        if not depths or not all(0 <= d <= 100 for d in depths) or len(set(depths)) < len(depths):
            raise ConfigError(
                f"{self.name}: depths must be from 0 to 100 and distinct, got {depths}."
            )


def length_metric(
    name: str, scores: Mapping[int, float], least: float, n: int, where: Mapping[str, Any] = {}
) -> Metric:
    """A metric: the longest length with a score of at least ``least``, or 0; over ``n`` items."""
    value = float(max((length for length, score in scores.items() if score >= least), default=0))
    return Metric(name=name, value=value, n=n, unit="tokens", where=dict(where), headline=True)


def by_length_and_task(
    rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], score: str
) -> tuple[list[Metric], dict[int, float], list[list[float | None]]]:
    """Metrics of a score from 0 to 1 by length, over tasks and for each; length to mean over tasks
    where all were run; and the means ``[lengths][tasks]``, ``None`` for a task that was not run."""
    metrics: list[Metric] = []
    means: dict[int, float] = {}
    table: list[list[float | None]] = []
    for length in sorted({int(row["length"]) for row in rows}):
        scores = {
            task: [float(r["scores"][score]) for r in rows_with(rows, length=length, task=task)]
            for task in tasks
        }
        run = {task: of_task for task, of_task in scores.items() if of_task}
        mean = mean_of_shares(list(run.values()))
        # The name has the number of tasks, which may differ between lengths.
        where: dict[str, Any] = {"length": length}
        metrics.append(metric(f"mean_of_{len(run)}_tasks", mean, where=where, headline=True))
        metrics += [
            metric(score, share_interval(of_task), where=where | {"task": task})
            for task, of_task in run.items()
        ]
        if len(run) == len(tasks):
            means[length] = mean.mean
        table.append([sum(x) / len(x) if x else None for x in scores.values()])
    return metrics, means, table
