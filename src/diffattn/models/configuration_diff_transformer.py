"""Configuration of the DIFF Transformer family."""

import warnings
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import GenerationConfig, PreTrainedConfig

from diffattn.errors import ConfigError, did_you_mean, shown
from diffattn.models import twins
from diffattn.models.config.settings import NAMED_WHERE_SET, OPTIONS, ModelSettings
from diffattn.models.remote_code.saving import NamesItsCode
from diffattn.ops.inputs.formulas import lambda_init as scheduled_lambda_init
from diffattn.ops.inputs.numbers import as_float, plain

_DERIVED_HEADS = ("num_attention_heads", "num_key_value_heads")
_OFF_VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", None), "is_causal": (True, None),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window"), (False, None)),
    **dict.fromkeys(("attention_dropout", "attn_dropout", "attn_pdrop", "dropout", "embd_pdrop",
                     "hidden_dropout", "num_kv_shared_layers", "resid_pdrop"), (0, None)),
    **dict.fromkeys(("attention_chunk_size", "decoder", "distributed_config", "fusion_config",
                     "generator", "kv_sharing_modes", "per_layer_config", "sliding_window",
                     "text_config", "text_encoder", "transformers_weights"), (None,)),
}  # fmt: skip
"""Settings of other model families -> values that switch them off, the only values allowed here.
transformers would keep any value, and its caches, masks and loader read some of them."""
OTHER_NAMES = (
    "model_type", "name_or_path", "_name_or_path", "_commit_hash", "torch_dtype", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "attn_implementation", "auto_map", *_DERIVED_HEADS,
)  # fmt: skip
"""Names that ``config.json`` may hold besides the fields of the configuration."""
_FLOATS = {"lambda_init"} | {x.name for x in fields(ModelSettings) if x.type is float}


def _checked_in_one_line(cls: type) -> type:
    """Convert a value before the strict base class checks its type: numpy numbers to Python's, and
    integers to floats in float fields. The base class's error becomes a ConfigError of one line."""
    checked_setattr: Any = cls.__setattr__

    def __setattr__(self: Any, name: str, value: Any) -> None:
        value = as_float(plain(value)) if name in _FLOATS else plain(value)
        if name == "attention_type" and isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        try:
            checked_setattr(self, name, value)
        except StrictDataclassFieldValidationError as error:
            reason = " ".join(str(error.__cause__).split())[:300]
            raise ConfigError(f"{cls.__name__}: {reason}.") from error

    cls.__setattr__ = __setattr__  # type: ignore[assignment]
    return cls


