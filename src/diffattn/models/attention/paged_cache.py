"""Hugging Face's continuous batching, with a paged cache that holds K1, K2 and V once.

Hugging Face's kernels pair heads of K and V one to one at one width, so for them V1 stores both
twice. Our operator reads the pages itself, so half the heads suffice: ``[k1, k2]`` and ``[left,
right]`` per key/value head, which in memory is the operator's own layout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, GenerationMixin
from transformers import __version__ as transformers_version
from transformers.generation.continuous_batching import ContinuousBatchingManager

from diffattn.errors import ConfigError
from diffattn.models.attention.kernels import IMPLEMENTATION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.ops.attention import diff_attention, gathered_pages, paged_decode
from diffattn.ops.inputs.kernel_support import MAX_DECODE_QUERIES
from diffattn.ops.inputs.masking import num_heads_of


@dataclass(frozen=True, kw_only=True)
class PagedBatch:
    """One pass of continuous batching: where its N tokens are stored, and which keys they read."""

    allocator: Any
    """Hugging Face's allocator: writes keys and values, and returns the pages of a layer."""
    write_index: Tensor
    """int64 ``[N]``, place in the cache for each token."""
    cu_seqlens: Tensor
    """int32, borders of the sequences among the N tokens; padding is the last sequence."""
    few: tuple[Tensor, Tensor, Tensor] | None = None
    """Sequences with at most 16 queries: indices of their tokens int64 ``[B, T]``, right-aligned, N
    in unused places; pages int32 ``[B, table pages]``; numbers of keys int32 ``[B]``."""
    many: tuple[tuple[slice, Tensor, int], ...] = ()
    """Each longer sequence: its tokens, pages ``[1, table pages]`` and number of keys. If no
    sequence has keys of other passes, both fields are empty."""

    @torch.compiler.disable  # it writes to views of the cache, which a compiled graph would copy
    def attend(
        self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, lam: Tensor, *, backend: str
    ) -> Tensor:
        """Store new keys and values of one layer, then attend from one row of N tokens: on gathered
        pages, or with ``"auto"`` and few queries by ``paged_decode``."""
        k_pages, v_pages = self._store(layer_idx, k, v)
        if self.few is None and not self.many:
            return diff_attention(q, k, v, lam, cu_seqlens=self.cu_seqlens, backend=backend)
        num_tokens, num_heads = q.shape[1], num_heads_of(q)
        lam = lam.expand(1, num_tokens, num_heads)
        out = v.new_zeros(num_tokens + 1, num_heads, v.shape[-1])  # row N collects unused places
        for place, table, length in self.many:
            keys, values = (gathered_pages(x, table)[:, :length] for x in (k_pages, v_pages))
            inputs = q[:, place], keys, values, lam[:, place]
            out[place] = diff_attention(*inputs, backend=backend)[0]
        if self.few is not None:
            tokens, table, lengths = self.few
            taken = tokens.clamp(max=num_tokens - 1)
            queries, some = q[0, taken], lam[0, taken]
            if backend == "auto":
                pages: dict[str, Any] = {"block_table": table, "kv_lengths": lengths}
                out[tokens] = paged_decode(queries, k_pages, v_pages, some, **pages)
            else:
                keys, values = (gathered_pages(x, table) for x in (k_pages, v_pages))
                options: dict[str, Any] = {"kv_lengths": lengths, "backend": backend}
                out[tokens] = diff_attention(queries, keys, values, some, **options)
        return out[None, :num_tokens]

    def _store(self, layer_idx: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values; return the layer's pages in the operator's layout, as views."""
        heads = (self.allocator.num_key_value_heads, self.allocator.head_dim)
        self.allocator.update(
            k[0].reshape(-1, *heads), v[0].reshape(-1, *heads), layer_idx,
            self.write_index[:0], self.write_index,
        )  # fmt: skip
        k_pages, v_pages = self.allocator.get_cache_for_block_table(layer_idx)
        k_pages, v_pages = (x.flatten(2) for x in (k_pages, v_pages))  # views
        return k_pages.unflatten(2, k.shape[2:]), v_pages.unflatten(2, v.shape[2:])


@torch.compiler.disable
def paged_batch(num_tokens: int, kwargs: dict[str, Any]) -> PagedBatch:
    """The pass of N tokens that Hugging Face's manager describes, made once for all layers.

    If sequences have keys of earlier passes and one has more than 16 queries (a prompt read in
    parts), the lengths are read on the host. That waits for the device once per pass.
    """
    (allocator,) = kwargs["cache"].cache_allocators.values()  # one attention type in all layers
    (read_index,), (write_index,) = kwargs["read_index"], kwargs["write_index"]
    borders = kwargs["cu_seq_lens_q"]
    closed = torch.cat([borders, borders.new_full((1,), num_tokens)])
    batch = PagedBatch(allocator=allocator, write_index=write_index, cu_seqlens=closed)
    if read_index.numel() == 0:
        return batch
    key_borders = kwargs["cu_seq_lens_k"][allocator.layer_type]
    lengths, most_keys = key_borders.diff(), kwargs["max_length_k"][allocator.layer_type]
    page_size, most = allocator.tokens_per_page, kwargs["max_length_q"]
    steps = torch.arange(0, most_keys, page_size, device=read_index.device)
    first_of_page = (key_borders[:-1, None] + steps).clamp(max=len(read_index) - 1)
    table = (read_index[first_of_page] // page_size).to(torch.int32)  # any page after a sequence
    if most <= MAX_DECODE_QUERIES:
        return replace(batch, few=(_tokens(borders, most, num_tokens), table, lengths))
    if borders.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ConfigError(
            "DiffTransformer: continuous batching with use_cuda_graph needs attn_implementation "
            "'sdpa' or a flash one, got 'diffattn'."
        )
    counts, ends = borders.diff().tolist(), borders[1:].tolist()
    many = tuple(
        (slice(end - count, end), table[row : row + 1], length)
        for row, (count, end, length) in enumerate(zip(counts, ends, lengths.tolist(), strict=True))
        if count > MAX_DECODE_QUERIES
    )
    rows = [row for row, count in enumerate(counts) if 0 < count <= MAX_DECODE_QUERIES]
    if not rows:
        return replace(batch, many=many)
    tokens = _tokens(borders, max(counts[row] for row in rows), num_tokens)[rows]
    return replace(batch, many=many, few=(tokens, table[rows], lengths[rows]))


def _tokens(borders: Tensor, most: int, num_tokens: int) -> Tensor:
    """int64 ``[B, most]``, indices of each sequence's last ``most`` tokens; N if it has fewer."""
    tokens = borders[1:, None] - most + torch.arange(most, device=borders.device)
    return tokens.masked_fill(tokens < borders[:-1, None], num_tokens)


def reads_pages(config: DiffTransformerConfig) -> bool:
    """Whether continuous batching under ``"diffattn"`` uses our operator, for pages with both keys
    once. Hugging Face's kernels do the same for softmax attention, so they run mixed layers."""
    ops = {facts.op for facts in config.attention_by_layer}
    by_operator = ops == {"diff_attention"} and not config.uses("needs_maps")
    installed = tuple(int(part) for part in transformers_version.split(".")[:2])
    return by_operator and installed >= (5, 23)  # whose caches give access to their pages


class OneCopyManager(ContinuousBatchingManager):
    """Hugging Face's manager for a model whose operator reads the pages (:func:`reads_pages`)."""

    def __init__(
        self,
        model: Any,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: Any = None,
    ) -> None:
        generation_config = deepcopy(generation_config or model.generation_config)
        if generation_config.eos_token_id is None:
            generation_config.eos_token_id = -1  # Hugging Face's value for "no end token"
        super().__init__(
            model=model,
            generation_config=generation_config,
            continuous_batching_config=continuous_batching_config or ContinuousBatchingConfig(),
            workload_hints=workload_hints,
        )

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        """Do nothing: our operator reads the pages itself."""

    def _create_batch_processor(self) -> Any:
        config = self.model.config
        self.model.config = copy(config)
        self.model.config.caches_one_copy = True
        try:
            return super()._create_batch_processor()
        finally:
            self.model.config = config


class BatchesContinuously(GenerationMixin):
    """Mixin of models: Hugging Face's entry points to continuous batching."""

    config: DiffTransformerConfig

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's manager, or a :class:`OneCopyManager` if our operator reads the pages."""
        by_our_operator = self.config._attn_implementation == IMPLEMENTATION
        if by_our_operator and reads_pages(self.config):
            kept = getattr(self, "_cached_continuous_batching_manager", None)
            return OneCopyManager(self, *args, **kwargs) if kept is None else kept
        if by_our_operator:
            self.set_attn_implementation("sdpa")
        manager = super().init_continuous_batching(*args, **kwargs)
        if by_our_operator:
            manager._original_attn_impl = IMPLEMENTATION  # restored when it stops
        return manager

    @contextmanager
    def continuous_batching_context_manager(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As in Hugging Face. If our operator cannot read the pages, sdpa is used meanwhile."""
        implementation = self.config._attn_implementation
        if implementation == IMPLEMENTATION and not reads_pages(self.config):
            self.set_attn_implementation("sdpa")
        try:
            with super().continuous_batching_context_manager(*args, **kwargs) as manager:
                yield manager
        finally:
            self.set_attn_implementation(implementation)
