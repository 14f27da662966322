"""Named sizes of the papers, and their matched twins."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from diffattn.models.accounting import parameter_count
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.models.known_names import check_known
from diffattn.models.settings import ModelSettings
from diffattn.models.twins import twin

if TYPE_CHECKING:
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class _Size:
    """What the papers print of one DIFF V1 model; the rest follows from the configuration."""

    paper_name: str
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    head_dim: int
    max_position_embeddings: int = 2_048
    vocab_size: int = 100_288


_SIZES = {
    "830m": _Size(
        paper_name="830M", hidden_size=1_536, num_hidden_layers=24, num_heads=8, head_dim=96
    ),
    "1.4b": _Size(
        paper_name="1.4B", hidden_size=2_048, num_hidden_layers=24, num_heads=8, head_dim=128
    ),
    "2.8b": _Size(
        paper_name="2.8B", hidden_size=2_560, num_hidden_layers=32, num_heads=10, head_dim=128
    ),
    "3b": _Size(
        paper_name="3B", hidden_size=3_072, num_hidden_layers=28, num_heads=12, head_dim=128,
        max_position_embeddings=4_096,
    ),
    "gpt2-small": _Size(
        paper_name="GPT-2 small", hidden_size=768, num_hidden_layers=12, num_heads=6, head_dim=64,
        vocab_size=50_257,
    ),
    "6.8b": _Size(
        paper_name="6.8B", hidden_size=4_096, num_hidden_layers=32, num_heads=16, head_dim=128
    ),
    "13.1b": _Size(
        paper_name="13.1B", hidden_size=5_120, num_hidden_layers=40, num_heads=20, head_dim=128
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetRow:
    """One line of the table of presets. Counts are exact and in parameters."""

    name: str
    paper_name: str
    total: int
    """Of the DIFF V1 model; its tied embedding matrix counted once."""
    non_embedding: int
    twin_residuals: dict[str, int]
    """Twin's parameters minus ``total``, by attention type."""


def names() -> tuple[str, ...]:
    """Names of the presets, in the papers' order."""
    return tuple(_SIZES)


def preset(name: str, attention_type: str = "diff") -> "DiffTransformerConfig":
    """A size of the papers: the DIFF V1 model, or its twin of equal parameters.

    Embeddings are tied: so counted, every size but one has the number of parameters in its name.
    The exception is ``"3b"``: the paper calls it 3B and speaks of about 2.8B parameters, while
    the sizes it prints give 3.171B without embeddings, 3.479B with tied and 3.787B with untied
    ones.

    The FFN is 8/3 of the hidden size, rounded to the nearest multiple of 64, which moves the
    totals of four sizes by up to 0.22 %. ``"gpt2-small"`` is not from the paper, and has fewer
    than the 8 DIFF heads that the paper starts from.

    Source: arXiv:2410.05258v2, Appendices D and E (hyperparameters).

    Args:
        name: A name from :func:`preset_table`.
        attention_type: ``"diff"`` for the size as printed; another type for its twin, see
            :func:`diffattn.models.twins.twin` with ``match="params"``.

    Returns:
        A new configuration.

    Raises:
        ConfigError: Unknown name or attention type.
    """
    from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

    return DiffTransformerConfig(**preset_settings(name, attention_type).settings())


def preset_settings(name: str, attention_type: str = "diff") -> ModelSettings:
    """The settings of :func:`preset`, which documents them, made without torch."""
    printed = _as_printed(name)
    if attention_type == printed.attention_type:
        return printed
    return twin(printed, attention_type).config


def preset_table() -> list[PresetRow]:
    """Every preset with its parameters and what its twins leave unmatched.

    Source: arXiv:2410.05258v2, Appendices D and E (hyperparameters).
    """
    rows = []
    for name, size in _SIZES.items():
        config = _as_printed(name)
        others = [kind for kind in ATTENTION_TYPES if kind != config.attention_type]
        rows.append(
            PresetRow(
                name=name,
                paper_name=size.paper_name,
                total=parameter_count(config),
                non_embedding=parameter_count(config, embeddings=False),
                twin_residuals={kind: twin(config, kind).parameter_difference for kind in others},
            )
        )
    return rows


def _as_printed(name: str) -> ModelSettings:
    check_known("preset", "name", name, _SIZES)
    size = _SIZES[name]
    return ModelSettings(
        attention_type="diff",
        vocab_size=size.vocab_size,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_hidden_layers,
        num_heads=size.num_heads,
        head_dim=size.head_dim,
        max_position_embeddings=size.max_position_embeddings,
    )