@_checked_in_one_line
@strict
class DiffTransformerConfig(NamesItsCode, ModelSettings, PreTrainedConfig):
    r"""Settings of a decoder with softmax or differential attention.

    LLaMA-style: pre-RMSNorm, rotary positions, SwiGLU, and no biases by default. Types of values
    are checked on construction and on assignment, all other rules on construction and on saving.

    Source: arXiv:2410.05258v2, section 2 (architecture), Appendices D and E (sizes).

    Args:
        attention_type: A name of :data:`~diffattn.models.config.attention_types.ATTENTION`, for
            example ``"softmax"``, ``"diff"`` (V1) or ``"diff_v2"``; or one name per layer, as a
            list or a string with commas. Stored as a string.
        intermediate_size: Width inside SwiGLU. Default: 8/3 of ``hidden_size``, rounded to the
            nearest multiple of 64.
        num_heads: H of the operator. The softmax twin of V1 or Shared has ``2 * num_heads``. So
            has a softmax layer in a model with V1 or Shared layers: all layers are equally wide.
        num_kv_heads: Hkv, divides ``num_heads``, which is its default. For grouped heads it
            divides ``num_heads / group_ratio``, which is then its default.
        head_dim: D, width of one query or key, even. Default: ``hidden_size / num_heads``, or half
            of it for types with values 2D wide (V1, Shared, grouped and their controls).
        shared_rank: r of Shared DIFF, else ``None``. Default for Shared DIFF: ``head_dim // 4``.
        group_ratio: R of grouped differential attention: heads that share one subtracted map. Else
            ``None``. Default: the largest of 4, 3 and 2 that leaves two groups or more and fits
            ``num_kv_heads``; else 1.
        head_norm: RMSNorm per head. Default: that of the type (V1, Shared, grouped: on; V2: off).
        head_norm_affine: Learn the scale of the head norm.
        lambda_init: λ_init of types with λ vectors (V1, Shared, grouped, DEX): ``None`` for the
            paper's depth schedule, one number, or one per layer.
        lambda_bias: Add a bias to the λ projection of types that have one (V2, gated).
        rope_parameters: As in Hugging Face; θ = 10,000 by default.
        embedding_multiplier: Factor of the embeddings (``inputs_embeds`` too) before the first
            block. The papers use 1. With a standard deviation of 0.02, a tied embedding is much
            smaller than the first attention outputs; √hidden_size corrects that (docs/log.md).
        depth_scaled_init: Divide the initial weights of the two projections per block that write
            into the residual stream by √(2 num_hidden_layers), as GPT-2 does. The papers do not.
        scaled_head_init: Draw an untied output head with standard deviation 1/hidden_size, so that
            the first loss is near ln ``vocab_size`` at every width.
        attention_backend: Backend of our operator, for ``attn_implementation="diffattn"``.
        qkv_bias: Add biases to the projections of queries, keys and values, as in Qwen2.
        qk_norm: RMSNorm with ``rms_norm_eps`` over every query and key before rotation, as in
            Qwen3; both maps share its scales (:class:`~diffattn.layers.attention.AttentionLayer`).

    Raises:
        ConfigError: Settings of the wrong type or that contradict each other; a misspelled field;
            a feature that these models lack, such as ``attention_dropout``.
    """

    model_type = "diff_transformer"
    keys_to_ignore_at_inference = ["past_key_values"]
    caches_one_copy = False
    """Whether ``num_key_value_heads``, by which Hugging Face sizes a paged cache, counts K and V
    once. Set in the copy of a configuration for a cache that our operator reads."""
    qkv_bias: bool = False
    qk_norm: bool = False
    base_model_pp_plan = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_keywords(kwargs)
        given = {name: kwargs.pop(name) for name in _DERIVED_HEADS if name in kwargs}
        if not isinstance(kwargs.get("rope_scaling"), dict | None):  # the older name
            raise self._error("rope_scaling must be a mapping", kwargs["rope_scaling"])
        self._check_each()
        self._derive_heads()
        for name, value in given.items():  # before the sizes that follow from the heads are checked
            if value != getattr(self, name):
                raise self._error(
                    f"{name} must be left out or {getattr(self, name)}, as num_heads = "
                    f"{self.num_heads} and num_kv_heads = {self.num_kv_heads} set the heads",
                    value,
                )
        # Checked here first: the strict class checks again, but would wrap the error.
        ModelSettings.__post_init__(self)
        # Not a property: some versions of transformers add the tied embedding to this dictionary.
        self.base_model_tp_plan = self._tensor_parallel_plan()
        PreTrainedConfig.__post_init__(self, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """All settings, with the two head counts that other libraries read."""
        named = {k: x for k, x in super().to_dict().items() if k not in NAMED_WHERE_SET or x}
        return named | {name: getattr(self, name) for name in _DERIVED_HEADS}

    __repr__ = PreTrainedConfig.__repr__  # Hugging Face's, with everything it adds

    def _tensor_parallel_plan(self) -> dict[str, str]:
        """How transformers splits the weights over devices: by whole heads, with both maps.

        Rows of every projection are ordered by head, then by map. So equal shares of the rows are
        whole heads if the number of devices divides ``num_kv_heads``; otherwise a forward pass
        fails. In types that pair distant heads, only the feed-forward layers are split.
        """
        plan = dict.fromkeys(("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"), "colwise")
        plan["layers.*.mlp.down_proj"] = "rowwise"
        if self.uses("subtracts_outputs"):
            return plan
        plan |= {f"layers.*.self_attn.{name}_proj": "colwise" for name in ("q", "k", "v")}
        plan["layers.*.self_attn.o_proj"] = "rowwise"
        if self.uses("lambda_projection"):
            plan["layers.*.self_attn.lambda_proj"] = "colwise"
        for name, is_there in (
            ("head_norm", self.uses_head_norm),
            ("dex_proj", self.uses("head_matrix")),
            ("q_norm", self.qk_norm),
            ("k_norm", self.qk_norm),
            ("lambda_bias", self.uses("lambda_vectors")),
        ):
            if is_there:
                plan[f"layers.*.self_attn.{name}"] = "replicated_with_grad_allreduce"
        if self.uses("low_rank_maps"):
            for name in ("q", "k"):
                plan[f"layers.*.self_attn.{name}_down_proj"] = "colwise"
                plan[f"layers.*.self_attn.{name}_up"] = "embedding_rowwise"  # axis 0: heads
            plan["layers.*.self_attn"] = "local_params"
        return plan

    def _check_keywords(self, kwargs: dict[str, Any]) -> None:
        """Refuse misspelled keywords and warn of unknown ones: Hugging Face keeps any keyword."""
        field_names = {*self.settings(), *OPTIONS}
        known = {*OTHER_NAMES, "experts_implementation", "quantization_config"}
        known |= GenerationConfig().to_dict().keys()  # older versions wrote them; they are ignored
        for name in sorted(kwargs.keys() - set(_DERIVED_HEADS)):
            near = get_close_matches(name, field_names, n=1, cutoff=0.85)
            if near:
                raise ConfigError(
                    f"DiffTransformerConfig: unknown field {name!r}. Did you mean {near[0]!r}?"
                )
            if name == "layer_types":
                kinds = kwargs.pop(name)
                if kinds is not None and set(kinds) != {"full_attention"}:
                    raise self._error("layer_types must all be 'full_attention'", kinds)
            elif name in _OFF_VALUES:
                value, neutral = kwargs.pop(name), _OFF_VALUES[name]
                if value not in neutral:
                    must = f"{name} must be {neutral[0]!r}, as a DIFF Transformer lacks it"
                    raise self._error(must, value)
            elif name not in known and name[0] != "_" and not hasattr(PreTrainedConfig, name):
                hint = did_you_mean(name, field_names)
                warnings.warn(
                    f"DiffTransformerConfig: {name} = {shown(kwargs[name])} is kept and changes "
                    f"nothing, for a DIFF Transformer has no such setting.{hint}",
                    stacklevel=2,
                )

    def validate_rope(self) -> None:
        """Do nothing: rotary settings are checked with all others; Hugging Face only warns."""

    def layer_lambda_init(self, layer_idx: int) -> float:
        """λ_init of one layer of a type with λ vectors; ``layer_idx`` counts from 0.

        Source: arXiv:2410.05258v2, after Eq. (2).
        """
        if self.lambda_init is None:
            return scheduled_lambda_init(layer_idx)
        if isinstance(self.lambda_init, list):
            return self.lambda_init[layer_idx]
        return self.lambda_init

    @property
    def num_attention_heads(self) -> int:
        """Query heads of a layer's attention call under Hugging Face's kernels: each map is one
        head for every D channels of V. If layers differ, the largest number."""
        return max(
            kind.num_heads * kind.attention.query_maps * kind.attention.value_width
            for kind, _ in self.by_type()
        )

    @property
    def num_key_value_heads(self) -> int:
        """Key/value heads, ``head_dim`` wide, for Hugging Face's kernels and caches, which hold
        V1's K and V twice. If layers differ, the largest number."""
        return max(
            kind.num_kv_heads
            * kind.attention.value_width
            * (1 if self.caches_one_copy else kind.attention.key_maps)
            for kind, _ in self.by_type()
        )

    @property
    def cached_kv_shape(self) -> tuple[int, int]:
        """Heads, and width of keys and values, in a dynamic or static cache. For several types it
        is that of the widest; the others have more heads of less width."""
        return self.num_kv_heads, self.value_width * self.head_dim

    @property
    def adapter_targets(self) -> dict[str, list[str]]:
        """Default targets of an adapter: ``peft.LoraConfig(**config.adapter_targets)``. λ's vectors
        and DEX's matrix are trained in full."""
        names = ["q_proj", "k_proj", "v_proj", "o_proj"] if self.uses("query_projections") else []
        if self.uses("low_rank_maps"):
            names += ["q_down_proj", "k_down_proj"]
        if self.uses("lambda_projection"):
            names.append("lambda_proj")
        whole = ["lambda_bias"] if self.uses("lambda_vectors") else []
        whole += ["dex_proj"] if self.uses("head_matrix") else []
        return {"target_modules": names, "modules_to_save": whole}

    def twin(
        self, attention_type: str, match: str = "params", **changes: Any
    ) -> "twins.Twin[DiffTransformerConfig]":
        """The matched model of another attention type: see :func:`diffattn.models.twins.twin`."""
        return twins.twin(self, attention_type, match, **changes)
