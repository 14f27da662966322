"""A network and its tokenizer: text to tokens, tokens to keys, values and logits."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.models.config.settings import steady_positions
from diffattn.models.loading import end_tokens, known_tokens
from diffattn.models.memory import available_bytes
from diffattn.ops.inputs.numbers import LARGEST_COUNT
from diffattn.probes.passes import require_finite_logits


@dataclass(frozen=True, kw_only=True, slots=True)
class PassLimits:
    """Limits of one forward pass. They bound memory, however long or many the texts are."""

    chunk_tokens: int = 2_048
    """Most tokens of one row in a pass; longer rows run in chunks."""
    chunk_logits: int = 2**26
    """Most logits of a chunk, of the branches of a tree, or of sliding windows in one pass."""
    batch_tokens: int = 16_384
    """Most tokens of rows in one pass, padding included."""
    batch_logits: int = 2**27
    """Most logits of rows in one pass if the logits of all tokens are kept."""
    cache_bytes: int = 512 * 1024 * 1024
    """Most bytes of keys and values in one pass. A prefix counts once per row that reads it."""
    copied_tokens: int = 8_192
    """From this number of copied prefix tokens (rows x prefix) on, one masked tree is cheaper."""


STANDARD_LIMITS = PassLimits()


def limits_on(device: torch.device) -> PassLimits:
    """Limits for a device that already holds the model, by its free memory.

    Sizes are powers of two, so that small changes of free memory change no batch and no rounding.
    """
    standard = STANDARD_LIMITS
    if device.type not in ("cuda", "cpu"):
        return standard
    free = available_bytes() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])
    if free is None:
        return standard
    share = max(2**24, free // 4)  # attention and logits need the rest
    # 128 rows keep a GPU busy; more gain nothing.
    most = standard.cache_bytes * (8 if device.type == "cuda" else 1)
    allowed = min(most, 1 << (share.bit_length() - 1))  # the power of two below the share
    factor = allowed / standard.cache_bytes
    return PassLimits(
        cache_bytes=allowed,
        batch_tokens=int(standard.batch_tokens * max(1.0, factor)),
        batch_logits=int(standard.batch_logits * min(1.0, factor)),
        chunk_logits=int(standard.chunk_logits * min(1.0, factor)),
    )


def batches(order: Iterable[int], fit: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Batches of the indices in ``order``, each as long as ``fit`` allows, at least one index."""
    batch: list[int] = []
    for i in order:
        if batch and not fit([*batch, i]):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class ItemError(DiffAttnError):
    """One item cannot be asked or scored. The error is recorded, and the evaluation goes on."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The key-value cache of tokens that have been read. It is never changed."""

    length: int
    cache: DynamicCache

    @property
    def keeps_all(self) -> bool:
        """Whether every layer keeps the keys and values of all tokens: none has a window."""
        return all(type(layer) is DynamicLayer for layer in self.cache.layers)

    def rows(self, count: int) -> DynamicCache:
        """A cache for ``count`` rows that all begin with these tokens; tensors are not copied."""
        cache = copy.copy(self.cache)
        cache.layers = []
        for layer in self.cache.layers:
            layer = copy.copy(layer)  # an update replaces its tensors, so the original stays
            if self.length:
                layer.keys = layer.keys.expand(count, -1, -1, -1)
                layer.values = layer.values.expand(count, -1, -1, -1)
            cache.layers.append(layer)
        return cache


class ModelError(DiffAttnError):
    """A model cannot be asked at all. The evaluation stops; the same command continues it later."""


