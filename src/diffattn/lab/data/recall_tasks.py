"""Recall tasks made of random tokens: their settings, tokenizer, and the accuracy of guessing.

Sequences of lookup and of many-shot classification begin with a BOS token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from diffattn.lab.records.fields import AtLeast, Probability, check_settings, require

_Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyRecallConfig:
    """Key-value pairs scattered among noise tokens, then queries.

    Tokens: 0 is unused, then come ``num_keys`` keys, ``num_values`` values, ``num_noise`` noise.
    """

    num_pairs: _Count = 4
    noise_ratio: float = 2 / 3
    """Share of noise in the context, rounded to whole tokens; from 0 to below 1."""
    num_queries: _Count = 4
    replacement: bool = True
    """Whether a key of the sequence may be queried twice. If not, answers can be eliminated."""
    num_keys: int = 64
    num_values: int = 64
    num_noise: _Count = 64

    def __post_init__(self) -> None:
        where = "NoisyRecallConfig"
        _check_pairs(where, self)
        ratio = self.noise_ratio
        require(where, 0 <= ratio < 1, "noise_ratio must be 0 or more and less than 1", ratio)
        fits = self.replacement or self.num_queries <= self.num_pairs
        most = "num_queries without replacement must be at most num_pairs"
        require(where, fits, most, self.num_queries)

    @property
    def context_len(self) -> int:
        """Number of tokens before the queries."""
        pairs = 2 * self.num_pairs
        return pairs + round(pairs * self.noise_ratio / (1 - self.noise_ratio))

    @property
    def seq_len(self) -> int:
        """T: context and queries."""
        return self.context_len + self.num_queries

    @property
    def vocab_size(self) -> int:
        """Number of token ids, the unused token 0 included."""
        return 1 + self.num_keys + self.num_values + self.num_noise


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupConfig:
    """Key-value pairs scattered among noise, then queries, some for keys without a pair.

    The answer to a key without a pair is the token "not there". Tokens: 0 is BOS, then keys,
    values, noise, and "not there".
    """

    num_pairs: _Count = 4
    context_len: int = 32
    """Number of tokens of pairs and noise, without BOS."""
    num_queries: _Count = 16
    absent: float = 0.125
    """Probability that a query asks for a key that has no pair in the context."""
    num_keys: int = 8
    num_values: int = 8
    num_noise: _Count = 16

    def __post_init__(self) -> None:
        where = "LookupConfig"
        _check_pairs(where, self)
        absent, num_keys = self.absent, self.num_keys
        require(where, 0 <= absent < 1, "absent must be 0 or more and less than 1", absent)
        some = num_keys > self.num_pairs or not absent
        require(where, some, "num_keys must be more than num_pairs if keys are absent", num_keys)
        room = self.context_len >= 2 * self.num_pairs
        require(where, room, "context_len must be at least 2 * num_pairs", self.context_len)

    @property
    def seq_len(self) -> int:
        """T: BOS, context and queries."""
        return 1 + self.context_len + self.num_queries

    @property
    def vocab_size(self) -> int:
        """Number of token ids in use."""
        return 2 + self.num_keys + self.num_values + self.num_noise

    @property
    def not_there(self) -> int:
        """The token that answers a query for a key without a pair."""
        return self.vocab_size - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ManyShotConfig:
    """Items and labels alternate; the model must predict the label that follows each item.

    Each class has a few tokens, its items, which are the same in all sequences. A sequence draws
    some classes and gives each a random label, so a label means nothing in another sequence. In
    noisy sequences some labels are wrong, so that more examples help more. Tokens: 0 is BOS, then
    the items, class by class, then the labels.
    """

    num_shots: _Count = 24
    """Items per sequence; ``num_shots - 1`` examples stand before the last one."""
    num_classes: Annotated[int, AtLeast(2)] = 4
    """Classes in a sequence."""
    known_classes: int = 6
    """Classes in the vocabulary."""
    items_per_class: _Count = 2
    num_labels: int = 6
    wrong: Probability = 0.2
    """Probability that a label in a noisy sequence is the label of another class."""
    noisy: Probability = 0.5
    """Probability that a sequence is noisy."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("known_classes", "num_labels"):
            value, must = getattr(self, name), f"{name} must be at least num_classes"
            require("ManyShotConfig", value >= self.num_classes, must, value)

    @property
    def seq_len(self) -> int:
        """T: BOS, items, and all labels but the last."""
        return 2 * self.num_shots

    @property
    def first_label(self) -> int:
        """The first token that is a label."""
        return 1 + self.known_classes * self.items_per_class

    @property
    def vocab_size(self) -> int:
        """Number of token ids in use."""
        return self.first_label + self.num_labels


TaskConfig = NoisyRecallConfig | LookupConfig | ManyShotConfig


def recall_tokenizer(config: TaskConfig, example: Sequence[int]) -> Any:
    """A tokenizer with one word per token. Keys and items are ``A``, ``B``, or with more than 26
    ``k1``, ``k2``; values and labels ``1``, noise ``·1``, "not there" ``-``, and token 0 ``_``.

    The sequence ``example`` is kept as ``init_kwargs["example"]``, the default text of commands.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if isinstance(config, ManyShotConfig):
        num_keys, num_values, num_noise = config.first_label - 1, config.num_labels, 0
    else:
        num_keys, num_values, num_noise = config.num_keys, config.num_values, config.num_noise
    keys = [chr(ord("A") + i) if num_keys <= 26 else f"k{i + 1}" for i in range(num_keys)]
    values = [str(i + 1) for i in range(num_values)]
    words = ["_", *keys, *values, *(f"·{i + 1}" for i in range(num_noise))]
    if isinstance(config, LookupConfig):
        words.append("-")
    vocabulary = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        example=" ".join(words[token] for token in example),
    )


def guessing_ceilings(config: TaskConfig) -> dict[str, float]:
    r"""Expected accuracies of guessing, which a model that recalls must exceed.

    Noisy recall: ``values`` guesses any value, ``pairs`` a value of the sequence. ``elimination``
    guesses a value of the sequence that was not an answer before,
    :math:`\frac{1}{Q} \sum_{i=0}^{Q-1} 1 / (P - i)`. With replacement it equals ``pairs``.

    Lookup: ``not_there`` always answers "not there"; ``pairs`` is the accuracy on keys with a pair.
    Many shots: ``labels`` guesses any label, ``classes`` one of the sequence.
    """
    if isinstance(config, LookupConfig):
        return {"not_there": config.absent, "pairs": 1 / config.num_pairs}
    if isinstance(config, ManyShotConfig):
        return {"labels": 1 / config.num_labels, "classes": 1 / config.num_classes}
    pairs, queries = config.num_pairs, config.num_queries
    left = [pairs if config.replacement else pairs - i for i in range(queries)]
    return {
        "values": 1 / config.num_values,
        "pairs": 1 / pairs,
        "elimination": math.fsum(1 / count for count in left) / queries,
    }


def _check_pairs(where: str, config: NoisyRecallConfig | LookupConfig) -> None:
    check_settings(config)
    for name in ("num_keys", "num_values"):
        value = getattr(config, name)
        require(where, value >= config.num_pairs, f"{name} must be at least num_pairs", value)
