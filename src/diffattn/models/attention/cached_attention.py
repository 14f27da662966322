"""Attention of one layer with its cache: one call of our operator or of a Hugging Face kernel.

Stored per token, for each of K and V (H heads, Hkv key/value heads, D ``head_dim``):

=================== ======================= =================== ================ ===============
attention type      dynamic, static cache   paged cache, by us  by HF kernels    query heads, HF
=================== ======================= =================== ================ ===============
softmax             Hkv heads of D          (by HF kernels)     Hkv heads of D   H
diff, shared_diff   Hkv heads of 2D         2 Hkv heads of D    4 Hkv heads of D 4 H
diff_v2             Hkv heads of D          Hkv heads of D      Hkv heads of D   2 H
=================== ======================= =================== ================ ===============

A cache has one K and V per layer, so each layer makes one call: a second call would overwrite the
first (as in transformers' DiffLlama). Grouped heads are stored like V1.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.utils.generic import is_flash_attention_requested

from diffattn.errors import ConfigError
from diffattn.models.attention import kernels
from diffattn.models.attention.masks import KeyMask
from diffattn.models.attention.paged_cache import PagedBatch
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.ops.attention import diff_attention, diff_attention_maps
from diffattn.ops.inputs import backends, kernel_support
from diffattn.ops.inputs.masking import num_heads_of
from diffattn.ops.softmax_attention import softmax_attention, softmax_attention_maps


@dataclass(eq=False)
class Attend:
    """The ``attend(q, k, v, lam=None)`` of one layer in one forward pass."""

    block: Any
    """The decoder block, which has the layer, its :class:`KernelCall` and the configuration."""
    mask: Any
    """A :class:`KeyMask` under ``"diffattn"``, a :class:`PagedBatch` in continuous batching, else
    the mask of Hugging Face's kernel."""
    past_key_values: Cache | None
    recorder: kernels.AttentionMapRecorder | None
    """``None`` if no maps are asked for."""
    kwargs: dict[str, Any]
    """Arguments of Hugging Face's kernel, for example a paged cache."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None = None) -> Tensor:
        """Attend to cached and new tokens, by our operator or a kernel: ``[B, T, H, Dv]``."""
        config, layer, mask = self.block.config, self.block.self_attn, self.mask
        if self.past_key_values is not None:
            k, v = kernels.update_cache(self.past_key_values, k, v, layer.layer_idx)
        if config._attn_implementation != kernels.IMPLEMENTATION:
            return self._by_hugging_face(q, k, v, lam)
        if isinstance(mask, PagedBatch):
            if self.recorder is not None:
                raise ConfigError("DiffTransformer: continuous batching gives no attention maps.")
            assert lam is not None
            return mask.attend(layer.layer_idx, q, k, v, lam, backend=config.attention_backend)
        options = (mask or KeyMask())._asdict()
        scores = options.pop("scores")
        if scores is not None:
            return self._by_scores(scores, q, k, v, lam)
        batch, num_tokens = q.shape[:2]
        rows = batch if options["cu_seqlens"] is not None else 1  # rows to concatenate into one
        if rows > 1:
            q, k, v = (x.flatten(0, 1)[None] for x in (q, k, v))
            if lam is not None:
                lam = lam.expand(batch, num_tokens, num_heads_of(q)).flatten(0, 1)[None]
        if self.recorder is not None:
            if lam is None:
                signed = softmax_attention_maps(q, k, **options)
                raw = signed[:, :, None]
            else:
                map_1, map_2, signed = diff_attention_maps(q, k, lam, **options)
                raw = torch.stack([map_1, map_2], dim=2)
                if self._acting_map is not None:
                    signed = self._acting_map(map_1, map_2, kernels.lam_of_rows(lam, q))
            self.recorder(_of_each_row(signed, rows), _of_each_row(raw, rows))
        if lam is None:
            out = softmax_attention(q, k, v, backend=config.attention_backend, **options)
        elif self._acting_map is not None:
            out = layer.operator(q, k, v, lam, **options)
        else:
            out = diff_attention(q, k, v, lam, backend=config.attention_backend, **options)
        return out[0].unflatten(0, (batch, num_tokens)) if rows > 1 else out

    @property
    def _acting_map(self) -> kernels.ActingMap | None:
        """The layer's own function of A1, A2 and λ; ``None`` if the layer only subtracts."""
        return getattr(self.block.self_attn, "acting_map", None)

    def _by_scores(self, scores: Tensor, q: Tensor, k: Tensor, v: Tensor, lam: Any) -> Tensor:
        """Attend with a mask of all scores, which no backend of this package takes."""
        if self.block.config.attention_backend != "auto":
            raise ConfigError(
                "DiffTransformer: an attention_mask of four axes needs attention_backend 'auto', "
                f"got {self.block.config.attention_backend!r}."
            )
        if self.recorder is not None or self._acting_map is not None:
            return kernels.through_maps(
                q, k, v, lam, scores, acting_map=self._acting_map, recorder=self.recorder
            )
        scores = scores if scores.dtype == torch.bool else scores.to(q.dtype)
        return kernels.by_kernel("sdpa", self.block.kernel, q, k, v, lam, scores, {})

    def _by_hugging_face(self, q: Tensor, k: Tensor, v: Tensor, lam: Any) -> Tensor:
        config, mask = self.block.config, self.mask
        implementation = config._attn_implementation
        if self._acting_map is not None:
            raise ConfigError(
                f"DiffTransformer: attention_type {config.attention_type!r} needs "
                f"attn_implementation {kernels.IMPLEMENTATION!r}, got {implementation!r}."
            )
        # Hugging Face's eager function would add a bool mask as numbers.
        is_bool = isinstance(mask, Tensor) and mask.dtype == torch.bool
        if implementation == "eager" and (self.recorder is not None or is_bool):
            return kernels.through_maps(q, k, v, lam, mask, acting_map=None, recorder=self.recorder)
        if self.recorder is not None:
            raise ConfigError(
                "DiffTransformer: attention maps need attn_implementation 'diffattn' or 'eager', "
                f"got {implementation!r}."
            )
        # transformers casts float32 to the dtype of a linear layer in the module; ours has none.
        narrows = torch.is_autocast_enabled(q.device.type) or hasattr(config, "_is_quantized")
        if q.dtype == torch.float32 and is_flash_attention_requested(config) and not narrows:
            raise ConfigError(
                f"DiffTransformer: attn_implementation {implementation!r} needs float16 or "
                "bfloat16, got float32. Load the model with dtype=torch.bfloat16, or use autocast."
            )
        return kernels.by_kernel(implementation, self.block.kernel, q, k, v, lam, mask, self.kwargs)


