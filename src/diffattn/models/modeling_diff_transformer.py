"""The DIFF Transformer family as Hugging Face models: one file for every attention type."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import GenerationMixin
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from diffattn.errors import ConfigError, ShapeError, check_known
from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.parts import LAMBDA_NAMES, LAMBDA_STD, HeadNorm, LambdaVectors
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.models.attention import masks
from diffattn.models.attention.cached_attention import only_through_our_models
from diffattn.models.attention.kernels import IMPLEMENTATION, AttentionMapRecorder
from diffattn.models.attention.paged_cache import BatchesContinuously, paged_batch
from diffattn.models.chunked_loss import mean_loss, takes_gradients_at_once
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.decoder_block import DiffTransformerBlock
from diffattn.models.remote_code.saving import SavesItsCode
from diffattn.ops.inputs.numbers import plain


@dataclass
class DiffTransformerOutput(BaseModelOutputWithPast):
    """Hidden states, and if asked for ``attention_maps``: per layer ``[B, H, maps, T, S]``."""

    attention_maps: tuple[Tensor, ...] | None = None


@dataclass
class DiffTransformerCausalLMOutput(CausalLMOutputWithPast):
    """Loss, logits, and if asked for ``attention_maps``: per layer ``[B, H, maps, T, S]``.

    If the loss is computed in chunks, ``logits`` is ``None`` and ``token_losses`` is ``[B, T]``.
    """

    attention_maps: tuple[Tensor, ...] | None = None
    token_losses: Tensor | None = None


class DiffTransformerPreTrainedModel(SavesItsCode, PreTrainedModel):
    """Base class: initial weights, attention implementations, supported Hugging Face features."""

    config_class = DiffTransformerConfig
    config: DiffTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DiffTransformerBlock"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": DiffTransformerBlock,
        "attentions": OutputRecorder(AttentionMapRecorder, index=0),
        "attention_maps": OutputRecorder(AttentionMapRecorder, index=1),
    }

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """``"diffattn"``, our operator, unless another implementation is asked for."""
        requested = requested_attention or IMPLEMENTATION
        if "/" not in requested:  # else a kernel of the hub
            known = IMPLEMENTATION, "eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()
            # The message begins as that of transformers: programs look for its words.
            where = f'Specified `attn_implementation="{requested}"` is not supported'
            check_known(where, "attn_implementation", requested, dict.fromkeys(known))
        return super().get_correct_attn_implementation(requested, is_init_check)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Also visit λ's owner: transformers skips custom modules without direct parameters."""
        is_custom_code = is_custom_code and not isinstance(module, DiffAttention)
        super()._initialize_weights(module, is_custom_code)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        if config.depth_scaled_init and hasattr(module, "writes_residual"):
            std = config.initializer_range / (2 * config.num_hidden_layers) ** 0.5
            init.normal_(module.weight, std=std)
        elif config.scaled_head_init and module is getattr(self, "lm_head", None):
            init.normal_(module.weight, std=1 / config.hidden_size)
        else:
            super()._init_weights(module)
        if isinstance(module, HeadNorm) and module.weight is not None:
            init.ones_(module.weight)
        elif isinstance(module, DiffAttention):
            # Here, not in the vectors' module, which is visited earlier: so a seed still gives
            # the same weights. The order of the names is fixed for the same reason.
            for name in LAMBDA_NAMES:
                init.normal_(getattr(module, name), std=LAMBDA_STD)
            if isinstance(module, SharedDiffAttention):
                for up in (module.q_up, module.k_up):
                    init.normal_(up, std=module.shared_rank**-0.5)


