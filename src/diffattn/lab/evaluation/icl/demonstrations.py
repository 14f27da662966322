"""Choose, order and read demonstrations for in-context learning."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import wraps
from itertools import accumulate
from typing import TypeVar
from weakref import WeakKeyDictionary

from diffattn.errors import ConfigError, check_known
from diffattn.lab.evaluation.icl.data import ICL_DATASETS, Example, load_icl_data
from diffattn.lab.evaluation.protocol import Protocol
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.inference.scoring import LabelTrie

SEPARATOR = "\n==\n"
P = TypeVar("P")
T = TypeVar("T")


class IclProtocol(Protocol):
    """A protocol that asks for the class of a text after demonstrations."""

    dataset: str = "trec"
    """``trec``, ``trec_fine``, ``banking77``, ``clinic150`` or ``clinic151`` (with ``oos``)."""
    data: str = "hub"
    """Folder with the original files, or with ``train.jsonl`` and ``test.jsonl``, or the folder
    above it; ``"hub"``; or ``"generated"`` for made-up examples."""
    columns: dict[str, str] = field(default_factory=dict)
    """``text`` and ``label`` to their names in CSV files (there ``category``) and JSON lines."""

    def __post_init__(self) -> None:
        check_known(self.name, "dataset", self.dataset, ICL_DATASETS)
        self.require_columns(("text", "label"), fixed=("hub", "generated"))

    def numbers_that_fit(self, model: LanguageModel, wanted: Sequence[int], fit: int) -> list[int]:
        """The wanted numbers of demonstrations that are at most ``fit``; raises without any."""
        numbers = [n for n in wanted if n <= fit]
        if not numbers:
            raise ConfigError(
                f"{self.name}: {self.dataset} examples must be at most {fit}, "
                f"which fit {model.label}'s {model.max_length} tokens, got {wanted[0]}. Set fewer "
                "shots, or a smaller per_class."
            )
        return numbers


class IclTask:
    r"""A dataset as the tokens of one model: prompts, labels and test items.

    A prompt has ``{x_prefix}{text}\n{y_prefix}{label}`` for each demonstration and ends with the
    question up to ``y_prefix`` without its last space, all joined by ``\n==\n``. ``seed`` draws the
    test items; a smaller number of them is a part of a larger one.
    """

    def __init__(self, model: LanguageModel, settings: IclProtocol, test_items: int, seed: int):
        data = load_icl_data(settings.dataset, settings.data, settings.columns)
        self.known = ICL_DATASETS[settings.dataset]
        longest = longest_kept(data.train)
        self.train = [example for example in data.train if len(example.text) <= longest]
        usable = [i for i, example in enumerate(data.test) if len(example.text) <= longest]
        if len(usable) < test_items:
            raise ConfigError(
                f"{settings.dataset}: test_items must be at most {len(usable)}, got {test_items}."
            )
        chosen = random.Random(f"test-{seed}").sample(usable, len(usable))[:test_items]
        self.test = {i: data.test[i] for i in sorted(chosen)}
        self.trie = LabelTrie(model, data.labels, f"{SEPARATOR}{self._question('x')}")
        self.questions = {
            i: model.encode_after(SEPARATOR, self._question(example.text))
            for i, example in self.test.items()
        }

    def encode(self, model: LanguageModel, examples: Sequence[Example]) -> list[list[int]]:
        """Tokens of each demonstration with the separator after it; the first begins with BOS."""
        texts = [
            f"{self._question(example.text)} {example.label}{SEPARATOR}" for example in examples
        ]
        pieces = [model.encode_after(SEPARATOR, text) for text in texts[1:]]
        return [model.encode_prompt(texts[0]), *pieces] if texts else []

    def _question(self, text: str) -> str:
        return f"{self.known.x_prefix}{text}\n{self.known.y_prefix.rstrip()}"


class DemonstrationReader:
    """Read demonstrations in steps: a larger number continues the cache of a smaller one. The steps
    are fixed, so a continued evaluation has the same rounding as an uninterrupted one."""

    def __init__(self, pieces: Sequence[Sequence[int]], steps: Sequence[int]) -> None:
        self.pieces, self.steps = pieces, sorted(steps)
        self._read: tuple[int, Prefix] | None = None

    def prefix(self, model: LanguageModel, count: int) -> Prefix:
        """The cache of the first ``count`` demonstrations; ``count`` must be one of the steps."""
        done, prefix = self._read if self._read and self._read[0] <= count else (0, None)
        for step in self.steps:
            if done < step <= count:
                prefix = model.read([t for piece in self.pieces[done:step] for t in piece], prefix)
                done = step
        assert prefix is not None, "count is one of the steps"
        self._read = (done, prefix)
        return prefix


def most_within(sizes: Iterable[int], room: int) -> int:
    """Largest number of leading sizes whose sum is at most ``room``."""
    return bisect_right(list(accumulate(sizes)), room)


def balanced_rounds(
    examples: Iterable[Example], seed: int, limit: int | None = None
) -> list[Example]:
    """Rounds with one example of each class in random order, without replacement; used-up classes
    drop out. ``limit`` cuts the list."""
    generator = random.Random(f"rounds-{seed}")
    left = _by_class(examples, generator)
    chosen: list[Example] = []
    while left and (limit is None or len(chosen) < limit):
        order = list(left)
        generator.shuffle(order)
        for label in order:
            chosen.append(left[label].pop())
            if not left[label]:
                del left[label]
    return chosen[:limit]


def skipped_classes(order: Sequence[Example], count: int) -> int:
    """Classes missing in a complete round of the first ``count`` of all balanced rounds."""
    sizes = Counter(example.label for example in order).values()
    complete, left = 0, count
    while (width := sum(size > complete for size in sizes)) and width <= left:
        complete, left = complete + 1, left - width
    return sum(size < complete for size in sizes)


def alternating_order(examples: Sequence[Example], seed: int) -> list[Example]:
    """The examples with classes in turn, always in the same random order of the classes."""
    generator = random.Random(f"alternating-{seed}")
    left = _by_class(examples, generator)
    order = list(left)
    generator.shuffle(order)
    longest = max(map(len, left.values()), default=0)
    return [left[name][i] for i in range(longest) for name in order if i < len(left[name])]


def longest_kept(examples: Iterable[Example]) -> int:
    """The 99th percentile of the lengths of the texts, in characters."""
    lengths = sorted(len(example.text) for example in examples)
    return lengths[max(0, -(-len(lengths) * 99 // 100) - 1)]


def kept_per_model(prepare: Callable[[P, LanguageModel], T]) -> Callable[[P, LanguageModel], T]:
    """Decorator: cache the result per model, until the protocol changes or the model is deleted."""
    kept: WeakKeyDictionary[LanguageModel, tuple[P, T]] = WeakKeyDictionary()

    @wraps(prepare)
    def ready(protocol: P, model: LanguageModel) -> T:
        entry = kept.get(model)
        if entry is None or entry[0] != protocol:
            entry = kept[model] = (protocol, prepare(protocol, model))
        return entry[1]

    return ready


def _by_class(examples: Iterable[Example], generator: random.Random) -> dict[str, list[Example]]:
    """Label to its examples in random order; labels are sorted."""
    classes: dict[str, list[Example]] = {}
    for example in examples:
        classes.setdefault(example.label, []).append(example)
    for members in classes.values():
        generator.shuffle(members)
    return dict(sorted(classes.items()))
