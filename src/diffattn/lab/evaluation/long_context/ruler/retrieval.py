"""RULER's tasks of retrieval, of tracing chains of variables, and of counting words."""

import math
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from diffattn.lab.evaluation.long_context.haystack import insert_sentences
from diffattn.lab.evaluation.long_context.ruler.samples import (
    ADJECTIVES,
    DEPTHS,
    NOISE,
    NOUNS,
    Material,
    RulerTask,
    Sample,
)

_ASK = (
    "{some} special magic {kind} {are} hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What {are_all} the special magic {kind} for {query} mentioned in the provided text?"
)
_PREFIX = " The special magic {kind} for {query} mentioned in the provided text {are}"
_TRACK = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{context}\nQuestion: Find all variables that are assigned the value {query} in the text above."
)
# Upstream's spelling of "assigned" is kept: the prompt is part of the protocol.
_TRACK_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {number} "
    "variables are assgined the value {query}, they are:"
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DRAW: dict[str, Callable[[Random], str]] = {
    "words": lambda draw: f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}",
    "numbers": lambda draw: str(draw.randint(1_000_000, 9_999_999)),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedleTask(RulerTask):
    """Find the values of keys, each in a sentence hidden between others (section 3.1)."""

    max_new_tokens: int = 128
    haystack: str  # ``"noise"`` (one line repeated), ``"essay"`` (the background) or ``"needle"``
    key_kind: str = "words"
    value_kind: str = "numbers"
    num_keys: int = 1
    num_values: int = 1  # per key
    num_queries: int = 1

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        if self.haystack == "essay":
            assert material.background is not None
            return 1, len(material.background.words)
        return max(self.num_keys, self.num_queries) * self.num_values, length

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        draw = Random(f"{seed}-needles")
        num_keys = max(self.num_keys, self.num_queries)
        keys = _distinct(self._draw_key(material), draw, num_keys)
        values = _distinct(
            _DRAW[self.value_kind], draw, num_keys * self.num_values, material.numbers
        )
        pairs = [(keys[i // self.num_values], value) for i, value in enumerate(values)]
        asked = draw.sample(keys, self.num_queries)
        hidden = list(pairs)
        draw.shuffle(hidden)
        needles = [self._needle(key, value) for key, value in hidden]
        others: list[str] = []
        if self.haystack == "essay":
            assert material.background is not None
            first = Random(f"{seed}-passage").randrange(len(material.background.starts))
            lines = material.background.passage(0 if material.from_beginning else first, units)
            depths = sorted(Random(f"{seed}-places").sample(DEPTHS, len(needles)))
            places = [int(len(lines) * depth / 100) for depth in depths]
        else:
            lines, others = self._lines(units, seed, set(keys), set(values), material)
            places = sorted(Random(f"{seed}-places").sample(range(len(lines)), len(needles)))
            depths = [round(100 * place / len(lines)) for place in places]
        border = " " if self.haystack == "essay" else "\n"
        context = border.join(insert_sentences(lines, places, needles))
        references = tuple(value for key in asked for k, value in pairs if k == key)
        query = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + ", and " + asked[-1]
        words = {"some": "Some", "kind": self.value_kind, "are": "are", "are_all": "are all"}
        if len(references) == 1:
            words = {"some": "A", "kind": self.value_kind[:-1], "are": "is", "are_all": "is"}
        return Sample(
            question=_ASK.format(context=context, query=query, **words),
            answer_prefix=_PREFIX.format(query=query, **words),
            references=references,
            answer=", ".join(references),
            candidates=tuple(dict.fromkeys([*values, *others])),
            notes={
                "query": query,
                "depths": [d for (key, _), d in zip(hidden, depths, strict=True) if key in asked],
            },
        )

    def _needle(self, key: str, value: str) -> str:
        return f"One of the special magic {self.value_kind} for {key} is: {value}."

    def _draw_key(self, material: Material) -> Callable[[Random], str]:
        """The function that draws a key; words come from the user's list if there is one."""
        keys = material.keys
        if self.key_kind != "words" or keys is None:
            return _DRAW[self.key_kind]
        return lambda draw: draw.choice(keys)

    def _lines(
        self, units: int, seed: str, keys: set[str], values: set[str], material: Material
    ) -> tuple[list[str], list[str]]:
        """Lines of noise, or needles without the ``keys`` and ``values`` of the sample; and the
        values of these needles."""
        if self.haystack == "noise":
            return [NOISE] * units, []
        draw, draw_key = Random(f"{seed}-distractors"), self._draw_key(material)
        lines, others = [], []
        for _ in range(units):
            key = _draw_new(draw_key, draw, keys)
            others.append(_draw_new(_DRAW[self.value_kind], draw, values))
            lines.append(self._needle(key, others[-1]))
        return lines, others


@dataclass(frozen=True, kw_only=True, slots=True)
class VariableTask(RulerTask):
    """Find all variables with a value, in a chain of assignments (section 3.2)."""

    max_new_tokens: int = 30
    num_hops: int = 4

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        return self.num_hops + 1, length

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        example, example_prefix, known, value = self._ask(10, 3, seed, "example", "")
        question, prefix, names, _ = self._ask(units, 5, seed, "question", value)
        return Sample(
            question=f"{example}{example_prefix} {' '.join(known)}\n\n{question}",
            answer_prefix=prefix,
            references=tuple(names),
            answer=" ".join(names),
            candidates=tuple(names),
        )

    def _ask(
        self, units: int, letters: int, seed: str, purpose: str, taken: str
    ) -> tuple[str, str, list[str], str]:
        """Question, answer prefix, variables and value; the value is not ``taken``."""
        draw = Random(f"{seed}-{purpose}")
        names = _distinct(
            lambda d: "".join(d.choices(_LETTERS, k=letters)), draw, self.num_hops + 1
        )
        value = _draw_new(lambda d: str(d.randint(10_000, 99_999)), draw, {taken})
        statements = [f"VAR {names[0]} = {value}"]
        statements += [f"VAR {names[i + 1]} = VAR {names[i]}" for i in range(self.num_hops)]
        places = sorted(Random(f"{seed}-{purpose}-places").sample(range(units), len(statements)))
        lines = insert_sentences([NOISE] * units, places, statements)
        question = _TRACK.format(context="\n".join(lines), query=value)
        return question, _TRACK_PREFIX.format(number=len(names), query=value), names, value


def _distinct(
    make: Callable[[Random], str], draw: Random, count: int, taken: frozenset[str] = frozenset()
) -> list[str]:
    """``count`` different strings that are not in ``taken``."""
    strings: list[str] = []
    while len(strings) < count:
        strings.append(_draw_new(make, draw, {*taken, *strings}))
    return strings


def _draw_new(make: Callable[[Random], str], draw: Random, taken: set[str]) -> str:
    """Draw until a string is not in ``taken``, which is always much smaller than the choice."""
    while (string := make(draw)) in taken:
        pass
    return string


_COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
)
_COMMON_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
_FREQUENT = (
    "Read the following coded text and track the frequency of each coded word. Find the three "
    "most frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. "
    "Please ignore the dots '....'. What are the three most frequently appeared words in the "
    "above coded text?"
)
_FREQUENT_PREFIX = (
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonWordsTask(RulerTask):
    """Find the ten most frequent words of a list, after one worked example (section 3.3)."""

    max_new_tokens: int = 120
    num_common: int = 10
    example_words: int = 40  # different words in the worked example
    example_repeats: tuple[int, int] = (10, 3)  # of each common word, and of each other word, there
    repeats: tuple[int, int] = (30, 3)  # the same in the list of the question

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        assert material.words is not None
        most = len(material.words.words) - self.example_words
        return self.num_common + 1, length if material.words.goes_on else most

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        assert material.words is not None
        words = material.words.draw(self.example_words + units, Random(f"{seed}-words"))
        shown, asked = words[: self.example_words], words[self.example_words :]
        example, known, _ = self._list(shown, self.example_repeats, Random(f"{seed}-example"))
        question, common, listed = self._list(asked, self.repeats, Random(f"{seed}-question"))
        return Sample(
            question=f"{example}{_COMMON_PREFIX} {_numbered(known)}\n{question}",
            answer_prefix=_COMMON_PREFIX,
            references=tuple(common),
            answer=_numbered(common),
            listed=tuple(listed),
            notes={"repeats": list(self.repeats)},
        )

    def _list(
        self, words: list[str], repeats: tuple[int, int], draw: Random
    ) -> tuple[str, list[str], list[str]]:
        """The question about a shuffled list, the common words, and the shuffled list."""
        common, others = words[: self.num_common], words[self.num_common :]
        listed = common * repeats[0] + others * repeats[1]
        draw.shuffle(listed)
        return _COMMON.format(context=_numbered(listed)), common, listed


@dataclass(frozen=True, kw_only=True, slots=True)
class FrequentWordsTask(RulerTask):
    r"""Find the three most frequent words in a text of coded words (section 3.3).

    .. math:: n_k = \lfloor N k^{-\alpha} / \zeta(\alpha) \rfloor, \quad \alpha = 2

    Rank k occurs n_k times; N counts the units. Rank 1 is ``...``, ranks 2 to 4 are the answer.
    """

    max_new_tokens: int = 50

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        # With N / zeta(2) >= 32, the words of rank 4 and 5 always differ in frequency.
        return math.ceil(32 * _ZETA_2), length

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        draw = Random(f"{seed}-words")
        ranks = max(5, (length - self.max_new_tokens) // 50)
        coded: dict[str, None] = {}
        while len(coded) < ranks:
            coded["".join(draw.choices(string.ascii_lowercase, k=6))] = None
        words = ["...", *list(coded)[1:]]
        text: list[str] = []
        for rank, word in enumerate(words, start=1):
            text += [word] * int(units * rank**-2 / _ZETA_2)
        Random(f"{seed}-order").shuffle(text)
        return Sample(
            question=_FREQUENT.format(context=" ".join(text)),
            answer_prefix=_FREQUENT_PREFIX,
            references=tuple(words[1:4]),
            answer=" ".join(words[1:4]),
            listed=tuple(word for word in text if word != words[0]),
        )


_ZETA_2 = math.pi**2 / 6


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
