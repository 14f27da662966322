"""The settings of a model without Hugging Face, so that counts and twins need no torch."""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from diffattn.errors import ConfigError, check_known, short
from diffattn.models.config.attention_types import ATTENTION, AttentionType, checked_types
from diffattn.ops.inputs import backends
from diffattn.ops.inputs.numbers import LARGEST_COUNT, in_float32, is_number, is_whole

if TYPE_CHECKING:
    Derived = int  # never ``None`` after ``__post_init__``, except shared_rank and group_ratio
else:
    Derived = int | None

_COUNTS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "intermediate_size",
    "num_kv_heads", "head_dim", "shared_rank", "group_ratio", "max_position_embeddings",
)  # fmt: skip
# Epsilons are above 0: else the norm of a zero vector divides by 0. transformers reads a range of 0
# as 0.02.
_RANGES = {
    "head_norm_eps": (1e-30, 1.0), "rms_norm_eps": (1e-30, 1.0),
    "initializer_range": (1e-30, 100.0), "embedding_multiplier": (1e-30, 1e6),
}  # fmt: skip
OPTIONS = ("qkv_bias", "qk_norm", "scaled_head_init")
"""Options that are off by default. :meth:`ModelSettings.settings`, and so the hashes in records,
leave them out where they are off."""
NAMED_WHERE_SET = (*OPTIONS, "group_ratio")
"""Settings that came later. They are left out where unset, so that older records stay equal."""
# rope_type -> required and optional fields, besides ``rope_type`` and ``rope_theta``.
_ROPE_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
            "mscale", "mscale_all_dim", "truncate",
        ),
    ),
    "longrope": (
        ("short_factor", "long_factor"),
        ("factor", "original_max_position_embeddings", "attention_factor"),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), (),
    ),
}  # fmt: skip
_ROPE_RANGES: dict[str, tuple[float, float]] = {
    "rope_theta": (1.0, 1e12),
    "factor": (1.0, 1e6),
    "original_max_position_embeddings": (1, 2**31 - 1),
    "partial_rotary_factor": (1.0, 1.0),  # our layers rotate all channels of a head
    **dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"), (1e-3, 1e3)),
    **dict.fromkeys(("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"), (1e-3, 1e6)),
    **dict.fromkeys(("short_factor", "long_factor"), (1e-3, 1e6)),
}
"""Field -> smallest and largest number; for lists, of each entry."""


def kept_backend(name: str, types: Iterable[AttentionType]) -> str:
    """``attention_backend`` for a model with these types: ``name`` if all have it, else "auto"."""
    return name if all(name in names for names in _backends(types)) else "auto"


def _backends(types: Iterable[AttentionType]) -> list[set[str]]:
    return [{"reference"} if x.needs_maps else {*backends.names(x.op)} for x in types]


