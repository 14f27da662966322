"""Language models with differential attention: build, train, evaluate, look inside."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Public name -> its module, imported on first use: records and reports must work without torch.
_PUBLIC = {
    "DiffAttnError": "diffattn.errors",
    "ShapeError": "diffattn.errors",
    "ConfigError": "diffattn.errors",
    "CheckpointError": "diffattn.errors",
    "BackendError": "diffattn.errors",
    "backends": "diffattn.ops.inputs.backends",
    "diff_attention": "diffattn.ops.attention",
    "diff_attention_maps": "diffattn.ops.attention",
    "paged_decode": "diffattn.ops.attention",
    "flex_diff_attention": "diffattn.ops.backends.flex",
    "softmax_attention": "diffattn.ops.softmax_attention",
    "softmax_attention_maps": "diffattn.ops.softmax_attention",
    "rotary_embedding": "diffattn.ops.inputs.formulas",
    "DiffAttention": "diffattn.layers.diff_attention",
    "DiffAttentionV2": "diffattn.layers.diff_attention",
    "DexAttention": "diffattn.layers.gated_attention",
    "GroupedDiffAttention": "diffattn.layers.diff_attention",
    "SharedDiffAttention": "diffattn.layers.shared_diff_attention",
    "SoftmaxAttention": "diffattn.layers.attention",
    "DiffTransformerConfig": "diffattn.models.configuration_diff_transformer",
    "DiffTransformerModel": "diffattn.models.modeling_diff_transformer",
    "DiffTransformerForCausalLM": "diffattn.models.modeling_diff_transformer",
    "DiffTransformerForSequenceClassification": "diffattn.models.modeling_diff_transformer",
    "reproduce": "diffattn.lab.studies.reproduce",
}

# Without ``reproduce``, which needs the lab: ``help(diffattn)`` and star imports need the library.
__all__ = ["__version__", *(name for name in _PUBLIC if name != "reproduce")]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'diffattn' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    value = globals()[name] = module if name == "backends" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _add_config(auto: Any) -> None:
    auto.CONFIG_MAPPING_NAMES[_MODEL_TYPE] = "DiffTransformerConfig"
    auto.CONFIG_MAPPING._modules[_MODEL_TYPE] = sys.modules[__name__]


def _add_models(auto: Any) -> None:
    for mapping, name in (
        (auto.MODEL_MAPPING, "DiffTransformerModel"),
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING, "DiffTransformerForCausalLM"),
        (
            auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
            "DiffTransformerForSequenceClassification",
        ),
    ):
        mapping._reverse_config_mapping["DiffTransformerConfig"] = _MODEL_TYPE
        mapping._model_mapping[_MODEL_TYPE] = name
        mapping._modules[_MODEL_TYPE] = sys.modules[__name__]


_MODEL_TYPE = "diff_transformer"
_TABLES = {
    "transformers.models.auto.configuration_auto": _add_config,
    "transformers.models.auto.modeling_auto": _add_models,
}
"""Module of transformers -> function that adds our classes to its tables of Auto classes. Without
them the Auto classes would ask to run the copy of our code in a model's folder."""


class _AddOnImport(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in _TABLES else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_add(module: ModuleType) -> None:
                run(module)
                _TABLES[name](module)

            spec.loader.exec_module = run_and_add  # type: ignore[method-assign]
        return spec


for _name, _add in _TABLES.items():
    if _name in sys.modules:
        _add(sys.modules[_name])
sys.meta_path.insert(0, _AddOnImport())
