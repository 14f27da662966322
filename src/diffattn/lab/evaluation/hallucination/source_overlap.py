"""Support of a text in its source: entities, numbers and word pairs."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

_WORD = re.compile(r"\w+(?:[.'’-]\w+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)]*(?=\s|$)")
_SENTENCE_BREAK = re.compile(r"[.!?:;\n\"“‘(]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """The distinct pieces of a text of one sort, split by whether its source holds them."""

    supported: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def share(self) -> float | None:
        """Share found; ``None`` where there is no such piece."""
        total = len(self.supported) + len(self.missing)
        return len(self.supported) / total if total else None


def entity_support(text: str, source: str) -> Support:
    """Entities of the text that stand in the source, case ignored.

    An entity is a run of capitalised words with nothing but a space between them. The first word
    of a sentence is capitalised by grammar and never counts, nor does the word I; a possessive
    's is dropped. It is found if the source holds the same words in a row.
    """
    words = f" {' '.join(_plain(word) for word in _WORD.findall(source))} ".lower()
    return _split(entities(text), lambda entity: f" {entity.lower()} " in words)


def number_support(text: str, source: str) -> Support:
    """Numbers in digits that stand in the source; commas between thousands do not matter."""
    known = set(_numbers(source))
    return _split(_numbers(text), lambda number: number in known)


def bigram_support(text: str, source: str) -> Support:
    """Pairs of neighbouring words, in lower case, that are neighbours in the source.

    1 − share is the proportion of novel bigrams, arXiv:1808.08745, section 2.
    """
    known = set(_bigrams(source))
    return _split(_bigrams(text), lambda pair: pair in known)


def first_sentences(text: str, count: int) -> str:
    """The beginning of a text up to the end of so many sentences, or all of it.

    A sentence ends with a full stop, an exclamation or a question mark before white space.
    """
    ends = [match.end() for match in islice(_SENTENCE_END.finditer(text), count)]
    return text[: ends[-1]] if len(ends) == count else text


def entities(text: str) -> Iterator[str]:
    """Runs of capitalised words; see :func:`entity_support`."""
    run: list[str] = []
    end = 0
    for match in _WORD.finditer(text):
        gap, word = text[end : match.start()], _plain(match.group())
        if run and gap != " ":
            yield " ".join(run)
            run = []
        starts_sentence = end == 0 or _SENTENCE_BREAK.search(gap) is not None
        if word[0].isupper() and word != "I" and not starts_sentence:
            run.append(word)
        elif run:
            yield " ".join(run)
            run = []
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


def _split(pieces: Iterable[str], is_found: Callable[[str], bool]) -> Support:
    distinct = list(dict.fromkeys(pieces))
    supported = tuple(piece for piece in distinct if is_found(piece))
    return Support(
        supported=supported, missing=tuple(p for p in distinct if p not in set(supported))
    )
