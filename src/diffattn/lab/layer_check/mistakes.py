"""Known mistakes of public implementations: changes of the formula, and facts of the layer."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake, and the steps of the formula that it changes."""

    name: str
    changes: dict[str, Any]
    """Fields of :class:`diffattn.lab.layer_check.formula.Formula` and their wrong values."""
    leaks: bool = False
    """Whether a token's output depends on later tokens."""
    attention_types: tuple[str, ...] = ("diff", "shared_diff")

    @property
    def text(self) -> str:
        """The mistake in words."""
        return _TEXTS[self.name]


_EVERY = ("diff", "shared_diff", "diff_v2")
PLANTED = (
    Mistake("lambda_init_sign", {"lam": "sign"}),
    Mistake("lambda_sum", {"lam": "sum"}),
    Mistake("lambda_without_exp", {"lam": "dots"}),
    Mistake("lambda_mean_of_exp", {"lam": "mean"}),
    Mistake("lambda_vectors_unused", {"lam": "start"}),
    Mistake("not_causal", {"mask": "none"}, leaks=True, attention_types=_EVERY),
    Mistake("mask_after_softmax", {"mask": "weights"}, leaks=True, attention_types=_EVERY),
    Mistake("softmax_over_queries", {"softmax": "queries"}, leaks=True, attention_types=_EVERY),
    Mistake("softmax_of_difference", {"softmax": "difference"}, attention_types=_EVERY),
    Mistake("maps_added", {"combine": "add"}, attention_types=_EVERY),
    Mistake("lambda_scales_both", {"combine": "scale_both"}, attention_types=_EVERY),
    Mistake("scale_of_pair", {"scale": "pair"}, attention_types=_EVERY),
    Mistake("scale_of_layer", {"scale": "hidden"}, attention_types=_EVERY),
    Mistake("no_scale", {"scale": "none"}, attention_types=_EVERY),
    Mistake("no_factor", {"factor": False}),
    Mistake("no_head_norm", {"norm_over": "nothing", "factor": False}),
    Mistake("no_norm", {"norm_over": "nothing"}),
    Mistake("norm_over_heads", {"norm_over": "heads"}),
    Mistake("norm_after_output", {"norm_over": "output"}),
    Mistake("norm_over_tokens", {"norm_over": "tokens"}, leaks=True),
    Mistake("norm_centred", {"centred": True}),
    Mistake("norm_in_v2", {"norm_over": "head"}, attention_types=("diff_v2",)),
    Mistake("no_sigmoid", {"lam": "logits"}, attention_types=("diff_v2",)),
    Mistake(
        "pairs_of_other_keys",
        {"query_pairs": "split", "key_pairs": "repeated"},
        attention_types=("diff_v2",),
    ),
    Mistake("repeated_keys", {"key_pairs": "repeated"}),
    Mistake("mixed_pairs", {"query_pairs": "adjacent", "key_pairs": "split"}),
    Mistake("rotated_pairs", {"positions": "joint"}, attention_types=("diff", "diff_v2")),
    Mistake("heads_not_moved", {"heads_first": True}, leaks=True, attention_types=_EVERY),
)
"""Mistakes that are found by comparing the layer's output with the changed formula."""
_TEXTS = {
    "lambda_init_sign": "λ is e^(q1·k1) − (e^(q2·k2) + λ_init): λ_init must be added, not "
    "subtracted.",
    "lambda_sum": "λ adds both exponentials: the second must be subtracted.",
    "lambda_without_exp": "λ is made of the dot products: each must go through exp.",
    "lambda_mean_of_exp": "exp is taken channel by channel: sum the products over channels first.",
    "lambda_vectors_unused": "λ is λ_init: its four vectors do not enter.",
    "not_causal": "Nothing hides later tokens, as with an additive mask of zeros: scores of later "
    "keys must be −∞ before the softmax.",
    "mask_after_softmax": "The mask is applied after the softmax: later keys still share in its "
    "sum.",
    "softmax_over_queries": "The softmax runs over queries: it must run over keys.",
    "softmax_of_difference": "One softmax of the subtracted scores: each map needs its own, "
    "subtracted after.",
    "maps_added": "λ times the second map is added: it must be subtracted.",
    "lambda_scales_both": "λ multiplies both maps: only the second has it.",
    "scale_of_pair": "Scores are divided by √(2d): d is the width of one query, not of the pair.",
    "scale_of_layer": "Scores are divided by the root of the layer's width: d is the width of one "
    "query.",
    "no_scale": "Scores are not divided by √d.",
    "no_factor": "The factor 1 − λ_init after the norm is missing.",
    "no_head_norm": "Heads are neither normalised nor multiplied by 1 − λ_init.",
    "no_norm": "Heads are not normalised: RMSNorm over the 2d channels of each head is missing.",
    "norm_over_heads": "One norm runs over all heads together: every head has its own.",
    "norm_after_output": "The norm follows the output projection: it belongs on every head, before "
    "it.",
    "norm_over_tokens": "The norm's mean runs over tokens too, as nn.GroupNorm does on [B, "
    "channels, T].",
    "norm_centred": "The norm subtracts the mean (LayerNorm or GroupNorm): the paper uses RMSNorm.",
    "norm_in_v2": "Heads are normalised: V2 has no head norm.",
    "no_sigmoid": "λ is the projection itself: V2 takes its sigmoid.",
    "pairs_of_other_keys": "The two queries of a pair read different keys and values: pair heads "
    "2i and 2i + 1, not i and i + H.",
    "repeated_keys": "Repeating keys over groups parts the pairs: both queries of a head read one "
    "key.",
    "mixed_pairs": "Queries pair heads 2i and 2i + 1, keys i and i + H: use one order for both.",
    "rotated_pairs": "Rotary positions turn both maps as one vector of 2d: rotate every query by "
    "itself.",
    "heads_not_moved": "Heads are joined by a reshape that mixes heads with tokens: move the axis "
    "of heads behind the tokens first.",
}
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
