"""The settings of a model, without Hugging Face: names, counts and twins need no torch."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from diffattn.errors import ConfigError
from diffattn.models.attention_types import ATTENTION, AttentionType, attention_facts, types_with
from diffattn.models.known_names import check_known, shortened
from diffattn.models.rope_settings import MOST, check_rope
from diffattn.ops import backends

_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_heads",
    "num_kv_heads", "head_dim", "shared_rank", "max_position_embeddings",
)  # fmt: skip
_LEAST_EPS = 1e-30
"""A float32 holds it, and a row of zeros is not divided by zero."""

if TYPE_CHECKING:  # ``None`` only until ``__post_init__`` has filled it in
    Derived = int
else:
    Derived = int | None


@dataclass(kw_only=True)
class ModelSettings:
    """What a :class:`DiffTransformerConfig` holds, which documents every field and adds the rest.

    Recipes, presets and counts use it as it is; types of values are checked by the configuration.

    Raises:
        ConfigError: Unknown ``attention_type``, or settings that contradict each other.
    """

    attention_type: str = "diff"
    vocab_size: int = 32_000
    hidden_size: int = 768
    intermediate_size: Derived = None  # type: ignore[assignment]
    num_hidden_layers: int = 12
    num_heads: int = 6
    num_kv_heads: Derived = None  # type: ignore[assignment]
    head_dim: Derived = None  # type: ignore[assignment]
    shared_rank: Derived = None  # type: ignore[assignment]
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
    attention_backend: str = "auto"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self) -> None:
        facts = attention_facts(type(self).__name__, self.attention_type)
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise self._error(f"{name} must be 1 or more", getattr(self, name))
        if self.num_kv_heads is None:
            self.num_kv_heads = self.num_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // (self.num_heads * facts.value_width)
        if self.intermediate_size is None:
            self.intermediate_size = max(64, round(self.hidden_size * 8 / 3 / 64) * 64)
        if self.shared_rank is None and facts.low_rank_maps:
            self.shared_rank = max(1, self.head_dim // 4)
        self.validate_architecture()

    def validate_architecture(self) -> None:
        """Check fields against each other; the strict configuration calls it on saving too."""
        facts = self.attention
        backend_names = ("auto", *backends.names(facts.op))
        check_known(type(self).__name__, "attention_backend", self.attention_backend, backend_names)
        for holds, must, got in (
            (self.intermediate_size >= 1, "intermediate_size must be 1 or more",
             self.intermediate_size),
            (self.num_kv_heads >= 1 and self.num_heads % self.num_kv_heads == 0,
             f"num_kv_heads must divide num_heads = {self.num_heads}", self.num_kv_heads),
            (self.head_dim >= 2 and self.head_dim % 2 == 0,
             "head_dim must be even and 2 or more for rotary positions", self.head_dim),
            (facts.low_rank_maps or self.shared_rank is None,
             f"shared_rank belongs to attention_type {types_with('low_rank_maps')}",
             self.shared_rank),
            (not facts.low_rank_maps or self.shared_rank >= 1, "shared_rank must be 1 or more",
             self.shared_rank),
            (facts.lambda_vectors or self.lambda_init is None,
             f"lambda_init belongs to {types_with('lambda_vectors')}", self.attention_type),
            (facts.lambda_projection or not self.lambda_bias,
             f"lambda_bias belongs to {types_with('lambda_projection')}", self.attention_type),
        ):  # fmt: skip
            if not holds:
                raise self._error(must, got)
        if isinstance(self.lambda_init, list) and len(self.lambda_init) != self.num_hidden_layers:
            raise self._error(
                f"lambda_init must have one value for each of {self.num_hidden_layers} layers",
                len(self.lambda_init),
            )
        self._check_values()

    def _check_values(self) -> None:
        """Refuse numbers that no model can have, whatever the other settings are."""
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise self._error(f"{name} must be from 1 to {MOST}", value)
        inits = self.lambda_init if isinstance(self.lambda_init, list) else [self.lambda_init]
        for name, least, most, values in (
            ("head_norm_eps", _LEAST_EPS, 1, [self.head_norm_eps]),
            ("rms_norm_eps", _LEAST_EPS, 1, [self.rms_norm_eps]),
            ("initializer_range", 0, 10, [self.initializer_range]),
            ("lambda_init", -1, 1, [x for x in inits if x is not None]),
        ):
            for value in values:
                if not least <= value <= most:  # false for NaN
                    raise self._error(f"{name} must be from {least:g} to {most}", value)
        check_rope(type(self).__name__, self.rope_parameters, self.head_dim, self._error)
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            ids = getattr(self, name)
            if ids == []:
                raise self._error(f"{name} must list one token id or more", ids)
            for token in ids if isinstance(ids, list) else [ids]:
                if token is not None and not 0 <= token < self.vocab_size:
                    last = self.vocab_size - 1
                    raise self._error(f"{name} must be a token id from 0 to {last}", token)

    def settings(self) -> dict[str, Any]:
        """The fields above as plain values, without what Hugging Face adds."""
        return {field.name: getattr(self, field.name) for field in fields(ModelSettings)}

    @property
    def attention(self) -> AttentionType:
        """The facts of its attention type. Read-only."""
        return ATTENTION[self.attention_type]

    @property
    def uses_head_norm(self) -> bool:
        """Whether heads are normalised: the setting, or the attention type's own default."""
        return self.attention.head_norm if self.head_norm is None else self.head_norm

    def _error(self, must: str, got: object) -> ConfigError:
        return ConfigError(f"{type(self).__name__}: {must}, got {shortened(got)}.")
