"""Every fact about an attention type, one row each. Loads without torch and transformers.

Layers hold the arithmetic; a row names its layer and gives what models, counts, matched twins,
caches and tables have to know of it.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from diffattn.errors import ConfigError
from diffattn.models.config.known_names import check_known


@dataclass(frozen=True, kw_only=True)
class AttentionType:
    """One attention type. Widths are in units of ``head_dim``, counts per head of the operator.

    Without slots, which cloudpickle cannot send by value.
    """

    name: str
    layer: tuple[str, str]
    """Module and class of the layer; see :meth:`layer_class`."""
    source: str
    query_maps: int
    """Queries per head, one for each attention map."""
    key_maps: int
    """Keys per key/value head: V2's maps share theirs."""
    value_width: int
    """Width of one value, and the softmax heads that one head stands for."""
    attention_units: int
    """Multiply-adds per query-key pair in units of ``num_heads * head_dim``: scores plus weighted
    values. V1 and Shared combine the maps before V, as any implementation may. V2 is counted as
    its authors run it, as one flash call with twice the heads; combining first would take 3."""
    head_norm: bool
    """Whether heads are normalised unless the configuration says otherwise."""
    lambda_vectors: bool = False
    """λ comes from four vectors per layer and λ_init."""
    lambda_projection: bool = False
    """λ comes from a projection of every token."""
    lambda_per_channel: bool = False
    """The projection has a row for every channel of a head, not one for the head."""
    grouped: bool = False
    """``group_ratio`` heads share one subtracted map; all other facts are those of a ratio of 1."""
    head_matrix: bool = False
    """One matrix, as wide as a head, acts on the output of every head."""
    low_rank_maps: bool = False
    """The maps share one base projection and differ by updates of rank ``shared_rank``."""
    projected_maps: int | None = None
    """Maps whose queries and keys are projected, where not all are; with 0 the layer has no
    projections."""
    subtracts_outputs: bool = False
    """The maps of a pair have keys and values of their own: softmax attention with as many heads
    as there are queries, whose outputs are subtracted."""
    needs_maps: bool = False
    """A1 and A2 are changed by more than a subtraction: the eager definition alone."""
    control: str = ""
    """The change that makes a control; empty for the types of the papers."""

    @property
    def op(self) -> str:
        """The operator its layer calls: ``"softmax_attention"`` or ``"diff_attention"``."""
        one_map = self.query_maps == 1 or self.subtracts_outputs
        return "softmax_attention" if one_map else "diff_attention"

    @property
    def matches_softmax(self) -> bool:
        """Whether its projections are as large as softmax's; λ's vectors and norms aside."""
        changed = self.low_rank_maps or self.grouped or self.lambda_projection or self.head_matrix
        if changed or self.projected_maps == 0:
            return False
        return self.query_projections == self.key_projections == self.value_width

    @property
    def lambda_per_head(self) -> bool:
        """Whether λ comes from a projection with one row per head."""
        return self.lambda_projection and not self.lambda_per_channel

    @property
    def query_projections(self) -> int:
        """Projections of queries per head."""
        return self.query_maps if self.projected_maps is None else self.projected_maps

    @property
    def key_projections(self) -> int:
        """Projections of keys per key/value head."""
        if self.projected_maps is None:
            return self.key_maps
        return min(self.key_maps, self.projected_maps)

    def softmax_heads(self, match: str) -> int:
        """Softmax heads that one head stands for, if ``match`` (see ``twin``) is to be equal."""
        if match == "attention_flops" and self.attention_units:
            return self.attention_units // ATTENTION["softmax"].attention_units
        return self.value_width

    def layer_class(self) -> Any:
        """The layer; torch loads with it."""
        module, name = self.layer
        return getattr(import_module(module), name)


_SOFTMAX = AttentionType(
    name="softmax", layer=("diffattn.layers.softmax_attention", "SoftmaxAttention"),
    source="arXiv:1706.03762", query_maps=1, key_maps=1, value_width=1, attention_units=2,
    head_norm=False,
)  # fmt: skip
_V1 = AttentionType(
    name="diff", layer=("diffattn.layers.diff_attention", "DiffAttention"),
    source="arXiv:2410.05258v2", query_maps=2, key_maps=2, value_width=2, attention_units=4,
    head_norm=True, lambda_vectors=True,
)  # fmt: skip
_V2 = AttentionType(
    name="diff_v2", layer=("diffattn.layers.diff_attention_v2", "DiffAttentionV2"),
    source="DIFF V2 note, January 2026", query_maps=2, key_maps=1, value_width=1,
    attention_units=4, head_norm=False, lambda_projection=True,
)  # fmt: skip
_SHARED = replace(
    _V1, name="shared_diff", source="arXiv:2501.17900", low_rank_maps=True,
    layer=("diffattn.layers.shared_diff_attention", "SharedDiffAttention"),
)  # fmt: skip
_GATED = replace(
    _SOFTMAX, name="gated_head", source="arXiv:2505.06708", lambda_projection=True,
    layer=("diffattn.layers.gated_attention", "GatedAttention"),
)  # fmt: skip


