"""RULER's tasks of retrieval (needles in a haystack) and tracing (chains of variables)."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from diffattn.lab.evaluation.long_context.haystack import insert_sentences
from diffattn.lab.evaluation.long_context.ruler.samples import (
    DEPTHS,
    NOISE,
    Material,
    RulerTask,
    Sample,
    Streams,
)
from diffattn.lab.evaluation.long_context.ruler.words import ADJECTIVES, NOUNS

_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_SINGLE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What is the special magic {kind} for {query} mentioned in the provided text?"
)
_ONE_PREFIX = " The special magic {kind} for {query} mentioned in the provided text is"
_MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
)
_MANY_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
_TRACK = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{context}\nQuestion: Find all variables that are assigned the value {query} in the text above."
)
# Upstream's spelling of "assigned" is kept: the prompt is part of the protocol.
_TRACK_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {number} "
    "variables are assgined the value {query}, they are:"
)
_EXAMPLE_LINES = 10
"""Number of noise lines in the worked example before the question."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


_DRAW: dict[str, Callable[[Random], str]] = {
    "words": lambda draw: f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}",
    "numbers": lambda draw: str(draw.randint(1_000_000, 9_999_999)),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}


def _key(kind: str, material: Material) -> Callable[[Random], str]:
    """The function that draws a key of a kind; words come from the user's list if there is one."""
    keys = material.keys
    return _DRAW[kind] if kind != "words" or keys is None else lambda draw: draw.choice(keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedleTask(RulerTask):
    """Find the values of keys; each is in a sentence hidden between other sentences.

    Source: RULER, arXiv:2404.06654, section 3.1.
    """

    max_new_tokens: int = 128
    haystack: str
    """``"noise"`` (one line repeated), ``"essay"`` (the background) or ``"needle"`` (needles)."""
    key_kind: str = "words"
    value_kind: str = "numbers"
    num_keys: int = 1
    num_values: int = 1
    """Number of values per key."""
    num_queries: int = 1

    def least(self, material: Material, index: int) -> int:
        """See :meth:`RulerTask.least`."""
        if self.haystack == "essay":
            return 1
        return max(self.num_keys, self.num_queries) * self.num_values

    def most(self, material: Material, index: int, length: int) -> int:
        """See :meth:`RulerTask.most`."""
        if self.haystack != "essay":
            return length
        assert material.background is not None
        return len(material.background.words)

    def build(
        self, units: int, length: int, index: int, streams: Streams, material: Material
    ) -> Sample:
        """See :meth:`RulerTask.build`."""
        draw, others = streams("needles"), list[str]()
        num_keys = max(self.num_keys, self.num_queries)
        keys = _distinct(_key(self.key_kind, material), draw, num_keys)
        values = _distinct(
            _DRAW[self.value_kind], draw, num_keys * self.num_values, material.numbers
        )
        owner = [keys[i // self.num_values] for i in range(len(values))]
        asked = draw.sample(keys, self.num_queries)
        hidden = list(zip(owner, values, strict=True))
        draw.shuffle(hidden)
        needles = [
            _NEEDLE.format(kind=self.value_kind, key=key, value=value) for key, value in hidden
        ]
        if self.haystack == "essay":
            context, depths = self._in_text(needles, units, streams, material)
        else:
            lines, others = self._lines(units, streams, set(keys), set(values), material)
            places = sorted(streams("places").sample(range(len(lines)), len(needles)))
            hidden_at = list(zip(places, needles, strict=True))
            context = "\n".join(insert_sentences(lines, hidden_at))
            depths = [round(100 * place / len(lines)) for place in places]
        by_key = {key: [v for k, v in zip(owner, values, strict=True) if k == key] for key in asked}
        references = tuple(value for key in asked for value in by_key[key])
        query = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + ", and " + asked[-1]
        single = len(references) == 1
        kind = self.value_kind[:-1] if single else self.value_kind
        return Sample(
            question=(_SINGLE if single else _MANY).format(kind=kind, context=context, query=query),
            answer_prefix=(_ONE_PREFIX if single else _MANY_PREFIX).format(kind=kind, query=query),
            references=references,
            answer=", ".join(references),
            candidates=tuple(dict.fromkeys([*values, *others])),
            notes={
                "query": query,
                "depths": [d for (key, _), d in zip(hidden, depths, strict=True) if key in asked],
            },
        )

    def _in_text(
        self, needles: list[str], units: int, streams: Streams, material: Material
    ) -> tuple[str, list[int]]:
        """A passage with needles between its sentences, each at another depth; the depths."""
        assert material.background is not None
        first = streams("passage").randrange(len(material.background.starts))
        if material.from_beginning:
            first = 0
        sentences = material.background.passage(first, units)
        depths = sorted(streams("places").sample(DEPTHS, len(needles)))
        places = [int(len(sentences) * depth / 100) for depth in depths]
        return " ".join(
            insert_sentences(sentences, list(zip(places, needles, strict=True)))
        ), depths

    def _lines(
        self, units: int, streams: Streams, keys: set[str], values: set[str], material: Material
    ) -> tuple[list[str], list[str]]:
        """Lines of noise, or needles without the ``keys`` and ``values`` of the sample; and the
        values of these needles."""
        if self.haystack == "noise":
            return [NOISE] * units, []
        draw = streams("distractors")
        pairs = [
            (
                _draw_new(_key(self.key_kind, material), draw, keys),
                _draw_new(_DRAW[self.value_kind], draw, values),
            )
            for _ in range(units)
        ]
        lines = [_NEEDLE.format(kind=self.value_kind, key=k, value=v) for k, v in pairs]
        return lines, [value for _, value in pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class VariableTask(RulerTask):
    """Find all variables with a value, in a chain of assignments.

    Source: RULER, arXiv:2404.06654, section 3.2.
    """

    max_new_tokens: int = 30
    num_hops: int = 4

    def least(self, material: Material, index: int) -> int:
        """See :meth:`RulerTask.least`."""
        return self.num_hops + 1

    def build(
        self, units: int, length: int, index: int, streams: Streams, material: Material
    ) -> Sample:
        """See :meth:`RulerTask.build`."""
        example, example_prefix, known, value = self._ask(_EXAMPLE_LINES, 3, streams, "example", "")
        question, prefix, names, _ = self._ask(units, 5, streams, "question", value)
        return Sample(
            question=f"{example}{example_prefix} {' '.join(known)}\n\n{question}",
            answer_prefix=prefix,
            references=tuple(names),
            answer=" ".join(names),
            candidates=tuple(names),
        )

    def _ask(
        self, units: int, letters: int, streams: Streams, purpose: str, taken: str
    ) -> tuple[str, str, list[str], str]:
        """Question, answer prefix, variables and value; the value is not ``taken``."""
        draw = streams(purpose)
        names = _distinct(
            lambda d: "".join(d.choices(_LETTERS, k=letters)), draw, self.num_hops + 1
        )
        value = _draw_new(lambda d: str(d.randint(10_000, 99_999)), draw, {taken})
        statements = [f"VAR {names[0]} = {value}"]
        statements += [f"VAR {names[i + 1]} = VAR {names[i]}" for i in range(self.num_hops)]
        places = sorted(streams(f"{purpose}-places").sample(range(units), len(statements)))
        lines = insert_sentences([NOISE] * units, list(zip(places, statements, strict=True)))
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
