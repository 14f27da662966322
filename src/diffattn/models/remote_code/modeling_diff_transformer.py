"""DIFF Transformer family for Hugging Face: differential attention, in one file.

The package ``diffattn`` copies this file beside the weights that it saves, so that transformers
loads them with ``trust_remote_code=True`` where the package is not installed. The package has
faster kernels, its own backends (``attention_backend``) and the same results to rounding.

Licence: Apache-2.0, http://www.apache.org/licenses/LICENSE-2.0
Papers: arXiv:2410.05258 (DIFF), arXiv:2501.17900 (Shared DIFF), arXiv:2510.06949 (grouped).
"""

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedConfig
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN_NAMES
from transformers.models.llama import modeling_llama as llama
from transformers.utils.output_capturing import OutputRecorder

LAMBDA_NAMES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
SOFTMAX = {"maps": 1, "width": 1, "lam": None}
"""``maps``: maps per head. ``width``: of a value, in units of head_dim; as many keys has each
key/value head. ``lam``: the source of λ, "vectors", "token" or None."""
V1 = {"maps": 2, "width": 2, "lam": "vectors"}
V2 = {"maps": 2, "width": 1, "lam": "token"}
ATTENTION_TYPES: dict[str, dict[str, Any]] = {
    "softmax": SOFTMAX,
    "diff": V1,
    "diff_v2": V2,
    "shared_diff": V1,
    "gated_head": V2 | {"maps": 1},
    "gated_element": V2 | {"maps": 1},
    "grouped_diff": V1,
    "dex": SOFTMAX | {"lam": "vectors"},
}


class DiffTransformerConfig(PreTrainedConfig):
    """Settings of a model, as the package wrote them; the package documents and checks them."""

    model_type = "diff_transformer"
    keys_to_ignore_at_inference = ["past_key_values"]
    hidden_act, mlp_bias = "silu", False  # as Llama's classes read them
    # The others are in every config.json.
    attention_type: str = "diff"
    attention_backend: str = "auto"
    rope_parameters: dict | None = None
    use_cache = tie_word_embeddings = True
    lambda_bias = qkv_bias = qk_norm = depth_scaled_init = scaled_head_init = False
    shared_rank = group_ratio = head_norm = lambda_init = None
    pad_token_id = bos_token_id = eos_token_id = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name in set(self.attention_type.split(",")) - ATTENTION_TYPES.keys():
            raise ValueError(f"Unknown attention_type {name!r}. Controls need diffattn.")
        if self.attention_backend != "auto":
            warnings.warn("attention_backend needs the package diffattn: ignored", stacklevel=2)
        for name in ("num_attention_heads", "num_key_value_heads"):  # they follow from the others
            kwargs.pop(name, None)
        super().__post_init__(**kwargs)

    def of_layer(self, layer_idx: int) -> "DiffTransformerConfig":
        """The settings of a model whose layers all have the type and the heads of this layer."""
        names = self.attention_type.split(",")
        if len(names) == 1:
            return self
        layer = copy.copy(self)
        layer.attention_type = names[layer_idx]
        wider = self.value_width // layer.value_width
        layer.num_heads, layer.num_kv_heads = wider * self.num_heads, wider * self.num_kv_heads
        return layer

    @property
    def attention(self) -> dict[str, Any]:
        """The row of :data:`ATTENTION_TYPES`, for one type in all layers."""
        return ATTENTION_TYPES[self.attention_type]

    @property
    def value_width(self) -> int:
        """Width of a value in units of head_dim in the widest type, which sets num_heads."""
        return max(ATTENTION_TYPES[name]["width"] for name in self.attention_type.split(","))

    @property
    def num_attention_heads(self) -> int:
        """Query heads of a layer's kernel call; if layers differ, the largest number."""
        layers = [self.of_layer(i) for i in range(self.num_hidden_layers)]
        return max(x.num_heads * x.attention["maps"] * x.attention["width"] for x in layers)

    @property
    def num_key_value_heads(self) -> int:
        """Key/value heads of a layer's kernel call; types with two keys need K and V twice."""
        return self.num_kv_heads * self.value_width**2

    n_head_kv = num_key_value_heads  # the name that vLLM reads first


class HeadRMSNorm(nn.RMSNorm):
    """RMSNorm over the channels of one head, times a fixed factor; in float32 or wider."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` to the same shape and dtype."""
        wide = at_least_float32(x)
        weight = None if self.weight is None else self.weight.to(wide.dtype)
        return (self.factor * F.rms_norm(wide, x.shape[-1:], weight, self.eps)).to(x.dtype)


