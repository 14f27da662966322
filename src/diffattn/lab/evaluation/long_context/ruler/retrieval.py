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
)
from diffattn.lab.evaluation.long_context.ruler.words import ADJECTIVES, NOUNS

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
    haystack: str
    """``"noise"`` (one line repeated), ``"essay"`` (the background) or ``"needle"`` (needles)."""
    key_kind: str = "words"
    value_kind: str = "numbers"
    num_keys: int = 1
    num_values: int = 1
    """Number of values per key."""
    num_queries: int = 1

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        """See :meth:`RulerTask.units`."""
        if self.haystack == "essay":
            assert material.background is not None
            return 1, len(material.background.words)
        return max(self.num_keys, self.num_queries) * self.num_values, length

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        """See :meth:`RulerTask.build`."""
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
        """See :meth:`RulerTask.units`."""
        return self.num_hops + 1, length

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        """See :meth:`RulerTask.build`."""
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