class DiffTransformerModel(DiffTransformerPreTrainedModel):
    """Embedding, blocks and final norm, without an output head.

    Source: arXiv:2410.05258v2, section 2.
    """

    def __init__(self, config: DiffTransformerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            DiffTransformerBlock(config, layer_idx) for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.gradient_checkpointing = False
        if config.uses("lambda_vectors"):
            self._keep_in_fp32_modules_strict = list(LAMBDA_NAMES)
            # accelerate's FSDP makes a group of each of these: one dtype in a group.
            self._no_split_modules = [*self._no_split_modules, LambdaVectors.__name__]
        # λ's projection per head is too narrow for quantisers, which read the list.
        if any(x.lambda_projection and not x.lambda_per_channel for x in config.attention_by_layer):
            self._keep_in_fp32_modules = ["lambda_proj"]
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> DiffTransformerOutput:
        """Hidden states of every token.

        Args:
            input_ids: int64 ``[B, T]``; or ``inputs_embeds`` ``[B, T, hidden_size]``.
            attention_mask: ``[B, keys]``, 0 at padding, else 1; or ``[B or 1, 1, T, keys]``, bool
                (True: seen) or added to scores.
            position_ids: int ``[B or 1, T]``, from 0. Without mask and cache, a document begins at
                each 0 (with flash kernels: B = 1). Default: counted from the cache's length.
            **kwargs: ``output_hidden_states``; ``output_attentions`` (per layer A1 − λA2
                ``[B, H, T, S]``); ``output_attention_maps`` (A1 and A2, ``[B, H, maps, T, S]``);
                ``cu_seq_lens_q`` of a packed row; arguments of a Hugging Face kernel.

        Raises:
            ConfigError: A wrong mask, inputs that the kernel cannot take, both or no input.
            ShapeError: Wrong shape or dtype; on the CPU also impossible ids or positions.
        """
        if (input_ids is None) == (inputs_embeds is None):
            got = "neither" if input_ids is None else "both"
            raise ConfigError(
                f"DiffTransformer: input_ids or inputs_embeds must be given, got {got}."
            )
        input_ids = masks.checked_ids("input_ids", input_ids, below=self.config.vocab_size)
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if inputs_embeds.ndim != 3 or inputs_embeds.shape[2] != self.config.hidden_size:
            masks.refuse("inputs_embeds", f"[B, T, {self.config.hidden_size}]", inputs_embeds)
        position_ids = masks.checked_positions(position_ids, *inputs_embeds.shape[:2])
        mask, position_ids = self._mask_and_positions(
            attention_mask, position_ids, past_key_values, inputs_embeds, kwargs
        )
        # After the masks: a packed row's documents are kept apart only without a cache.
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        record_maps = kwargs.pop("output_attention_maps", False) or kwargs.get(
            "output_attentions", self.config.output_attentions
        )
        position_embeddings = self.rotary_emb(inputs_embeds, position_ids=position_ids)
        hidden_states = inputs_embeds * self.config.embedding_multiplier
        for block in self.layers[: self.config.num_hidden_layers]:  # a draft may leave early
            hidden_states = block(
                hidden_states,
                attention_mask=mask,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                record_maps=bool(record_maps),
                **kwargs,
            )
        return DiffTransformerOutput(
            last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values
        )

    def _mask_and_positions(
        self,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        inputs_embeds: Tensor,
        kwargs: dict[str, Any],
    ) -> tuple[Any, Tensor]:
        """The mask in the form of the attention implementation, and the positions."""
        cu_seqlens = kwargs.get("cu_seq_lens_q")
        given = position_ids
        if position_ids is None:
            position_ids = masks.positions(inputs_embeds, cache, cu_seqlens)
        if self.config._attn_implementation != IMPLEMENTATION:
            mask, kwargs["position_ids"] = masks.kernel_mask(
                self.config, attention_mask, position_ids, cache, inputs_embeds
            )
        elif kwargs.get("cache") is not None:
            mask = paged_batch(inputs_embeds.shape[1], kwargs)
        else:
            mask = masks.key_mask(attention_mask, given, cache, inputs_embeds, cu_seqlens)
        return mask, position_ids


class DiffTransformerForCausalLM(
    DiffTransformerPreTrainedModel, BatchesContinuously, GenerationMixin
):
    """Decoder with a language-model head; trains and generates like any Hugging Face model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    loss_chunk_tokens: int | None = None
    """Tokens whose logits are in memory at once when the model trains with labels; it then returns
    no logits. Default, ``None``: all tokens at once, with logits."""
    skips_logits: bool = False
    """Whether training on a GPU computes the gradients with the loss and returns no logits. On for
    ``diffattn train``. Off by default: other trainers, like TRL's, read the logits."""

    def __init__(self, config: DiffTransformerConfig) -> None:
        super().__init__(config)
        self.model = DiffTransformerModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> DiffTransformerCausalLMOutput:
        """Logits ``[B, T, vocab_size]``; with labels also the mean loss in nats per token.

        Args:
            labels: int64 ``[B, T]``, unshifted; -100 is ignored. See :attr:`loss_chunk_tokens`.
            logits_to_keep: Number of last positions to compute logits for, or indices; 0: all.
            skip_logits: Whether the loss may be computed without logits. Default: in training.
            **kwargs: As in ``DiffTransformerModel``; ``shift_labels``, ``num_items_in_batch``.
        """
        inputs = (input_ids, attention_mask, position_ids, past_key_values, inputs_embeds)
        outputs = self.model(*inputs, use_cache=use_cache, **kwargs)
        if isinstance(logits_to_keep := plain(logits_to_keep), int):
            if logits_to_keep < 0:
                raise ShapeError(
                    f"DiffTransformer: logits_to_keep must be 0 or more, got {logits_to_keep}."
                )
            logits_to_keep = slice(-logits_to_keep, None)  # type: ignore[assignment]
        hidden = outputs.last_hidden_state
        loss = logits = token_losses = None
        if labels is None:
            logits = self.lm_head(hidden[:, logits_to_keep])
        else:
            checked = partial(masks.checked_ids, below=self.vocab_size, ignored=True)
            labels = checked("labels", labels)
            kwargs["shift_labels"] = checked("shift_labels", kwargs.get("shift_labels"))
            chunk, head, at_once = plain(self.loss_chunk_tokens), self.lm_head, skip_logits
            if skip_logits is None:
                skip_logits, at_once = self.training, self.skips_logits
            at_once = at_once and takes_gradients_at_once(head, hidden)
            if skip_logits and (chunk is not None or at_once):
                loss, token_losses = mean_loss(hidden, head, labels, chunk, **kwargs)
            else:
                logits = head(hidden[:, logits_to_keep])
                loss = self.loss_function(logits, labels, vocab_size=self.vocab_size, **kwargs)
        return DiffTransformerCausalLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            attention_maps=outputs.attention_maps,
            token_losses=token_losses,
        )

    def _get_name(self) -> str:
        """The class name by which transformers' Trainer decides that labels must be shifted."""
        return DiffTransformerForCausalLM.__name__  # FSDP gives the class another one

    def _get_static_cache_init_shape(self) -> Any:
        shape = super()._get_static_cache_init_shape()
        if shape is None:
            return None  # for example layers on several devices
        of_layers = map(self.config.of_layer, range(self.config.num_hidden_layers))
        heads, widths = zip(*(config.cached_kv_shape for config in of_layers), strict=True)
        most = self.config.num_key_value_heads
        return [count * shape[0] // most for count in heads], list(widths)  # of this device

    def create_masks_for_generate(self, config: Any, **kwargs: Any) -> Any:
        """Hugging Face's own masks for its kernels. For our operator the padding mask, padded with
        1 to the length of a preallocated cache: a decoding step is compiled for each length."""
        if self.config._attn_implementation != IMPLEMENTATION:
            return create_masks_for_generate(config=config, **kwargs)
        mask, cache = kwargs["attention_mask"], kwargs["past_key_values"]
        if mask is None or cache is None or not cache.is_compileable:
            return mask
        missing = cache.get_mask_sizes(1, 0)[0] - mask.shape[1]
        return nn.functional.pad(mask, (0, missing), value=1)


class DiffTransformerForSequenceClassification(
    GenericForSequenceClassification, DiffTransformerPreTrainedModel
):
    """Decoder with a linear head on its last real token: classifiers and reward models. Batches of
    several rows need ``pad_token_id`` in the configuration."""


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, only_through_our_models)
register_checkpoint_conversion_mapping(
    DiffTransformerConfig.model_type,  # Both ways: files keep the names of layers.saved_names.
    [
        WeightRenaming(r"self_attn\.(lambda_[qk][12])", r"self_attn.lambda_bias.\1"),
        WeightRenaming(r"self_attn\.subln\.weight", r"self_attn.head_norm.weight"),
    ],
    overwrite=True,
)


def _name_when_compiled(wrapper: nn.Module, attribute: str, module: Any) -> None:
    """Give the wrapper of ``torch.compile`` the name of our model; see ``_get_name``."""
    if attribute == "_orig_mod":
        inner = module.get_base_model() if hasattr(module, "get_base_model") else module  # peft
        if isinstance(inner, DiffTransformerForCausalLM):
            wrapper.__dict__["_get_name"] = inner._get_name


register_module_module_registration_hook(_name_when_compiled)