class LambdaVectors(nn.Module):
    """λ = exp(λq1·λk1) − exp(λq2·λk2) + λ_init: one number for the layer, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in LAMBDA_NAMES:
            self.register_parameter(name, nn.Parameter(torch.empty(width, dtype=torch.float32)))

    def forward(self, lambda_init: float) -> Tensor:
        """λ, ``[]``."""
        q1, k1, q2, k2 = (at_least_float32(getattr(self, name)) for name in LAMBDA_NAMES)
        return (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + lambda_init


class DiffTransformerAttention(nn.Module):
    """O = (softmax(s Q₁K₁ᵀ) − λ softmax(s Q₂K₂ᵀ)) V for every attention type of the family."""

    is_causal = True

    def __init__(self, config: DiffTransformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, config = config, config.of_layer(layer_idx)
        self.layer_idx, self.kind = layer_idx, config.attention_type
        facts, hidden, width = config.attention, config.hidden_size, config.head_dim
        self.facts = facts
        self.value_dim = facts["width"] * width
        self.scaling = width**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        constant = config.lambda_init
        if isinstance(constant, list):
            constant = constant[layer_idx]
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer_idx) if constant is None else constant
        if facts["lam"] == "vectors":
            self.lambda_bias = LambdaVectors(width)
        bias, rank = config.qkv_bias, config.shared_rank
        rank = self.rank = rank if self.kind == "shared_diff" else None
        ratio = (config.group_ratio or 1) if self.kind == "grouped_diff" else 1
        self.maps = {"q": facts["maps"] + ratio - 1, "k": facts["width"]}
        groups = {"q": config.num_heads // ratio, "k": config.num_kv_heads}
        for name, heads in groups.items():
            rows = heads * width * (self.maps[name] if rank is None else 1)
            self.add_module(f"{name}_proj", nn.Linear(hidden, rows, bias=bias))
            if rank is not None:
                down = nn.Linear(hidden, heads * 2 * rank, bias=False)
                self.add_module(f"{name}_down_proj", down)
                up = nn.Parameter(torch.empty(heads, 2, width, rank))
                self.register_parameter(f"{name}_up", up)
            norm = HeadRMSNorm(width, config.rms_norm_eps) if config.qk_norm else nn.Identity()
            self.add_module(f"{name}_norm", norm)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * self.value_dim, bias=bias)
        if facts["lam"] == "token":
            rows = config.num_heads * (width if self.kind == "gated_element" else 1)
            self.lambda_proj = nn.Linear(hidden, rows, bias=config.lambda_bias)
        if self.kind == "dex":
            self.dex_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(config.num_heads * self.value_dim, hidden, bias=False)
        normed = facts["width"] == 2 if config.head_norm is None else config.head_norm
        self.head_norm: Any = nn.Identity()
        if normed:
            eps, affine = config.head_norm_eps, config.head_norm_affine
            self.head_norm = HeadRMSNorm(self.value_dim, eps, affine)
            self.head_norm.factor = 1 - self.lambda_init if facts["lam"] == "vectors" else 1.0

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Any = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Output ``[B, T, hidden_size]``, and under ``"eager"`` A1 − λA2, else ``None``."""
        x = hidden_states
        q, k = (getattr(self, f"{name}_norm")(self.project(name, x)) for name in "qk")
        v = self.v_proj(x).unflatten(-1, (-1, self.value_dim))
        cos, sin = (table[:, :, None, None] for table in position_embeddings)
        q, k = ((y * cos + llama.rotate_half(y) * sin).to(v.dtype) for y in (q, k))
        if q.shape[3] > 2:  # a group's last query beside each of the others
            added, last = q[..., :-1, :], q[..., -1:, :]
            q = torch.stack([added, last.expand_as(added)], 4).flatten(2, 3)
        if past_key_values is not None:
            maps, stored = k.shape[3], (k.flatten(3).transpose(1, 2), v.transpose(1, 2))
            keys, values = past_key_values.update(*stored, self.layer_idx)
            k, v = keys.transpose(1, 2).unflatten(-1, (maps, -1)), values.transpose(1, 2)
        lam = self.lambdas(x)
        act_on_maps = lam if self.facts["maps"] == 2 else None  # else on the output
        attend = self.by_maps if self.config._attn_implementation == "eager" else self.by_kernel
        out, acting_map = attend(q, k, v, act_on_maps, attention_mask, **kwargs)  # [B, T, H, Dv]
        if self.kind.startswith("gated"):
            out = ((1 - lam.unflatten(-1, (out.shape[2], -1))) * out).to(v.dtype)
        if self.kind == "dex":
            out = (out - lam * self.dex_proj(out)).to(v.dtype)
        return self.o_proj(self.head_norm(out).flatten(2)), acting_map

    def project(self, name: str, x: Tensor) -> Tensor:
        """Queries or keys of every map, ``[B, T, heads, maps, D]``."""
        width, rows = self.config.head_dim, getattr(self, f"{name}_proj")(x)
        if self.rank is not None:
            up = getattr(self, f"{name}_up")
            low = getattr(self, f"{name}_down_proj")(x).unflatten(-1, (up.shape[0], 2, -1))
            return rows.unflatten(-1, (-1, 1, width)) + torch.einsum("bthmr,hmdr->bthmd", low, up)
        return rows.unflatten(-1, (-1, self.maps[name], width))

    def lambdas(self, x: Tensor) -> Any:
        """λ that broadcasts to ``[B, T, H]``, float32 or wider; ``None`` for softmax."""
        if self.facts["lam"] == "vectors":
            return self.lambda_bias(self.lambda_init)
        if self.facts["lam"] is None:
            return None
        weight = next((p for p in self.lambda_proj.parameters() if p.is_floating_point()), x)
        return at_least_float32(self.lambda_proj(x.to(weight.dtype))).sigmoid()

    def by_kernel(
        self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """One kernel call: Q = [q1, q2, q1, q2], K likewise, V = [left, left, right, right]."""
        wide, heads = k.shape[3] == 2, q.shape[2]
        if wide:
            left, right = v.chunk(2, dim=-1)
            q, k = (torch.cat([*y.unbind(3)] * 2, dim=2) for y in (q, k))
            v = torch.cat([left, left, right, right], dim=2)
        else:
            q, k = q.flatten(2, 3), k[:, :, :, 0]
        name = self.config._attn_implementation
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(name, llama.eager_attention_forward)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        out, _ = attention(self, q, k, v, mask, dropout=0.0, scaling=self.scaling, **kwargs)
        out = out.view(q.shape[0], q.shape[2], -1, q.shape[3])
        if lam is None:
            return out, None
        if wide:  # [B, T, halves, maps, H, D]
            out = out.unflatten(2, (2, 2, heads)).permute(0, 1, 4, 3, 2, 5).flatten(4)
        else:
            out = out.unflatten(2, (heads, 2))
        lam = lam.expand(*out.shape[:2], heads)[..., None]
        return (out[:, :, :, 0] - lam * out[:, :, :, 1]).to(v.dtype), None

    def by_maps(
        self, q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The definition: the maps, their difference, its product with V."""
        k, v = (y.repeat_interleave(q.shape[2] // y.shape[2], dim=2) for y in (k, v))
        if q.dtype == torch.float16:  # scores may leave its range
            q, k = q.float(), k.float()
        scores = q.permute(0, 2, 3, 1, 4) @ k.permute(0, 2, 3, 4, 1)  # [B, H, maps, T, S]
        scores = at_least_float32(scores) * self.scaling
        scores = scores if mask is None else scores + mask[:, :, None]
        maps = scores.softmax(-1)
        acting_map = maps[:, :, 0]
        if lam is not None:
            lam = lam.expand(q.shape[:3]).transpose(1, 2)[..., None]
            acting_map = acting_map - lam * maps[:, :, 1]
        return (acting_map.to(v.dtype) @ v.transpose(1, 2)).transpose(1, 2), acting_map


class DiffTransformerBlock(llama.LlamaDecoderLayer):
    """Pre-norm attention and SwiGLU, each with a residual."""

    def __init__(self, config: DiffTransformerConfig, layer_idx: int) -> None:
        nn.Module.__init__(self)
        self.self_attn = DiffTransformerAttention(config, layer_idx)
        self.mlp = llama.LlamaMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class DiffTransformerPreTrainedModel(llama.LlamaPreTrainedModel):
    """Weights, attention implementations and outputs."""

    config_class = DiffTransformerConfig
    _no_split_modules = ["DiffTransformerBlock"]
    _keep_in_fp32_modules_strict = [*LAMBDA_NAMES]
    _can_record_outputs = {
        "hidden_states": DiffTransformerBlock,
        "attentions": OutputRecorder(DiffTransformerAttention, index=1),
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LambdaVectors):
            for vector in module.parameters():
                init.normal_(vector, std=0.1)
        if hasattr(module, "q_up"):
            for up in (module.q_up, module.k_up):
                init.normal_(up, std=self.config.shared_rank**-0.5)


class DiffTransformerModel(DiffTransformerPreTrainedModel, llama.LlamaModel):
    """Embedding, blocks and final norm."""

    def __init__(self, config: DiffTransformerConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(DiffTransformerBlock(config, layer) for layer in layers)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = llama.LlamaRotaryEmbedding(config)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutputWithPast:
        """Hidden states of every token."""
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return super().forward(inputs_embeds=embeds * self.config.embedding_multiplier, **kwargs)


class DiffTransformerForCausalLM(DiffTransformerPreTrainedModel, llama.LlamaForCausalLM):
    """Decoder with a language-model head."""

    def __init__(self, config: DiffTransformerConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.model = DiffTransformerModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _get_static_cache_init_shape(self) -> None:
        """None: the cache takes its shape from the first token, as both keys are one head."""


class DiffTransformerForSequenceClassification(
    GenericForSequenceClassification, DiffTransformerPreTrainedModel
):
    """Decoder with a linear head on its last real token."""


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 as it is."""
    return x if x.dtype == torch.float64 else x.float()


register_checkpoint_conversion_mapping(
    DiffTransformerConfig.model_type,  # files hold the names of the original code
    [
        WeightRenaming(r"self_attn\.(lambda_[qk][12])", r"self_attn.lambda_bias.\1"),
        WeightRenaming(r"self_attn\.subln\.weight", r"self_attn.head_norm.weight"),
    ],
    overwrite=True,
)
# A head for classification looks for its decoder as AutoModel.
AutoModel.register(DiffTransformerConfig, DiffTransformerModel, exist_ok=True)
KNOWN_NAMES[DiffTransformerConfig.model_type] = DiffTransformerForCausalLM.__name__  # to Trainer
