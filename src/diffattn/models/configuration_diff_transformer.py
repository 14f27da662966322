"""Configuration of the DIFF Transformer family."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters

from diffattn.errors import ConfigError
from diffattn.models.known_names import check_known
from diffattn.ops import backends
from diffattn.ops.lambda_param import lambda_init as scheduled_lambda_init

ATTENTION_TYPES = ("softmax", "diff", "diff_v2", "shared_diff")
MAPS_WITH_LAMBDA_INIT = ("diff", "shared_diff")

if TYPE_CHECKING:  # ``None`` only until ``__post_init__`` has filled it in
    Derived = int
else:
    Derived = int | None


def _one_line_errors(cls: type) -> type:
    """Raise ConfigError where the strict base class raises its two-line error of a wrong type."""
    checked_setattr: Any = cls.__setattr__

    def __setattr__(self: Any, name: str, value: Any) -> None:
        try:
            checked_setattr(self, name, value)
        except StrictDataclassFieldValidationError as error:
            raise ConfigError(f"{cls.__name__}: {error.__cause__}.") from error

    cls.__setattr__ = __setattr__  # type: ignore[assignment]
    return cls


@_one_line_errors
@strict
class DiffTransformerConfig(PreTrainedConfig):
    r"""Settings of a decoder with softmax or differential attention.

    LLaMA-style: pre-RMSNorm, no biases, rotary positions, SwiGLU. Types are checked on
    construction and on assignment, the rest on construction and on saving.

    Source: arXiv:2410.05258v2, section 2 (architecture), Appendices D and E (sizes).

    Args:
        attention_type: ``"softmax"``, ``"diff"`` (V1), ``"diff_v2"`` or ``"shared_diff"``.
        vocab_size: Rows of the embedding; may exceed the tokenizer's.
        hidden_size: Width of the residual stream, in channels.
        intermediate_size: Width inside SwiGLU. Default: 8/3 of ``hidden_size``, rounded to the
            nearest multiple of 64.
        num_hidden_layers: Decoder blocks.
        num_heads: H of the operator. The softmax twin of V1 or Shared has ``2 * num_heads``.
        num_kv_heads: Hkv, divides ``num_heads``. Default: ``num_heads``.
        head_dim: D, width of one query or key, even. Default: what makes the heads fill
            ``hidden_size`` (``hidden_size / num_heads`` for softmax and V2, half of it else).
        shared_rank: r of Shared DIFF, else ``None``. Default for Shared DIFF: ``head_dim // 4``.
        head_norm: RMSNorm per head. Default: on for V1 and Shared DIFF, off for softmax and V2.
        head_norm_affine: Learn the scale of that norm.
        head_norm_eps: Added to its mean square.
        lambda_init: Constant part of λ of V1 and Shared DIFF: ``None`` for the paper's depth
            schedule, one number, or one per layer.
        lambda_bias: Give V2's λ projection a bias.
        rms_norm_eps: Added to the mean square in the block's norms.
        rope_parameters: As in Hugging Face; θ = 10,000 by default.
        max_position_embeddings: Longest context, in tokens.
        tie_word_embeddings: Use one matrix for embedding and output (the papers' sizes do).
        initializer_range: Standard deviation of the initial weights.
        attention_backend: Backend of :attr:`attention_op` under
            ``attn_implementation="diffattn"``.
        use_cache: Return a key/value cache.

    Raises:
        ConfigError: Settings of the wrong type or that contradict each other; unknown
            ``attention_type``; a keyword that looks like a misspelled field.
    """

    model_type = "diff_transformer"
    keys_to_ignore_at_inference = ["past_key_values"]
    base_model_pp_plan = {
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

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
    rope_parameters: RopeParameters | dict | None = None
    max_position_embeddings: int = 2_048
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    attention_backend: str = "auto"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_known("DiffTransformerConfig", "attention_type", self.attention_type, ATTENTION_TYPES)
        self._check_keywords(kwargs)
        is_pair = self.attention_type in MAPS_WITH_LAMBDA_INIT
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise _error(f"{name} must be 1 or more", getattr(self, name))
        if self.num_kv_heads is None:
            self.num_kv_heads = self.num_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // (self.num_heads * (2 if is_pair else 1))
        if self.intermediate_size is None:
            self.intermediate_size = max(64, round(self.hidden_size * 8 / 3 / 64) * 64)
        if self.shared_rank is None and self.attention_type == "shared_diff":
            self.shared_rank = max(1, self.head_dim // 4)
        self.validate_architecture()  # here too: the base class would wrap the error
        super().__post_init__(**kwargs)

    def _check_keywords(self, kwargs: dict[str, Any]) -> None:
        """Hugging Face keeps any keyword: refuse what can only be a mistake."""
        own = list(self.settings())
        for name in kwargs:
            if name in ("num_attention_heads", "num_key_value_heads"):
                raise _error(f"{name} follows from num_heads and num_kv_heads", kwargs[name])
            near = get_close_matches(name, own, n=1, cutoff=0.85)
            if near:
                raise ConfigError(
                    f"DiffTransformerConfig: unknown field {name!r}. Did you mean {near[0]!r}?"
                )

    def validate_architecture(self) -> None:
        """Check what no single field can tell; called by the strict base class."""
        backend_names = ("auto", *backends.names(self.attention_op))
        check_known(
            "DiffTransformerConfig", "attention_backend", self.attention_backend, backend_names
        )
        if self.intermediate_size < 1:
            raise _error("intermediate_size must be 1 or more", self.intermediate_size)
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise _error(
                f"num_kv_heads must divide num_heads = {self.num_heads}", self.num_kv_heads
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise _error("head_dim must be even and 2 or more for rotary positions", self.head_dim)
        if self.attention_type != "shared_diff" and self.shared_rank is not None:
            raise _error("shared_rank belongs to attention_type 'shared_diff'", self.shared_rank)
        if self.attention_type == "shared_diff" and self.shared_rank < 1:
            raise _error("shared_rank must be 1 or more", self.shared_rank)
        if self.attention_type not in MAPS_WITH_LAMBDA_INIT and self.lambda_init is not None:
            raise _error("lambda_init belongs to 'diff' and 'shared_diff'", self.attention_type)
        if self.attention_type != "diff_v2" and self.lambda_bias:
            raise _error("lambda_bias belongs to 'diff_v2'", self.attention_type)
        if isinstance(self.lambda_init, list) and len(self.lambda_init) != self.num_hidden_layers:
            raise _error(
                f"lambda_init must have one value for each of {self.num_hidden_layers} layers",
                len(self.lambda_init),
            )

    def layer_lambda_init(self, layer_idx: int) -> float:
        """λ_init of one layer of V1 or Shared DIFF.

        Source: arXiv:2410.05258v2, after Eq. (2).

        Args:
            layer_idx: Counted from 0.
        """
        if self.lambda_init is None:
            return scheduled_lambda_init(layer_idx)
        if isinstance(self.lambda_init, list):
            return self.lambda_init[layer_idx]
        return self.lambda_init

    def settings(self) -> dict[str, Any]:
        """The fields above as plain values, without what Hugging Face adds."""
        hidden = ("model_type", "keys_to_ignore_at_inference", "base_model_pp_plan")
        own = [name for name in type(self).__annotations__ if name not in hidden]
        return {name: getattr(self, name) for name in own}

    @property
    def uses_head_norm(self) -> bool:
        """Whether heads are normalised: the setting, or the attention type's own default."""
        if self.head_norm is None:
            return self.attention_type in MAPS_WITH_LAMBDA_INIT
        return self.head_norm

    @property
    def num_attention_heads(self) -> int:
        """Query heads of the one attention call under Hugging Face's kernels. Read-only."""
        return self.num_heads * {"softmax": 1, "diff_v2": 2}.get(self.attention_type, 4)

    @property
    def num_key_value_heads(self) -> int:
        """Key/value heads, ``head_dim`` wide, that a paged cache stores per token. Read-only."""
        return self.num_kv_heads * {"softmax": 1, "diff_v2": 1}.get(self.attention_type, 4)

    @property
    def cached_kv_shape(self) -> tuple[int, int]:
        """Heads and width of keys, and of values, in a dynamic or static cache."""
        width = 2 * self.head_dim if self.attention_type in MAPS_WITH_LAMBDA_INIT else self.head_dim
        return self.num_kv_heads, width

    @property
    def attention_op(self) -> str:
        """The operator its layers call: ``"softmax_attention"`` or ``"diff_attention"``."""
        return "softmax_attention" if self.attention_type == "softmax" else "diff_attention"

    def twin(self, attention_type: str, match: str = "params", **changes: Any) -> "Any":
        """The matched model of another attention type.

        See :func:`diffattn.models.twins.twin` for the rules, the result and the errors.
        """
        from diffattn.models.twins import twin

        return twin(self, attention_type, match, **changes)


def _error(must: str, got: object) -> ConfigError:
    return ConfigError(f"DiffTransformerConfig: {must}, got {got!r}.")
