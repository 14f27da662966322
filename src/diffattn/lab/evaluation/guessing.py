"""The score of guessing: of an answer that does not depend on the question."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from diffattn.lab.evaluation.metrics import GUESSES, NAMED

Row = Mapping[str, Any]
_FEWEST_ROWS = 20
"""Fewest rows of ``hidden_needle`` that state a guess; with fewer, the guesses do not count."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The score of guessing; ``None`` if it is unknown."""

    chance: float | None = None  # expected score of a random answer
    ceiling: float | None = None  # score of the best guess that is known
    how: str = ""
    rows: tuple[Row, ...] = ()
    """Rows for which the guess is known."""


def guessing(protocol: str, rows: Sequence[Row], score: str) -> Guess:
    """The score of guessing in one protocol. If there are several guesses, the best one counts.

    - A row may state it: ``guess``, and with it ``guess_of_all_that_fit`` or
      ``guess_of_all_named``; see :data:`GUESSES` and :data:`NAMED`.
    - Classification: chance is a random label, the ceiling the most frequent answer, task by task.
      Multiple choice: a random choice, and always the same position.
    - ``single_needle``: the model's score on texts without the sentence.
    - ``hallucination``: the score of the document's first sentences as an answer.

    ``rows`` are of one model; rows without ``score`` do not count.
    """
    asked = [row for row in rows if score in row["scores"]]
    if protocol == "single_needle":
        control = f"control_{score}"
        shares = [float(row["scores"][control]) for row in rows if control in row["scores"]]
        if not shares or not asked:
            return Guess()
        return Guess(None, fmean(shares), "the answer where the text lacks it", tuple(asked))
    if protocol == "hallucination":
        name = score.partition(", ")[0]
        led = tuple(row for row in asked if name in row.get("lead", {}))
        if not led:
            return Guess()
        ceiling = fmean(float(row["lead"][name]) for row in led)
        return Guess(None, ceiling, "the first sentences of the document, copied", led)
    stated = _stated_guess(asked)
    if protocol == "hidden_needle" and len(stated.rows) < _FEWEST_ROWS:
        stated = Guess()
    known = [guess for guess in (stated, _majority(protocol, asked)) if guess.ceiling is not None]
    return max(known, key=lambda guess: (guess.ceiling, len(guess.rows)), default=Guess())


def _stated_guess(asked: Sequence[Row]) -> Guess:
    rows = tuple(row for row in asked if isinstance(row.get("guess"), int | float))
    if not rows:
        return Guess()
    chance = fmean(float(row["guess"]) for row in rows)
    ceiling = fmean(float(row.get(NAMED, row.get(GUESSES[1], row["guess"]))) for row in rows)
    how = "strings of the context named without regard to the question"
    if any(NAMED in row for row in rows):
        return Guess(chance, ceiling, f"{how}, as many as the model names itself", rows)
    return Guess(chance, max(chance, ceiling), how, rows)


def _majority(protocol: str, asked: Sequence[Row]) -> Guess:
    """The guess in classification and multiple choice, by how often each answer is right."""
    tasks = [str(row.get("task")) for row in asked]
    if protocol == "lm_tasks" and asked:
        if not all(isinstance(row.get("logprobs"), list) and row["logprobs"] for row in asked):
            return Guess()
        answers, how = [str(row.get("gold")) for row in asked], "the same position always"
        sizes = [len(row["logprobs"]) for row in asked]
    elif protocol in ("many_shot", "order_robustness", "hidden_needle") and asked:
        answers = [str(row.get("expected")) for row in asked]
        how = "the most frequent answer always"
        seen = {task: len(set(given)) for task, given in _by_task(tasks, answers).items()}
        sizes = [int(row.get("labels", seen[task])) for row, task in zip(asked, tasks, strict=True)]
    else:
        return Guess()
    chances = _by_task(tasks, [1 / size for size in sizes]).values()
    right = _by_task(tasks, answers).values()
    ceiling = fmean(Counter(gold).most_common(1)[0][1] / len(gold) for gold in right)
    return Guess(fmean(map(fmean, chances)), ceiling, how, tuple(asked))


def _by_task(tasks: Iterable[str], values: Iterable[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for task, value in zip(tasks, values, strict=True):
        groups[task].append(value)
    return groups
