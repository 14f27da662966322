"""RULER's tasks of counting: which words of a list occur most often?"""

import math
import string
from dataclasses import dataclass
from random import Random

from diffattn.lab.evaluation.long_context.ruler.samples import Material, RulerTask, Sample

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
    example_words: int = 40
    """Number of different words in the worked example."""
    example_repeats: tuple[int, int] = (10, 3)
    """How often each common word, and each other word, occurs in the worked example."""
    repeats: tuple[int, int] = (30, 3)
    """How often each common word, and each other word, occurs in the list of the question."""

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        """See :meth:`RulerTask.units`."""
        assert material.words is not None
        most = len(material.words.words) - self.example_words
        return self.num_common + 1, length if material.words.goes_on else most

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        """See :meth:`RulerTask.build`."""
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
        """See :meth:`RulerTask.units`."""
        # With N / zeta(2) >= 32, the words of rank 4 and 5 always differ in frequency.
        return math.ceil(32 * _ZETA_2), length

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        """See :meth:`RulerTask.build`."""
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