@dataclass(kw_only=True)
class ModelSettings:
    """Fields of a :class:`DiffTransformerConfig`, which documents them, checks the types of values
    and adds Hugging Face's."""

    attention_type: str = "diff"
    vocab_size: int = 32_000
    hidden_size: int = 768
    intermediate_size: Derived = None  # type: ignore[assignment]
    num_hidden_layers: int = 12
    num_heads: int = 6
    num_kv_heads: Derived = None  # type: ignore[assignment]
    head_dim: Derived = None  # type: ignore[assignment]
    shared_rank: Derived = None  # type: ignore[assignment]
    group_ratio: Derived = None  # type: ignore[assignment]
    head_norm: bool | None = None
    head_norm_affine: bool = True
    head_norm_eps: float = 1e-5
    lambda_init: float | list[float] | None = None
    lambda_bias: bool = False
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None
    max_position_embeddings: int = 2_048
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    embedding_multiplier: float = 1.0
    depth_scaled_init: bool = False
    scaled_head_init: bool = False
    attention_backend: str = "auto"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    # OPTIONS: without a type annotation they are no dataclass fields.
    qkv_bias = False
    qk_norm = False

    def __post_init__(self) -> None:
        self._check_each()
        self._derive_heads()
        if self.head_dim is None:
            self.head_dim = self.hidden_size // (self.num_heads * self.value_width)
        if self.intermediate_size is None:
            self.intermediate_size = max(64, round(self.hidden_size * 8 / 3 / 64) * 64)
        if self.shared_rank is None and self.uses("low_rank_maps"):
            self.shared_rank = max(1, self.head_dim // 4)
        self.validate_architecture()

    def _derive_heads(self) -> None:
        if self.uses("grouped") and self.group_ratio is None:
            kv_heads = self.num_kv_heads or 1
            fits = (r for r in (4, 3, 2) if self.num_heads % r == 0 and self.num_heads > r)
            self.group_ratio = next((r for r in fits if self.num_heads // r % kv_heads == 0), 1)
        if self.num_kv_heads is None:
            self.num_kv_heads = self.num_groups

    def _check_each(self) -> None:
        where = type(self).__name__
        self.attention_type = checked_types(where, self.attention_type, self.num_hidden_layers)
        for name in _COUNTS:
            value = getattr(self, name)
            if value is None and getattr(ModelSettings, name) is None:
                continue
            if not is_whole(value) or value < 1:
                raise self._error(f"{name} must be 1 or more", value)
            if value > LARGEST_COUNT:
                raise self._error(f"{name} must be at most {LARGEST_COUNT}", value)
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not is_number(value) or not least <= value <= most or not in_float32(value):
                raise self._error(f"{name} must be from {least:g} to {most:g}", value)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            ids = getattr(self, name)
            if ids == []:
                raise self._error(f"{name} must list one token id or more", ids)
            for token in ids if isinstance(ids, list) else [ids]:
                if ids is not None and not (is_whole(token) and 0 <= token < self.vocab_size):
                    raise self._error(f"{name} must be below vocab_size = {self.vocab_size}", ids)
        given: Any = self.lambda_init
        for lam in given if isinstance(given, list) else [given]:
            if given is not None and not (is_number(lam) and abs(lam) <= 100 and in_float32(lam)):
                raise self._error("lambda_init must be numbers up to 100 in size", given)

    def validate_architecture(self) -> None:
        """Check fields against each other; the strict configuration calls it on saving too."""
        self._check_each()
        backend_names = ("auto", *sorted(set.intersection(*_backends(self._types))))
        grouped = self.uses("grouped")
        ratio: int = 1 if self.group_ratio is None else self.group_ratio
        check_known(type(self).__name__, "attention_backend", self.attention_backend, backend_names)
        for field, fact in (
            ("group_ratio", "grouped"), ("shared_rank", "low_rank_maps"),
            ("lambda_init", "lambda_vectors"), ("lambda_bias", "lambda_projection"),
        ):  # fmt: skip
            value = getattr(self, field)
            if value is not None and value is not False and not self.uses(fact):
                must = f"{field} must be left out for attention_type {self.attention_type!r}"
                raise self._error(must, value)
        for holds, must, got in (
            (self.num_heads % ratio == 0,
             f"group_ratio must divide num_heads = {self.num_heads}", self.group_ratio),
            (self.num_groups % self.num_kv_heads == 0,
             f"num_kv_heads must divide num_heads{' / group_ratio' if grouped else ''} = "
             f"{self.num_groups}", self.num_kv_heads),
            (self.head_dim >= 2 and self.head_dim % 2 == 0,
             "head_dim must be even and 2 or more for rotary positions", self.head_dim),
            (not (self.scaled_head_init and self.tie_word_embeddings),
             "scaled_head_init must be off with tied embeddings", self.scaled_head_init),
            (not isinstance(self.lambda_init, list)
             or len(self.lambda_init) == self.num_hidden_layers,
             f"lambda_init must have one value for each of {self.num_hidden_layers} layers",
             self.lambda_init),
        ):  # fmt: skip
            if not holds:
                raise self._error(must, got)
        check_rope_parameters(type(self).__name__, self.rope_parameters, self.head_dim)

    def settings(self) -> dict[str, Any]:
        """The fields above as plain values, and the options that are on, without Hugging Face's."""
        names = [field.name for field in fields(ModelSettings) if field.name not in NAMED_WHERE_SET]
        names += [name for name in NAMED_WHERE_SET if getattr(self, name)]
        return {name: getattr(self, name) for name in names}

    @property
    def attention(self) -> AttentionType:
        """The attention type of all layers. If they differ, use :meth:`of_layer` first."""
        if self.attention_type not in ATTENTION:
            raise self._error("attention_type must be the same in all layers", self.attention_type)
        return ATTENTION[self.attention_type]

    @property
    def attention_by_layer(self) -> list[AttentionType]:
        """The attention type of each layer."""
        types = self._types
        return types * self.num_hidden_layers if len(types) == 1 else types

    @property
    def _types(self) -> list[AttentionType]:  # one for all layers, or one for each
        return [ATTENTION[name] for name in self.attention_type.split(",")]

    @property
    def value_width(self) -> int:
        """Width of a value in units of ``head_dim`` in the widest type, which sets num_heads."""
        return max(facts.value_width for facts in self._types)

    def uses(self, fact: str) -> bool:
        """Whether a field of :class:`AttentionType`, by name, is true for any layer."""
        return any(getattr(facts, fact) for facts in self._types)

    def of_layer(self, layer_idx: int) -> Self:
        """The settings of a model whose layers all have the type and the heads of this layer."""
        return self._of_type(self.attention_by_layer[layer_idx].name)

    def by_type(self) -> list[tuple[Self, int]]:
        """For every attention type: the settings as in :meth:`of_layer`, and its layer count."""
        counts = Counter(facts.name for facts in self.attention_by_layer)
        return [(self._of_type(name), count) for name, count in counts.items()]

    def _of_type(self, name: str) -> Self:
        if name == self.attention_type:
            return self
        settings, facts = copy(self), ATTENTION[name]
        settings.attention_type = name
        for field in ("num_heads", "num_kv_heads"):
            heads = getattr(self, field) * self.value_width // facts.value_width
            setattr(settings, field, heads)
        if not facts.grouped:
            settings.group_ratio = None  # type: ignore[assignment]
        if not facts.low_rank_maps:
            settings.shared_rank = None  # type: ignore[assignment]
        if not facts.lambda_vectors:
            settings.lambda_init = None
        settings.lambda_bias = self.lambda_bias and facts.lambda_projection
        return settings

    @property
    def num_groups(self) -> int:
        """Groups of heads in one layer: ``num_heads / group_ratio``, or ``num_heads`` without."""
        return self.num_heads // (self.group_ratio or 1)

    @property
    def num_projected_queries(self) -> int:
        """Projected queries of a token in one layer, each ``head_dim`` wide."""
        maps = self.attention.query_projections
        return self.num_heads + self.num_groups * (maps - 1) if maps else 0

    @property
    def uses_head_norm(self) -> bool:
        """Whether heads are normalised in any layer: the setting, or the default of the types."""
        return self.uses("head_norm") if self.head_norm is None else self.head_norm

    @property
    def lambda_rows(self) -> int:
        """Output rows of the λ projection; 0 for a type without it."""
        facts = self.attention
        per_head = self.head_dim if facts.lambda_per_channel else 1
        return self.num_heads * per_head if facts.lambda_projection else 0

    def _error(self, must: str, got: object) -> ConfigError:
        return ConfigError(f"{type(self).__name__}: {must}, got {short(got)}.")


def check_rope_parameters(where: str, parameters: object, head_dim: int) -> None:
    """Raise a ConfigError for rotary parameters that transformers only logs, or fails by later."""
    if parameters is None or parameters == {}:
        return
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"{where}: rope_parameters must be a JSON object, got {parameters!r}.")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    check_known(where, "rope_parameters: rope_type", kind, _ROPE_TYPES)
    required, optional = _ROPE_TYPES[kind]
    for name in required:
        if parameters.get(name) is None:
            raise ConfigError(
                f"{where}: rope_parameters: {kind!r} must have {name}, got {sorted(parameters)}."
            )
    known = ("rope_type", "type", "rope_theta", "partial_rotary_factor", *required, *optional)
    for name, value in parameters.items():
        check_known(where, "rope_parameters: field", name, known)
        field = f"{where}: rope_parameters: {name}"
        if name == "truncate" and not isinstance(value, bool):
            raise ConfigError(f"{field} must be true or false, got {value!r}.")
        if name in _ROPE_RANGES and (value is not None or name == "rope_theta"):
            _check_rope_numbers(field, name, value, head_dim)


def steady_positions(config: Any) -> tuple[str, int] | None:
    """``rope_type``, and the tokens up to which all texts have the same rotary frequencies.

    ``None``: frequencies never depend on the text. ``"longrope"`` and ``"dynamic"`` choose them by
    the longest text of a forward pass, so cached keys of shorter texts no longer fit. If layers
    differ, the smallest length counts.
    """
    config = config.get_text_config()
    parameters = getattr(config, "rope_parameters", None)
    parameters = parameters or getattr(config, "rope_scaling", None) or {}
    per_layer = [value for value in parameters.values() if isinstance(value, Mapping)]
    limits: list[tuple[int, str]] = []
    for layer in per_layer or [parameters]:
        kind = str(layer.get("rope_type", layer.get("type", "default")))
        longest = getattr(config, "max_position_embeddings", None)
        if kind == "longrope":
            original = layer.get("original_max_position_embeddings")
            longest = original or getattr(config, "original_max_position_embeddings", longest)
        # Transformers, too, looks for "dynamic" anywhere in the name.
        if longest is not None and (kind == "longrope" or "dynamic" in kind):
            limits.append((int(longest), kind))
    return (min(limits)[1], min(limits)[0]) if limits else None


def _check_rope_numbers(where: str, name: str, value: Any, head_dim: int) -> None:
    is_list = name in ("short_factor", "long_factor")
    if is_list and (not isinstance(value, list) or len(value) != head_dim // 2):
        raise ConfigError(f"{where} must be a list of {head_dim // 2} numbers, got {value!r}.")
    least, most = _ROPE_RANGES[name]
    whole = name == "original_max_position_embeddings"
    for number in value if is_list else [value]:
        fits = is_whole(number) if whole else is_number(number)
        if not fits or not least <= number <= most:
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"{where} must be {kind} from {least:g} to {most:g}, got {number!r}.")