def chosen_backend(
    config: DiffTransformerConfig,
    *,
    device: str,
    dtype: torch.dtype,
    batch: int,
    num_tokens: int,
    apart: bool = False,
    elsewhere: bool = False,
    tested: bool = True,
) -> str:
    """Name of the backend that ``"diffattn"`` trains with, for one attention type in all layers.

    ``apart`` packs the batch into one row, whose documents are kept apart.
    ``elsewhere`` chooses for another machine, on which every backend can be imported; ``tested``
    says whether kernels passed their tests there, else ``"auto"`` avoids them.
    """
    if config.attention.needs_maps:
        return "reference"
    is_softmax = config.attention.op == "softmax_attention"
    if apart:
        batch, num_tokens = 1, batch * num_tokens
    inputs = backends.Inputs(
        device=device,
        dtype=dtype,
        batch=batch,
        num_heads=config.num_attention_heads if is_softmax else config.num_heads,
        num_queries=num_tokens,
        num_keys=num_tokens,
        head_dim=config.head_dim,
        value_dim=config.cached_kv_shape[1],
        # ``None``: the choice must not depend on the GPU of this machine.
        capability=None if elsewhere else kernel_support.compute_capability(torch.device(device)),
        needs_gradient=True,
        at_most_causal=not apart,
        in_groups=(config.group_ratio or 1) > 1,
        elsewhere=elsewhere and tested,
    )
    return backends.resolve(config.attention.op, config.attention_backend, inputs)


def _of_each_row(maps: Tensor, rows: int) -> Tensor:
    """Maps ``[1, ..., rows * T, rows * T]`` of concatenated rows as ``[rows, ..., T, T]``."""
    if rows == 1:
        return maps
    size = maps.shape[-1] // rows
    maps = maps[0].unflatten(-1, (rows, size)).unflatten(-3, (rows, size))
    return maps.diagonal(dim1=-4, dim2=-2).movedim(-1, 0)


def only_through_our_models(*args: Any, **kwargs: Any) -> Any:
    """Registered so that Hugging Face accepts the name ``"diffattn"``; our models never call it."""
    raise NotImplementedError("'diffattn' is the attention of DiffTransformer models only.")
