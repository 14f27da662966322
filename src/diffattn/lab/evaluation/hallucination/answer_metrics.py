"""Scores of an output against references, and against the source that it should follow."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from typing import Any

from diffattn.errors import ConfigError

_WORD = re.compile(r"\w+(?:[.'’-]\w+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)]*(?=\s|$)")
_SENTENCE_BREAK = re.compile(r"[.!?:;\n\"“‘(]")


Support = tuple[float | None, list[str]]
"""The share of a text's distinct pieces that the source holds (``None`` if there are no pieces),
and the pieces that it does not hold."""


def entity_support(text: str, source: str) -> Support:
    """Entities of the text that the source holds, regardless of case.

    An entity is a run of capitalised words with single spaces between them. The first word of a
    sentence and the word "I" do not count; a possessive 's is dropped. An entity is found if the
    source holds the same words in a row.
    """
    words = f" {' '.join(_plain(word) for word in _WORD.findall(source))} ".lower()
    return _support(entities(text), lambda entity: f" {entity.lower()} " in words)


def number_support(text: str, source: str) -> Support:
    """Numbers in digits that the source holds; commas between thousands do not matter."""
    return _support(_numbers(text), set(_numbers(source)).__contains__)


def bigram_support(text: str, source: str) -> Support:
    """Bigrams of words, in lower case, that the source holds; 1 − the share is the proportion of
    novel bigrams of arXiv:1808.08745, section 2."""
    return _support(_bigrams(text), set(_bigrams(source)).__contains__)


def first_sentences(text: str, count: int) -> str:
    """The first ``count`` sentences of a text, or all of it if it has fewer."""
    ends = [match.end() for match in islice(_SENTENCE_END.finditer(text), count)]
    return text[: ends[-1]] if len(ends) == count else text


def entities(text: str) -> Iterator[str]:
    """Runs of capitalised words; see :func:`entity_support`."""
    run: list[str] = []
    end = 0
    for match in _WORD.finditer(text):
        gap, word = text[end : match.start()], _plain(match.group())
        starts_sentence = end == 0 or _SENTENCE_BREAK.search(gap) is not None
        is_entity = word[0].isupper() and word != "I" and not starts_sentence
        if run and (gap != " " or not is_entity):
            yield " ".join(run)
            run = []
        if is_entity:
            run.append(word)
        end = match.end()
    if run:
        yield " ".join(run)


def _plain(word: str) -> str:
    return re.sub(r"['’]s$", "", word)


def _numbers(text: str) -> Iterator[str]:
    for number in _NUMBER.findall(text):
        yield number.replace(",", "") if _THOUSANDS.fullmatch(number) else number


def _bigrams(text: str) -> Iterator[str]:
    words = [word.lower() for word in _WORD.findall(text)]
    return (f"{a} {b}" for a, b in pairwise(words))


def _support(pieces: Iterable[str], is_in_source: Callable[[str], bool]) -> Support:
    distinct = list(dict.fromkeys(pieces))
    missing = [piece for piece in distinct if not is_in_source(piece)]
    return (len(distinct) - len(missing)) / len(distinct) if distinct else None, missing


ROUGE = ("rouge1", "rouge2", "rougeL")


def normalise(text: str) -> str:
    """Lower case without punctuation, articles and extra spaces, as SQuAD 1.1, arXiv:1606.05250."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def span_match(output: str, references: Sequence[str]) -> float:
    """1 if the output holds a reference, both normalised, else 0; an empty reference matches only
    an empty output. Source: arXiv:2407.07071, ``eval_exact_match.py``."""
    written = normalise(output)
    return float(any(x in written if x else not written for x in map(normalise, references)))


def word_f1(output: str, references: Sequence[str]) -> float:
    """F1 of the normalised words, best over the references, as SQuAD 1.1, arXiv:1606.05250."""
    words = normalise(output).split()
    return max(_f1(words, normalise(reference).split()) for reference in references)


def rouge(output: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, -2 and -L (C.-Y. Lin, 2004) with stemming, best over references."""
    scorer = rouge_scorer()
    scores = [scorer.score(reference, output) for reference in references]
    return {name: float(max(score[name].fmeasure for score in scores)) for name in ROUGE}


@cache
def rouge_scorer() -> Any:
    """The scorer of the package ``rouge_score``; ``ConfigError`` if it is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ConfigError(
            "hallucination: rouge needs the package 'rouge_score', got none installed. "
            "Run: pip install 'diffattn[eval]', or set hallucination.rouge=false."
        ) from error
    return RougeScorer(list(ROUGE), use_stemmer=True)


def _f1(output: Sequence[str], reference: Sequence[str]) -> float:
    if not output or not reference:
        return float(output == reference)
    common = sum((Counter(output) & Counter(reference)).values())
    return 2 * common / (len(output) + len(reference))
