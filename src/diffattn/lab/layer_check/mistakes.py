"""Known mistakes of public implementations: changes of the formula, and facts of the layer."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """One mistake, and the steps of the formula that it changes."""

    name: str
    text: str
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of :class:`diffattn.lab.layer_check.formula.Formula` and their wrong values."""
    leaks: bool = False
    """Whether a token's output depends on later tokens."""
    attention_types: tuple[str, ...] = ("diff", "shared_diff")


_EVERY = ("diff", "shared_diff", "diff_v2")
PLANTED = (
    Mistake(
        name="lambda_init_sign", changes={"lam": "sign"},
        text="λ is e^(q1·k1) − (e^(q2·k2) + λ_init): λ_init must be added, not subtracted.",
    ),
    Mistake(
        name="lambda_sum", changes={"lam": "sum"},
        text="λ adds both exponentials: the second must be subtracted.",
    ),
    Mistake(
        name="lambda_without_exp", changes={"lam": "dots"},
        text="λ is made of the dot products: each must go through exp.",
    ),
    Mistake(
        name="lambda_mean_of_exp", changes={"lam": "mean"},
        text="exp is taken channel by channel: sum the products over channels first.",
    ),
    Mistake(
        name="lambda_vectors_unused", changes={"lam": "start"},
        text="λ is λ_init: its four vectors do not enter.",
    ),
    Mistake(
        name="not_causal", changes={"mask": "none"}, leaks=True, attention_types=_EVERY,
        text="Nothing hides later tokens, as with an additive mask of zeros: scores of later keys "
        "must be −∞ before the softmax.",
    ),
    Mistake(
        name="mask_after_softmax", changes={"mask": "weights"}, leaks=True,
        attention_types=_EVERY,
        text="The mask is applied after the softmax: later keys still share in its sum.",
    ),
    Mistake(
        name="softmax_over_queries", changes={"softmax": "queries"}, leaks=True,
        attention_types=_EVERY, text="The softmax runs over queries: it must run over keys.",
    ),
    Mistake(
        name="softmax_of_difference", changes={"softmax": "difference"}, attention_types=_EVERY,
        text="One softmax of the subtracted scores: each map needs its own, subtracted after.",
    ),
    Mistake(
        name="maps_added", changes={"combine": "add"}, attention_types=_EVERY,
        text="λ times the second map is added: it must be subtracted.",
    ),
    Mistake(
        name="lambda_scales_both", changes={"combine": "scale_both"}, attention_types=_EVERY,
        text="λ multiplies both maps: only the second has it.",
    ),
    Mistake(
        name="scale_of_pair", changes={"scale": "pair"}, attention_types=_EVERY,
        text="Scores are divided by √(2d): d is the width of one query, not of the pair.",
    ),
    Mistake(
        name="scale_of_layer", changes={"scale": "hidden"}, attention_types=_EVERY,
        text="Scores are divided by the root of the layer's width: d is the width of one query.",
    ),
    Mistake(
        name="no_scale", changes={"scale": "none"}, attention_types=_EVERY,
        text="Scores are not divided by √d.",
    ),
    Mistake(
        name="no_factor", changes={"factor": False},
        text="The factor 1 − λ_init after the norm is missing.",
    ),
    Mistake(
        name="no_head_norm", changes={"norm_over": "nothing", "factor": False},
        text="Heads are neither normalised nor multiplied by 1 − λ_init.",
    ),
    Mistake(
        name="no_norm", changes={"norm_over": "nothing"},
        text="Heads are not normalised: RMSNorm over the 2d channels of each head is missing.",
    ),
    Mistake(
        name="norm_over_heads", changes={"norm_over": "heads"},
        text="One norm runs over all heads together: every head has its own.",
    ),
    Mistake(
        name="norm_after_output", changes={"norm_over": "output"},
        text="The norm follows the output projection: it belongs on every head, before it.",
    ),
    Mistake(
        name="norm_over_tokens", changes={"norm_over": "tokens"}, leaks=True,
        text="The norm's mean runs over tokens too, as nn.GroupNorm does on [B, channels, T].",
    ),
    Mistake(
        name="norm_centred", changes={"centred": True},
        text="The norm subtracts the mean (LayerNorm or GroupNorm): the paper uses RMSNorm.",
    ),
    Mistake(
        name="norm_in_v2", changes={"norm_over": "head"}, attention_types=("diff_v2",),
        text="Heads are normalised: V2 has no head norm.",
    ),
    Mistake(
        name="no_sigmoid", changes={"lam": "logits"}, attention_types=("diff_v2",),
        text="λ is the projection itself: V2 takes its sigmoid.",
    ),
    Mistake(
        name="pairs_of_other_keys", changes={"query_pairs": "split", "key_pairs": "repeated"},
        attention_types=("diff_v2",),
        text="The two queries of a pair read different keys and values: pair heads 2i and 2i + 1, "
        "not i and i + H.",
    ),
    Mistake(
        name="repeated_keys", changes={"key_pairs": "repeated"},
        text="Repeating keys over groups parts the pairs: both queries of a head read one key.",
    ),
    Mistake(
        name="mixed_pairs", changes={"query_pairs": "adjacent", "key_pairs": "split"},
        text="Queries pair heads 2i and 2i + 1, keys i and i + H: use one order for both.",
    ),
    Mistake(
        name="rotated_pairs", changes={"positions": "joint"}, attention_types=("diff", "diff_v2"),
        text="Rotary positions turn both maps as one vector of 2d: rotate every query by itself.",
    ),
    Mistake(
        name="heads_not_moved", changes={"heads_first": True}, attention_types=_EVERY,
        text="Heads are joined by a reshape that mixes heads with tokens: move the axis of heads "
        "behind the tokens first.",
        leaks=True,
    ),
)  # fmt: skip
"""Mistakes that are found by comparing the layer's output with the changed formula."""
FACTS = {
    "zero_vectors": "All four vectors of λ start at zero, so their gradients are exactly 0 for "
    "ever: draw them from N(0, 0.1²).",
    "detached_lambda": "No gradient reaches the parameters of λ: it is cut from the graph.",
    "wide_start": "The vectors of λ start with a deviation of {value:.2f}, the paper's with 0.1: "
    "so λ starts far from λ_init.",
    "lambda_is_a_number": "λ is a learned number: the paper's is e^(q1·k1) − e^(q2·k2) + λ_init.",
    "lambda_by_head": "Every head has a λ of its own: the heads of a layer share one.",
    "lambda_is_an_argument": "λ is an argument of the forward: nothing learns it.",
    "lambda_init_depth": "λ_init is {value:.4f} where the schedule of layer index {index} gives "
    "{right:.4f}: 0.8 − 0.6 e^(−0.3 index), index from 0.",
    "lambda_init_constant": "λ_init is {value:.4f} in every layer: the paper's grows with depth, "
    "0.8 − 0.6 e^(−0.3 index).",
    "narrow_values": "Values are as wide as one query: V1 has half the heads and values of 2d.",
    "heads_not_halved": "Queries have twice the layer's width, so the layer has twice the "
    "weights of softmax attention: take half the heads.",
}
"""Names and message templates of mistakes that show in the layer's shapes, values or gradients."""
