"""Hugging Face's continuous batching with a cache of our layout, and which models take part."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig, GenerationMixin
from transformers import __version__ as transformers_version
from transformers.generation.continuous_batching import ContinuousBatchingManager

from diffattn.models.attention.cached_attention import IMPLEMENTATION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig, heads_of_one_copy

_SINCE = (5, 23)
"""The transformers whose caches hand out their pages."""


def reads_pages(config: DiffTransformerConfig) -> bool:
    """Whether continuous batching goes through our operator under ``"diffattn"``.

    Softmax attention alone does not: Hugging Face's kernels store it once and read it in one call.
    """
    ops = {facts.op for facts in config.attention_by_layer}
    by_operator = "diff_attention" in ops and not config.uses("needs_maps")
    installed = tuple(int(part) for part in transformers_version.split(".")[:2])
    return by_operator and installed >= _SINCE


class OneCopyManager(ContinuousBatchingManager):
    """Hugging Face's manager for a model under ``"diffattn"``; our operator reads its cache.

    Arguments have the defaults of ``init_continuous_batching``; see :func:`reads_pages`.
    """

    def __init__(
        self,
        model: Any,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: Any = None,
    ) -> None:
        generation_config = generation_config or model.generation_config
        if generation_config.eos_token_id is None:
            generation_config = deepcopy(generation_config)  # the caller's, or the model's
            generation_config.eos_token_id = -1  # none, as Hugging Face's door says it
        super().__init__(
            model=model,
            generation_config=generation_config,
            continuous_batching_config=continuous_batching_config or ContinuousBatchingConfig(),
            workload_hints=workload_hints,
        )

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        """Our operator reads the pages: nothing is switched."""

    def _create_batch_processor(self) -> Any:
        with heads_of_one_copy():
            return super()._create_batch_processor()


class BatchesContinuously(GenerationMixin):
    """The doors to continuous batching."""

    config: DiffTransformerConfig

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's manager; under our operator with a cache that holds K and V once."""
        by_our_operator = self.config._attn_implementation == IMPLEMENTATION
        if not (by_our_operator and reads_pages(self.config)):
            return super().init_continuous_batching(*args, **kwargs)
        kept = getattr(self, "_cached_continuous_batching_manager", None)
        return OneCopyManager(self, *args, **kwargs) if kept is None else kept

    @contextmanager
    def continuous_batching_context_manager(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Where our operator does not read the pages, Hugging Face's kernels do: sdpa."""
        implementation = self.config._attn_implementation
        if implementation == IMPLEMENTATION and not reads_pages(self.config):
            self.set_attn_implementation("sdpa")
        try:
            with super().continuous_batching_context_manager(*args, **kwargs) as manager:
                yield manager
        finally:
            self.set_attn_implementation(implementation)
