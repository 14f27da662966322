"""The one score of each protocol that its verdict rests on, and what guessing scores."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from diffattn.lab.evaluation.metrics import GUESSES, NAMED

Row = Mapping[str, Any]
PARTS: tuple[tuple[str, ...], ...] = (
    ("length",), ("task",), ("needles", "asked"), ("depth",), ("shots",), ("kind",), ("pairs",),
)  # fmt: skip
"""Fields of a row by which the differences of its scores are told apart, one after another."""
KINDS: tuple[tuple[str, ...], ...] = (("task",), ("needles", "asked"))
"""Those of them whose values are other tasks, with floors of their own."""
_FEWEST_TOLD = 20
"""Of hidden sentences: one text with two names must not decide the floor of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Primary:
    """Declared before anything is measured: one score, so that none is picked afterwards."""

    scores: tuple[str, ...]
    """Name of the score, the first that the rows have; ``{decoding}`` is that parameter."""
    higher_is_better: bool = True


PRIMARY: dict[str, Primary] = {
    "ar_hits": Primary(scores=("ar_hit_2_nll", "nll"), higher_is_better=False),
    "attention_segments": Primary(scores=("answer_signed",)),
    "babilong": Primary(scores=("accuracy",)),
    "block_perplexity": Primary(scores=("nll",), higher_is_better=False),
    "hallucination": Primary(scores=("span_match", "entities_found")),
    "hallucination_judge": Primary(scores=("accuracy",)),
    "hidden_needle": Primary(scores=("contains",)),
    "key_values": Primary(scores=("recall",)),
    "lm_tasks": Primary(scores=("average", "{task} {metric}")),
    "many_shot": Primary(scores=("accuracy_{decoding}",)),
    "needle": Primary(scores=("recall",)),
    "nll_by_position": Primary(scores=("nll",), higher_is_better=False),
    "order_robustness": Primary(scores=("accuracy_{decoding}",)),
    "remapped_labels": Primary(scores=("exact_match",)),
    "outliers": Primary(scores=("largest hidden state",), higher_is_better=False),
    "ruler": Primary(scores=("score",)),
    "single_needle": Primary(scores=("accuracy",)),
    "sliding_perplexity": Primary(scores=("nll_window_{windows}",), higher_is_better=False),
    "word_perplexity": Primary(scores=("nll_per_word",), higher_is_better=False),
}
"""By protocol; ``quantized_logits`` takes that of the protocol it wraps, at its fewest bits."""


def primary_score(
    protocol: str, parameters: Mapping[str, Any], names: Sequence[str]
) -> tuple[str, bool] | None:
    """The primary score among those of the rows, and whether more of it is better.

    Args:
        protocol: Its name.
        parameters: As recorded.
        names: Of the scores of all rows.

    Returns:
        ``None`` if none is declared, or the rows do not have it.
    """
    if protocol == "quantized_logits":
        bits = [b for b in parameters.get("bits", ()) if isinstance(b, int)]
        end = f", {min(bits)} bits" if bits else ""
        inner = [name.removesuffix(end) for name in names if name.endswith(end)]
        wrapped = wrapped_protocol(protocol, parameters)
        found = primary_score(wrapped, parameters.get("settings") or {}, inner)
        return None if found is None else (found[0] + end, found[1])
    if protocol not in PRIMARY:
        return None
    declared = PRIMARY[protocol]
    for pattern in declared.scores:
        for name in _filled(pattern, parameters):
            if name in names:
                return name, declared.higher_is_better
    return None


def wrapped_protocol(protocol: str, parameters: Mapping[str, Any]) -> str:
    """The protocol whose items the rows are of: the one that ``quantized_logits`` wraps, or itself.

    Args:
        protocol: Its name.
        parameters: As recorded.
    """
    return str(parameters.get("protocol")) if protocol == "quantized_logits" else protocol


def _filled(pattern: str, parameters: Mapping[str, Any]) -> list[str]:
    """The pattern with parameters in it; of a list of windows the largest comes first."""
    if "{task}" in pattern:
        tasks = parameters.get("tasks") or []
        return [f"{task} {'acc_norm' if task == 'hellaswag' else 'acc'}" for task in tasks[:1]]
    if "{windows}" in pattern:
        windows = sorted(parameters.get("windows") or [], reverse=True)
        return [pattern.format(windows=window) for window in windows]
    return [pattern.replace("{decoding}", str(parameters.get("decoding")))]


