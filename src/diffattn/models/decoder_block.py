"""One decoder block, for every attention type."""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from diffattn.layers.parts import SwiGLU
from diffattn.models.attention.cached_attention import Attend
from diffattn.models.attention.kernels import AttentionMapRecorder, KernelCall
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig


def build_attention(config: DiffTransformerConfig, layer_idx: int) -> nn.Module:
    """The attention layer of one block."""
    config = config.of_layer(layer_idx)
    # Not ``config.attention``: a configuration pickled by value brings a copy of the table.
    attention_type = ATTENTION[config.attention_type]
    options: dict[str, Any] = {
        "num_kv_heads": config.num_kv_heads,
        "layer_idx": layer_idx,
        "head_norm": config.uses_head_norm,
        "head_norm_affine": config.head_norm_affine,
        "head_norm_eps": config.head_norm_eps,
        "qkv_bias": config.qkv_bias,
        "qk_norm_eps": config.rms_norm_eps if config.qk_norm else None,
    }
    if attention_type.lambda_vectors:
        options["lambda_init"] = config.layer_lambda_init(layer_idx)
    if attention_type.low_rank_maps:
        options["shared_rank"] = config.shared_rank
    if attention_type.grouped:
        options["group_ratio"] = config.group_ratio
    if attention_type.lambda_projection:
        options["lambda_bias"] = config.lambda_bias
    return attention_type.layer_class()(
        config.hidden_size, config.num_heads, config.head_dim, **options
    )


class DiffTransformerBlock(GradientCheckpointingLayer):
    r"""Pre-norm attention and SwiGLU, each with a residual; LN is RMSNorm.

    .. math:: Y = \mathrm{MultiHead}(\mathrm{LN}(X)) + X,\quad
              X' = \mathrm{SwiGLU}(\mathrm{LN}(Y)) + Y

    Source: arXiv:2410.05258v2, Eq. (4) and (5).
    """

    def __init__(self, config: DiffTransformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.self_attn = build_attention(config, layer_idx)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for writer in (getattr(self.self_attn, "o_proj", None), self.mlp.down_proj):
            if writer is not None:  # type "none" has no o_proj
                writer.writes_residual = True  # for depth_scaled_init
        self.attention_maps = AttentionMapRecorder()
        self.kernel = KernelCall(config, layer_idx)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        record_maps: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """The block's output, ``[B, T, hidden_size]``, from an input of the same shape."""
        recorder = self.attention_maps if record_maps else None
        attend = Attend(self, attention_mask, past_key_values, recorder, kwargs)
        attended = self.self_attn(
            self.input_layernorm(hidden_states), position_embeddings, attend=attend
        )
        hidden_states = attended + hidden_states
        return self.mlp(self.post_attention_layernorm(hidden_states)) + hidden_states
