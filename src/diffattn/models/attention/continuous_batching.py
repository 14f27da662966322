"""Hugging Face's continuous batching, with a paged cache in the layout of our operator."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig, GenerationMixin
from transformers import __version__ as transformers_version
from transformers.generation.continuous_batching import ContinuousBatchingManager

from diffattn.models.attention.cached_attention import IMPLEMENTATION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig, heads_of_one_copy


def reads_pages(config: DiffTransformerConfig) -> bool:
    """Whether continuous batching under ``"diffattn"`` uses our operator.

    Models with only softmax attention use Hugging Face's kernels, which store K and V once, too.
    """
    ops = {facts.op for facts in config.attention_by_layer}
    by_operator = "diff_attention" in ops and not config.uses("needs_maps")
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
        with heads_of_one_copy():
            return super()._create_batch_processor()


class BatchesContinuously(GenerationMixin):
    """Mixin of models: Hugging Face's entry points to continuous batching."""

    config: DiffTransformerConfig

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Hugging Face's manager, or a :class:`OneCopyManager` if our operator reads the pages."""
        by_our_operator = self.config._attn_implementation == IMPLEMENTATION
        if not (by_our_operator and reads_pages(self.config)):
            return super().init_continuous_batching(*args, **kwargs)
        kept = getattr(self, "_cached_continuous_batching_manager", None)
        return OneCopyManager(self, *args, **kwargs) if kept is None else kept

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