def part_score(name: str, where: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The score that a part of the primary one is read from; ``None`` if there is none.

    An average over tasks weighs its items, so a task is read from its own score.

    Args:
        name: Of the primary score.
        where: Fields of the part.
        names: Of the scores of all rows.
    """
    first, _, bits = name.partition(", ")
    if first != "average":
        return name
    task = str(where.get("task"))
    own = f"{task} {'acc_norm' if task == 'hellaswag' else 'acc'}" + (f", {bits}" if bits else "")
    return own if own in names else None


def part_of(row: Row, fields: Sequence[str]) -> tuple[tuple[str, Any], ...] | None:
    """Values of some fields of a row; ``None`` if it lacks one, or it is no plain value."""
    values = [(key, row.get(key)) for key in fields]
    plain = all(isinstance(value, str | int | float) for _, value in values)
    return tuple(values) if plain else None


@dataclass(frozen=True, slots=True)
class Guess:
    """What guessing scores; ``None`` where it is not known."""

    chance: float | None = None
    ceiling: float | None = None
    how: str = ""
    rows: tuple[Row, ...] = ()
    """Those that have a floor; of the others nothing can be guessed, or it is not known."""


def guessing(protocol: str, rows: Sequence[Row], score: str) -> Guess:
    """What a model scores that does not read what it is asked about.

    A row may say itself what guessing scores: ``guess``, and beside it ``guess_of_all_that_fit``,
    or what this model's own output would be worth as a guess (``guess_of_all_named``). A row of
    such a protocol that says nothing has no floor; fewer than 20 questions about hidden sentences
    whose texts hold other names decide nothing. Of a hidden sentence it is what the model
    says where it is not hidden, of support in a document what copying its beginning has. Else, of
    classifications and closed questions, chance is one of the labels that there are (``labels`` of
    a row; without it, one of the different right answers, of which few items show few) and the
    ceiling always giving the most frequent one, task by task; of multiple choice it is one of the
    choices and always the same position. Where rows have both, the greater ceiling counts.

    Args:
        protocol: Its name.
        rows: One or more, all of one model's.
        score: The one that is guessed; rows without it are not asked for it.
    """
    asked = [row for row in rows if score in row["scores"]]
    told = _told(asked)
    if protocol == "hidden_needle" and len(told.rows) < _FEWEST_TOLD:
        told = Guess()
    of = [told, _closed(protocol, asked)]
    if protocol == "single_needle":
        of = [_unhidden(asked, rows, f"control_{score}")]
    elif protocol == "hallucination":
        of = [_copied(asked, score.partition(", ")[0])]
    known = [guess for guess in of if guess.ceiling is not None]
    return max(known, key=lambda guess: (guess.ceiling, len(guess.rows)), default=Guess())


def _told(asked: Sequence[Row]) -> Guess:
    """By what the rows say."""
    rows = tuple(row for row in asked if isinstance(row.get("guess"), int | float))
    if not rows:
        return Guess()
    chance, own = fmean(float(row["guess"]) for row in rows), any(NAMED in row for row in rows)
    ceiling = fmean(float(row.get(NAMED, row.get(GUESSES[1], row["guess"]))) for row in rows)
    how = "strings of the context named without regard to the question"
    if own:
        return Guess(chance, ceiling, f"{how}, as many as the model names itself", rows)
    return Guess(chance, max(chance, ceiling), how, rows)


def _unhidden(asked: Sequence[Row], rows: Sequence[Row], control: str) -> Guess:
    """By the control of the same model, which lacks what is looked for."""
    shares = [float(row["scores"][control]) for row in rows if control in row["scores"]]
    if not shares or not asked:
        return Guess()
    return Guess(None, fmean(shares), "the answer where the text lacks it", tuple(asked))


def _copied(asked: Sequence[Row], score: str) -> Guess:
    """By what the document's first sentences have of the same."""
    rows = tuple(row for row in asked if score in row.get("lead", {}))
    if not rows:
        return Guess()
    ceiling = fmean(float(row["lead"][score]) for row in rows)
    return Guess(None, ceiling, "the first sentences of the document, copied", rows)


def _closed(protocol: str, asked: Sequence[Row]) -> Guess:
    """Where the answers are few, by how often each is right."""
    if protocol == "lm_tasks" and asked:
        if not all(isinstance(row.get("logprobs"), list) and row["logprobs"] for row in asked):
            return Guess()
        right = [(str(row.get("task")), str(row.get("gold"))) for row in asked]
        chances = [(str(row.get("task")), 1 / len(row["logprobs"])) for row in asked]
        how = "the same position always"
        return Guess(_mean_of_tasks(chances), _most_frequent(right), how, tuple(asked))
    if protocol in ("many_shot", "order_robustness", "hidden_needle") and asked:
        right = [(str(row.get("task")), str(row.get("expected"))) for row in asked]
        kinds: dict[str, set[str]] = defaultdict(set)
        for task, answer in right:
            kinds[task].add(answer)
        chances = [
            (task, 1 / int(row.get("labels", len(kinds[task]))))
            for row, (task, _) in zip(asked, right, strict=True)
        ]
        how = "the most frequent answer always"
        return Guess(_mean_of_tasks(chances), _most_frequent(right), how, tuple(asked))
    return Guess()


def _most_frequent(right: Sequence[tuple[str, str]]) -> float:
    """Mean over tasks of the share of each task's most frequent answer."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for task, answer in right:
        by_task[task].append(answer)
    return fmean(Counter(of).most_common(1)[0][1] / len(of) for of in by_task.values())


def _mean_of_tasks(values: Sequence[tuple[str, float]]) -> float:
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, value in values:
        by_task[task].append(value)
    return fmean(fmean(of) for of in by_task.values())
