"""Named model sizes: those of the papers and some larger ones, with their matched twins."""

from typing import TYPE_CHECKING, Any

from diffattn.errors import check_known
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.config.settings import ModelSettings
from diffattn.models.twins import parameter_count, twin

if TYPE_CHECKING:
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig


_PRINTED = (
    "hidden_size", "num_hidden_layers", "num_heads", "head_dim", "max_position_embeddings",
    "vocab_size",
)  # fmt: skip
"""Fields of a DIFF V1 model that the papers print; the configuration derives the others."""
_SIZES: dict[str, tuple[str, tuple[int, ...]]] = {
    # name -> the papers' name, and the values of _PRINTED
    "830m": ("830M", (1_536, 24, 8, 96, 2_048, 100_288)),
    "1.4b": ("1.4B", (2_048, 24, 8, 128, 2_048, 100_288)),
    "2.8b": ("2.8B", (2_560, 32, 10, 128, 2_048, 100_288)),
    "3b": ("3B", (3_072, 28, 12, 128, 4_096, 100_288)),
    "gpt2-small": ("GPT-2 small", (768, 12, 6, 64, 2_048, 50_257)),
    "6.8b": ("6.8B", (4_096, 32, 16, 128, 2_048, 100_288)),
    "13.1b": ("13.1B", (5_120, 40, 20, 128, 2_048, 100_288)),
    "34b": ("no paper's", (8_192, 48, 32, 128, 4_096, 100_288)),
    "70b": ("no paper's", (8_192, 80, 32, 128, 4_096, 100_288)),
}
NAMES = tuple(_SIZES)
_EXTRA_FIELDS: dict[str, dict[str, int]] = {
    "34b": {"num_kv_heads": 4, "intermediate_size": 22_016},
    "70b": {"num_kv_heads": 4, "intermediate_size": 28_672},
}
"""Name -> key/value heads and FFN width, which all other sizes derive. No DIFF model beyond 13.1B
is published. These two have the shapes of Code Llama 34B (arXiv:2308.12950) and Llama 2 70B
(arXiv:2307.09288): 64 heads and 8 key/value heads, half as many in DIFF heads. The vocabulary is
that of the other sizes."""


def preset(name: str, attention_type: str = "diff") -> "DiffTransformerConfig":
    """The configuration of a named size: the DIFF V1 model, or its twin of equal parameters.

    With tied embeddings, the paper's sizes have the number of parameters in their names, but for
    ``"3b"``: the paper calls it 3B and speaks of about 2.8B parameters. The sizes that it prints
    give 3.171B parameters without embeddings, 3.479B with tied and 3.787B with untied embeddings.

    ``"gpt2-small"`` is not from the paper, and has fewer DIFF heads than the paper's smallest
    number, 8. ``"34b"`` and ``"70b"`` have the shapes of other models, for planning larger runs.

    Source: arXiv:2410.05258v2, Appendices D and E (hyperparameters).
    """
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

    return DiffTransformerConfig(**preset_settings(name, attention_type).settings())


def preset_settings(name: str, attention_type: str = "diff") -> ModelSettings:
    """The settings of :func:`preset`, without importing torch."""
    check_known("preset", "name", name, _SIZES)
    values: dict[str, Any] = dict(zip(_PRINTED, _SIZES[name][1], strict=True))
    printed = ModelSettings(attention_type="diff", **values | _EXTRA_FIELDS.get(name, {}))
    return twin(printed, attention_type).config


def preset_table() -> list[dict[str, Any]]:
    """Every preset with its exact parameter counts, a tied embedding counted once, and for each
    twin its parameters minus the preset's."""
    rows = []
    for name, (paper_name, _) in _SIZES.items():
        config = preset_settings(name)
        row: dict[str, Any] = {
            "preset": name,
            "paper": paper_name,
            "parameters": parameter_count(config),
            "without embeddings": parameter_count(config, embeddings=False),
        }
        for kind in ATTENTION_TYPES:
            if kind != config.attention_type:
                row[f"{kind} twin"] = twin(config, kind).parameter_difference
        rows.append(row)
    return rows