def _control(
    base: AttentionType, name: str, layer: str, change: str, *, source: str = "ours", **facts: Any
) -> AttentionType:
    """The row of a type with one change; ``facts`` are those in which it differs."""
    layer_class = ("diffattn.layers.controls", layer)
    return replace(base, name=name, layer=layer_class, source=source, control=change, **facts)


_ROWS = (
    _SOFTMAX,
    _V1,
    _V2,
    _SHARED,
    _GATED,
    replace(
        _GATED, name="gated_element", lambda_per_channel=True,
        layer=("diffattn.layers.gated_attention", "ElementGatedAttention"),
    ),
    replace(
        _V1, name="grouped_diff", source="arXiv:2510.06949v1", grouped=True,
        layer=("diffattn.layers.diff_attention", "GroupedDiffAttention"),
    ),
    replace(
        _SOFTMAX, name="dex", layer=("diffattn.layers.dex", "DexAttention"),
        source="arXiv:2505.16333", lambda_vectors=True, head_matrix=True,
    ),
    _control(_SOFTMAX, "none", "NoAttention", "no attention: zero in its place",
             attention_units=0, projected_maps=0),
    _control(_SOFTMAX, "softmax_half", "HalvedAttention", "softmax times ½"),
    _control(_SOFTMAX, "softmax_minus_mean", "MeanFreeAttention",
             "softmax minus 0.7 times the mean value: the second map is uniform",
             query_maps=2, attention_units=4, projected_maps=1),
    _control(_V2, "diff_v2_constant", "ConstantLambdaAttention", "V2 with λ = ½",
             lambda_projection=False),
    _control(_V2, "diff_v2_added", "AddedMapsAttention", "V2 whose second map is added"),
    _control(_V2, "diff_v2_added_matched", "MatchedAddedMapsAttention",
             "V2 whose second map is added, its output as large as V2's"),
    _control(_V1, "diff_added", "AddedMapsV1", "V1 whose second map is added"),
    _control(_V1, "diff_uniform", "UniformSecondMap", "V1 whose second map is uniform",
             projected_maps=1),
    _control(_V1, "diff_token_lambda", "TokenLambdaAttention", "V1 with V2's λ per token and head",
             lambda_vectors=False, lambda_projection=True),
    _control(_V2, "diff_v2_no_lambda", "WholeDifferenceAttention", "V2 without λ: A1 − A2",
             source=_V2.source, lambda_projection=False),
    _control(_V2, "diff_v2_raw_lambda", "RawLambdaAttention", "V2 with λ not through a sigmoid",
             source=_V2.source),
    _control(_V2, "diff_v2_across", "AcrossGroupsAttention", "V2, pairs share no keys or values",
             source=_V2.source, subtracts_outputs=True),
    _control(_V2, "diff_v2_shuffled", "ShuffledMapAttention",
             "V2 whose second map has its weights at shuffled keys", needs_maps=True),
    _control(_SHARED, "shared_diff_map_norm", "MapNormAttention", "Shared DIFF, norm on the map",
             source=_SHARED.source, head_norm=False, needs_maps=True),
)  # fmt: skip
ATTENTION = {row.name: row for row in _ROWS}
"""Name to facts, in the order of tables and studies; the controls come last."""
OLD_NAMES = {"diff_v2_gate": "gated_head"}
"""Of older configurations and records, to the names of today."""
ATTENTION_TYPES = tuple(row.name for row in _ROWS if not row.control)
"""Types of the papers."""
CONTROL_TYPES = tuple(row.name for row in _ROWS if row.control)
"""Types with one change, to find its effect; see :mod:`diffattn.layers.controls`."""


def checked_types(where: str, given: str | list[str], num_layers: int | None = None) -> str:
    """Attention types of a model in today's names: one, or one per layer with commas between them.

    Args:
        where: Begins messages.
        given: A name; several with commas; or a list of names.
        num_layers: Of the model, if it is known.

    Raises:
        ConfigError: An unknown name, or not one for each layer.
    """
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple):
        parts = [parts]
    names = [OLD_NAMES.get(x.strip(), x.strip()) if isinstance(x, str) else x for x in parts]
    for name in names:
        check_known(where, "attention_type", name, ATTENTION)
    if len(names) != 1 and num_layers is not None and len(names) != num_layers:
        raise ConfigError(
            f"{where}: attention_type must name one type, or one for each of {num_layers} layers, "
            f"got {len(names)}."
        )
    return names[0] if len(set(names)) == 1 else ",".join(names)


def types_with(fact: str) -> str:
    """The types for which a yes-or-no fact holds, for messages: ``"'diff' and 'shared_diff'"``."""
    *others, last = [repr(name) for name in ATTENTION_TYPES if getattr(ATTENTION[name], fact)]
    return f"{', '.join(others)} and {last}" if others else last