class NetworkReader:
    """A Hugging Face causal language model and its tokenizer, in evaluation mode.

    Args:
        network: Its forward must take ``past_key_values`` and ``logits_to_keep``.
        label, path: Short name, and where the model was loaded from, for records.
        max_length: Longest sequence in tokens. Default: ``max_position_embeddings``, or 2**30.
        add_bos: Begin every sequence with the BOS token. Default: if the tokenizer has one.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        *,
        label: str = "model",
        path: str = "",
        max_length: int | None = None,
        add_bos: bool | None = None,
        limits: PassLimits = STANDARD_LIMITS,
    ) -> None:
        self.network, self.tokenizer = network.eval(), tokenizer
        self.label, self.path, self.limits = label, path, limits
        self.text_config = network.config.get_text_config()  # a part of a multimodal config
        positions = getattr(self.text_config, "max_position_embeddings", None)
        self.max_length: int = max_length or positions or 2**30
        if not 2 <= self.max_length <= LARGEST_COUNT:
            raise ConfigError(
                f"{label}: max_length must be from 2 to {LARGEST_COUNT} tokens, got {max_length}."
            )
        if add_bos and tokenizer.bos_token_id is None:
            raise ConfigError(f"{label}: add_bos needs a tokenizer with a BOS token, got none.")
        layers = {type(layer) for layer in DynamicCache(config=network.config).layers}
        other = [x.__name__ for x in layers - {DynamicLayer, DynamicSlidingWindowLayer}]
        known = inspect.signature(network.forward).parameters
        if "state" in known and "past_key_values" not in known:
            other.append("a recurrent state")
        if other:  # padding would change a recurrent state, and rows could not share one
            raise ConfigError(f"{label}: layers must keep keys and values, got {other[0]}.")
        self.bos: int | None = tokenizer.bos_token_id if add_bos is not False else None
        self._add_bos = add_bos
        self._num_tokens, self._steady = known_tokens(network), steady_positions(network.config)
        self._prefix: int | None = None  # stands for an empty context without BOS; None: EOS
        self.rows_alone = False  # True: one row per pass and no shared prefixes

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Tokens of ``text`` alone, without BOS. Special tokens that it spells out are encoded as
        plain characters, or with ``special`` as special tokens, as a chat template needs it."""
        options = {} if special else {"split_special_tokens": True}
        return list(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])

    def encode_prompt(self, text: str, *, special: bool = False) -> list[int]:
        """BOS, if sequences begin with one, and the tokens of ``text``; see :meth:`encode`."""
        ids = self.encode(text, special=special)
        return [*([] if self._begins_itself(ids, special) else self.start()), *ids]

    def encode_after(self, before: str, text: str) -> list[int]:
        """Tokens of ``text`` where it follows ``before``. If a token would span both texts, the
        tokens of ``text`` alone."""
        alone, whole = self.encode(before), self.encode(before + text)
        if whole[: len(alone)] != alone or len(whole) == len(alone):
            return self.encode(text)
        return whole[len(alone) :]

    def encode_pair(
        self, context: str, continuation: str, *, special: bool = False
    ) -> tuple[list[int], list[int]]:
        """Tokens of a context with BOS and of its continuation, split as in lm-evaluation-harness.

        Spaces at the end of the context move to the continuation. Both are encoded as one string;
        the continuation begins after as many tokens as the context alone has, even if a token
        spans both. If that leaves no token, both are encoded separately.
        """
        text = context + continuation
        context = context.rstrip()
        continuation = text[len(context) :]
        before = self.encode(context, special=special)
        whole = self.encode(text, special=special)
        if len(whole) <= len(before):
            whole = [*before, *self.encode(continuation, special=special)]
        start = [] if self._begins_itself(before, special) else self.start(not before)
        return [*start, *whole[: len(before)]], whole[len(before) :]

    def _begins_itself(self, ids: Sequence[int], special: bool) -> bool:
        """Whether a text begins with a spelled-out BOS, so that no second BOS is added."""
        return special and self.bos is not None and list(ids[:1]) == [self.bos]

    def as_its_tokenizer_begins(self) -> Self:
        """A copy that adds BOS only if ``add_bos`` or its tokenizer does, as in
        lm-evaluation-harness. An empty context is BOS in any case."""
        other = copy.copy(self)
        bos = self.tokenizer.bos_token_id
        if self._add_bos is None and self.tokenizer("a")["input_ids"][:1] != [bos]:
            other.bos = None
        other._prefix = bos
        return other

    def start(self, required: bool = False) -> list[int]:
        """BOS if sequences begin with it. If not, EOS if a token is ``required``, else nothing."""
        if self.bos is not None:
            return [self.bos]
        if not required:
            return []
        prefix = self.tokenizer.eos_token_id if self._prefix is None else self._prefix
        if prefix is None:
            raise ConfigError(
                f"{self.label}: an empty context needs a tokenizer with BOS or EOS, got neither."
            )
        return [prefix]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @cached_property
    def special_tokens(self) -> frozenset[int]:
        """Tokens that :meth:`decode` leaves out."""
        added = self.tokenizer.added_tokens_decoder.items()
        named = (token for token, entry in added if entry.special)
        return frozenset([*self.tokenizer.all_special_ids, *named])

    @cached_property
    def end_tokens(self) -> list[int]:
        """See :func:`diffattn.models.loading.end_tokens`."""
        return end_tokens(self.network, self.tokenizer)

    @property
    def device(self) -> torch.device:
        """Device of the network's inputs."""
        return torch.device(self.network.device)

    @torch.no_grad()
    def read(self, ids: Sequence[int], before: Prefix | None = None) -> Prefix:
        """Run the network on tokens in chunks and cache their keys and values, after ``before``."""
        if before is None:
            before = Prefix(0, DynamicCache(config=self.network.config))
        self.require_ids(ids)
        self.require_steady(before.length + len(ids))
        cache = before.rows(1)
        size = self.limits.chunk_tokens
        for start in range(0, len(ids), size):
            chunk = torch.tensor([list(ids[start : start + size])], device=self.device)
            self.network(input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return Prefix(before.length + len(ids), cache)

    @torch.no_grad()
    def forward_rows(
        self, prefix: Prefix, rows: Sequence[Sequence[int]], keep: Tensor | None = None
    ) -> tuple[Tensor, DynamicCache]:
        """Logits and cache of rows of any lengths that follow one prefix, padded on the right.

        A causal model never sees the padding after a row's last token, so no mask is needed.
        ``keep``, int64 ``[n]``, lists the columns whose logits are wanted (default: all). Logits
        are ``[rows, longest row or n, vocab_size]``, float32, or float64 for a float64 model.
        """
        longest = max(map(len, rows))
        self.require_steady(prefix.length + longest)
        for row in rows:
            self.require_ids(row)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        cache = prefix.rows(len(rows))
        out = self.network(
            input_ids=ids.to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=0 if keep is None else keep.to(self.device),
        )
        columns = torch.arange(longest) if keep is None else keep.cpu()
        real = columns < torch.tensor([len(row) for row in rows])[:, None]
        self.require_finite(out.logits, used=real)
        return out.logits.to(torch.promote_types(out.logits.dtype, torch.float32)), cache

    def require_ids(self, ids: Iterable[int]) -> None:
        """Raise ``ItemError`` for ids outside the vocabulary: on CUDA they end the process."""
        last = self._num_tokens - 1
        for token in ids:
            if not 0 <= token <= last:
                raise ItemError(f"{self.label}: tokens must be ids from 0 to {last}, got {token}.")

    def require_length(self, tokens: int, subject: str) -> None:
        """Raise ``ItemError`` if a sequence is too long for the model; ``subject`` names it."""
        if tokens > self.max_length:
            raise ItemError(
                f"{subject} must fit the model's {self.max_length} tokens, got {tokens}."
            )
        self.require_steady(tokens)

    def require_steady(self, tokens: int) -> None:
        """Raise ``ItemError`` for a text so long that its rotary frequencies depend on its length,
        so that reading in chunks or in a batch would change its scores."""
        if self._steady is not None and tokens > self._steady[1]:
            kind, most = self._steady
            raise ItemError(
                f"{self.label}: a text must fit the {most} tokens up to which the positions of "
                f"{kind!r} are the same for every length, got {tokens}."
            )

    def require_finite(self, logits: Tensor, *, used: Tensor | None = None) -> None:
        """See :func:`diffattn.probes.passes.require_finite_logits`."""
        require_finite_logits(self.label, logits, self.network, used=used)

    def row_batches(
        self, lengths: Sequence[int], prefix: Prefix, *, all_logits: bool
    ) -> Iterator[list[int]]:
        """Indices of rows that run together: of similar length, as many as the limits allow for
        the logits of every token, or of one token per row."""
        room = self.limits.batch_tokens
        if all_logits:
            room = min(room, self.limits.batch_logits // self.text_config.vocab_size)

        def fit(batch: list[int]) -> bool:
            longest = lengths[batch[-1]]
            held = len(batch) * (prefix.length + longest) * self._cache_bytes_per_token
            fits = len(batch) * longest <= room and held <= self.limits.cache_bytes
            return fits and not self.rows_alone

        return batches(sorted(range(len(lengths)), key=lengths.__getitem__), fit)

    @cached_property
    def _cache_bytes_per_token(self) -> int:
        probe = self.read([0])
        tensors = [x for layer in probe.cache.layers for x in (layer.keys, layer.values)]
        return sum(x.nbytes for x in tensors) or 1
