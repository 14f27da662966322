"""The table of attention types: the facts that models, counts, twins, caches and tables need.

Loads without torch and transformers.
"""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from diffattn.errors import ConfigError, check_known


@dataclass(frozen=True, kw_only=True)
class AttentionType:
    """One attention type. Widths are in units of ``head_dim``, counts per head of the operator.

    No ``slots``: cloudpickle cannot pickle such classes by value.
    """

    name: str
    layer: tuple[str, str]
    """Module and class of the layer; see :meth:`layer_class`."""
    source: str
    query_maps: int
    """Queries per head, one for each attention map."""
    key_maps: int
    """Keys per key/value head: 1 in V2, whose maps share keys."""
    value_width: int
    """Width of one value. Also the number of softmax heads that match one head's parameters."""
    attention_units: int
    """Multiply-adds per query-key pair in units of ``num_heads * head_dim``: scores plus weighted
    values. V1 and Shared are counted with the maps combined before V, as any implementation may.
    V2 is counted as its authors run it, one flash call with twice the heads (3 if combined)."""
    head_norm: bool
    """Default of the configuration's ``head_norm``: whether heads are normalised."""
    lambda_vectors: bool = False
    """Whether λ comes from four vectors per layer and λ_init."""
    lambda_projection: bool = False
    """Whether λ comes from a projection of every token."""
    lambda_per_channel: bool = False
    """Whether the λ projection has one row per channel of a head, else one per head."""
    grouped: bool = False
    """Whether ``group_ratio`` heads share one subtracted map. Other facts hold for ratio 1."""
    head_matrix: bool = False
    """Whether one learned ``[D, D]`` matrix acts on the output of every head."""
    low_rank_maps: bool = False
    """Whether maps share one base projection and differ by updates of rank ``shared_rank``."""
    projected_maps: int | None = None
    """Maps whose queries and keys are projected; ``None``: all; 0: no projections of any kind."""
    subtracts_outputs: bool = False
    """Whether the layer subtracts outputs of softmax attention that has one head per query."""
    needs_maps: bool = False
    """Whether the layer changes A1 and A2 beyond a subtraction, so no fused kernel can run it."""
    control: str = ""
    """The change that makes a type a control, in words; empty for the types of the papers."""

    @property
    def op(self) -> str:
        """The operator that its layer calls: ``"softmax_attention"`` or ``"diff_attention"``."""
        one_map = self.query_maps == 1 or self.subtracts_outputs
        return "softmax_attention" if one_map else "diff_attention"

    @property
    def matches_softmax(self) -> bool:
        """Whether its weight matrices together are as large as those of its softmax twin."""
        changed = self.low_rank_maps or self.grouped or self.lambda_projection or self.head_matrix
        if changed or self.projected_maps == 0:
            return False
        return self.query_projections == self.key_projections == self.value_width

    @property
    def query_projections(self) -> int:
        """Projected queries per head."""
        return self.query_maps if self.projected_maps is None else self.projected_maps

    @property
    def key_projections(self) -> int:
        """Projected keys per key/value head."""
        if self.projected_maps is None:
            return self.key_maps
        return min(self.key_maps, self.projected_maps)

    def softmax_heads(self, match: str) -> int:
        """Number of softmax heads that match one head; ``match``: see ``models.twins.twin``."""
        if match == "attention_flops" and self.attention_units:
            return self.attention_units // ATTENTION["softmax"].attention_units
        return self.value_width

    def layer_class(self) -> Any:
        """The class of the layer, whose import loads torch."""
        module, name = self.layer
        return getattr(import_module(module), name)


_SOFTMAX = AttentionType(
    name="softmax", layer=("diffattn.layers.attention", "SoftmaxAttention"),
    source="arXiv:1706.03762", query_maps=1, key_maps=1, value_width=1, attention_units=2,
    head_norm=False,
)  # fmt: skip
_V1 = AttentionType(
    name="diff", layer=("diffattn.layers.diff_attention", "DiffAttention"),
    source="arXiv:2410.05258v2", query_maps=2, key_maps=2, value_width=2, attention_units=4,
    head_norm=True, lambda_vectors=True,
)  # fmt: skip
_V2 = AttentionType(
    name="diff_v2", layer=("diffattn.layers.diff_attention", "DiffAttentionV2"),
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
    """A row like ``base`` with one change; ``facts`` are the fields that differ."""
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
        _SOFTMAX, name="dex", layer=("diffattn.layers.gated_attention", "DexAttention"),
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
"""Name -> attention type, in the order of tables and studies; the controls come last."""
OLD_NAMES = {"diff_v2_gate": "gated_head"}
"""Name in older configurations and records -> present name."""
ATTENTION_TYPES = tuple(row.name for row in _ROWS if not row.control)
"""Names of the papers' types."""
CONTROL_TYPES = tuple(row.name for row in _ROWS if row.control)
"""Names of the controls; see :mod:`diffattn.layers.controls`."""


def checked_types(where: str, given: str | list[str], num_layers: int | None = None) -> str:
    """The attention types of a model by their present names, as one string with commas; one name
    if all layers have the same type."""
    parts = given.split(",") if isinstance(given, str) else given
    names = [OLD_NAMES.get(name.strip(), name.strip()) for name in parts]
    for name in names:
        check_known(where, "attention_type", name, ATTENTION)
    if len(names) != 1 and num_layers is not None and len(names) != num_layers:
        raise ConfigError(
            f"{where}: attention_type must name one type, or one for each of {num_layers} layers, "
            f"got {len(names)}."
        )
    return names[0] if len(set(names)) == 1 else ",".join(names)
