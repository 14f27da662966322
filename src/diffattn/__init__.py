"""Language models with differential attention: build, train, evaluate, look inside."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name -> module. Loaded on first use, so that records and reports work without torch.
_PUBLIC = {
    "DiffAttnError": "diffattn.errors",
    "ShapeError": "diffattn.errors",
    "ConfigError": "diffattn.errors",
    "CheckpointError": "diffattn.errors",
    "BackendError": "diffattn.errors",
    "backends": "diffattn.ops.inputs",
    "diff_attention": "diffattn.ops.attention",
    "diff_attention_maps": "diffattn.ops.attention",
    "paged_decode": "diffattn.ops.paged_decode",
    "flex_diff_attention": "diffattn.ops.backends.flex",
    "softmax_attention": "diffattn.ops.softmax_attention",
    "softmax_attention_maps": "diffattn.ops.softmax_attention",
    "rotary_embedding": "diffattn.ops.inputs.rotary",
    "DiffAttention": "diffattn.layers.diff_attention",
    "DiffAttentionV2": "diffattn.layers.diff_attention_v2",
    "SharedDiffAttention": "diffattn.layers.shared_diff_attention",
    "SoftmaxAttention": "diffattn.layers.softmax_attention",
    "DiffTransformerConfig": "diffattn.models.configuration_diff_transformer",
    "DiffTransformerModel": "diffattn.models.modeling_diff_transformer",
    "DiffTransformerForCausalLM": "diffattn.models.modeling_diff_transformer",
    "DiffTransformerForSequenceClassification": "diffattn.models.modeling_diff_transformer",
    "reproduce": "diffattn.lab.studies.reproduce",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'diffattn' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    value = (
        import_module(f"{_PUBLIC[name]}.{name}") if name == "backends" else getattr(module, name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
