"""The claims of the papers: what they print, what we measure, and what the effect would be."""

from dataclasses import dataclass
from typing import Literal

from diffattn.lab.report.claims import commands
from diffattn.lab.report.claims.commands import Commands
from diffattn.lab.report.claims.from_gradients import gradient_factor
from diffattn.lab.report.claims.from_models import evaluated, evaluated_ratio, time_ratio
from diffattn.lab.report.claims.from_studies import (
    recall_share,
    recall_steps,
    scaling_ratio,
    stability_difference,
)
from diffattn.lab.report.claims.from_text import loss_difference
from diffattn.lab.report.claims.measured import Measure
from diffattn.lab.report.claims.records import (
    ABLATIONS,
    BENCHMARKS,
    EVALUATIONS,
    GRADIENT_FLOW,
    RANK,
    RECALL,
    SCALING,
    STABILITY,
    TEXT,
)

V1, SHARED, V2 = "arXiv:2410.05258v2", "arXiv:2501.17900", "DIFF V2 note, January 2026"
NORM_MARGIN = 0.01
"""Nats within which a head norm, a start of λ or a rank counts as making no difference."""
SAME_MAGNITUDE = 2.0
"""Factor within which gradients count as alike."""
CONSTANT = 1.5
"""Factor within which their ratio counts as the same at another size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim, how it is tested, and where its record lies."""

    id: str
    """Short name, unique."""
    says: str
    """What the paper says, with its number as printed."""
    source: str
    """Paper and table, figure or section."""
    effect: str
    """What is measured, in words, with its unit."""
    expects: Literal["below", "above"]
    """On which side of ``bound`` the effect lies if the claim holds."""
    bound: float
    commands: Commands
    record: str
    """Folder of the record under the repository."""
    measure: Measure


_TABLE3 = commands.evaluation(
    "table3", "attention_segments",
    small=("attention_segments.length=256", "attention_segments.num_needles=2"),
    whole=("attention_segments.haystack=BOOKS",),
)  # fmt: skip
_TABLE5 = commands.evaluation(
    "table5", "outliers", small=("outliers.window_tokens=256",), whole=("outliers.texts=BOOKS",)
)  # fmt: skip
_LOSS = "validation loss minus the Transformer's, equal parameters, nats per token"
_SCORE = "minus the Transformer's, over seeds of the models"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="loss", expects="below", bound=0.0, source=f"{V1}, Table 6, Fig. 3a",
        says="At equal size DIFF's loss is lower: 3.062 against 3.087 (1.4B, 10B tokens).",
        effect=f"DIFF V1's {_LOSS}", commands=commands.TEXT, record=TEXT,
        measure=loss_difference("diff", "softmax"),
    ),
    Claim(
        id="size", expects="below", bound=1.0, source=f"{V1}, section 3.2, Fig. 3a",
        says="6.8B parameters do what 11B of the Transformer do: 62.2 %.",
        effect="DIFF V1's parameters over the Transformer's at equal loss, by fits, at the middle "
        "size",
        commands=commands.SCALING, record=SCALING, measure=scaling_ratio("parameters", "diff"),
    ),
    Claim(
        id="tokens", expects="below", bound=1.0, source=f"{V1}, section 3.2, Fig. 3b",
        says="160B tokens do what 251B of the Transformer do: 63.7 %.",
        effect="DIFF V1's tokens over the Transformer's at equal loss, by fits to whole runs, at "
        "the middle budget",
        commands=commands.SCALING, record=SCALING, measure=scaling_ratio("tokens", "diff"),
    ),
    Claim(
        id="lm-tasks", expects="above", bound=0.0, source=f"{V1}, Table 8",
        says="Mean zero-shot accuracy on 7 tasks 56.2 against 55.4 % (3B, 350B tokens).",
        effect=f"DIFF V1's mean accuracy {_SCORE}",
        commands=commands.evaluation(
            "table8", "lm_tasks", small=("lm_tasks.data=LM_EVAL",), whole=("lm_tasks.data=LM_EVAL",)
        ),
        record=EVALUATIONS, measure=evaluated("lm_tasks", "average", "diff"),
    ),
    Claim(
        id="long-context", expects="below", bound=0.0, source=f"{V1}, section 3.3, Fig. 4",
        says="The average loss up to 64K tokens is lower at every position (no numbers printed).",
        effect="DIFF V1's loss on the last quarter of the context minus the Transformer's, nats "
        "per token",
        commands=commands.TEXT, record=TEXT,
        measure=loss_difference("diff", "softmax", part="quarter_4"),
    ),
    Claim(
        id="context-recall", expects="below", bound=0.0, source=f"{V1}, Table 6",
        says="Loss on n-grams repeated in the context 0.880 against 0.898.",
        effect="DIFF V1's loss on repeated bigrams minus the Transformer's, nats per token",
        commands=commands.TEXT, record=TEXT,
        measure=loss_difference("diff", "softmax", part="repeated_bigram"),
    ),
    Claim(
        id="needles", expects="above", bound=0.0, source=f"{V1}, Table 2",
        says="Of 6 needles 2 asked for, recall 0.85 against 0.55 (3B, 4K).",
        effect=f"DIFF V1's mean recall {_SCORE}",
        commands=commands.evaluation(
            "table2", "needle",
            small=("needle.lengths=[256]", "needle.tasks=[[1,1],[2,1]]"),
            whole=("needle.haystack=BOOKS",),
        ),
        record=EVALUATIONS,
        measure=evaluated("needle", "recall", "diff", printed=("task", "N=6, R=2")),
    ),
    Claim(
        id="recall-can", expects="above", bound=0.0, source=f"{V1}, Table 2 (our small version)",
        says="DIFF retrieves among noise what the Transformer does not: 0.85 against 0.55.",
        effect="share of DIFF V1's seeds that learn noisy recall, minus the Transformer's",
        commands=commands.RECALL, record=RECALL, measure=recall_share("noisy_recall", "diff"),
    ),
    Claim(
        id="recall-sooner", expects="below", bound=0.0, source="ours, after Table 2",
        says="DIFF learns to retrieve among noise sooner (not printed: ours).",
        effect="DIFF V1's steps until noisy recall is learned, minus the Transformer's (median by "
        "seed, p of an unpaired log-rank test)",
        commands=commands.RECALL, record=RECALL, measure=recall_steps("noisy_recall", "diff"),
    ),
    Claim(
        id="answer-attention", expects="above", bound=0.0, source=f"{V1}, Table 3",
        says="Attention on the answer 0.27 to 0.40 against 0.03 to 0.09.",
        effect=f"DIFF V1's share of attention on the answer {_SCORE}",
        commands=_TABLE3, record=EVALUATIONS,
        measure=evaluated("attention_segments", "answer", "diff"),
    ),
    Claim(
        id="noise-attention", expects="below", bound=0.0, source=f"{V1}, Table 3",
        says="Attention on noise 0.01 to 0.02 against 0.49 to 0.54.",
        effect=f"DIFF V1's share of absolute attention on noise {_SCORE} (signed parts could "
        "cancel)",
        commands=_TABLE3, record=EVALUATIONS,
        measure=evaluated(
            "attention_segments", "noise", "diff", better="below",
            where={"weights": "absolute", "normalised": "global"},
        ),
    ),
    Claim(
        id="many-shot", expects="above", bound=0.0, source=f"{V1}, section 3.4, Fig. 6",
        says="Many-shot classification 5.2 to 21.6 points better (64K).",
        effect=f"DIFF V1's mean accuracy {_SCORE}",
        commands=commands.evaluation(
            "fig6", "many_shot", small=("many_shot.data=ICL", "many_shot.shots=[6]"),
            whole=("many_shot.data=ICL",),
        ),
        record=EVALUATIONS, measure=evaluated("many_shot", "accuracy", "diff"),
    ),
    Claim(
        id="order", expects="below", bound=0.0, source=f"{V1}, section 3.4, Fig. 7, 11",
        says="Best minus worst accuracy over 10 orders 4 against 19 points (TREC).",
        effect=f"DIFF V1's margin over orders {_SCORE}",
        commands=commands.evaluation(
            "fig11", "order",
            small=("order_robustness.data=ICL", "order_robustness.per_class=1"),
            whole=("order_robustness.data=ICL",),
        ),
        record=EVALUATIONS,
        measure=evaluated("order_robustness", "margin_greedy_trie", "diff", better="below"),
    ),
    *(
        Claim(
            id=f"hallucination-{name}", expects="above", bound=0.0, source=f"{V1}, Table 4",
            says=says,
            effect=f"share of DIFF V1's texts that a judge accepts {_SCORE}; judged by "
            "'diffattn judge'",
            commands=commands.evaluation(
                "table4", "hallucination", small=("hallucination.data=ARTICLES", *small),
                whole=("hallucination.data=ARTICLES",), then=commands.JUDGE,
            ),
            record=EVALUATIONS,
            measure=evaluated("hallucination_judge", "accuracy", "diff", parts=parts),
        )
        for name, small, parts, says in (
            ("summaries", (), ("xsum", "cnn_dm", "multi_news"),
             "Summaries without hallucination 0.53, 0.41, 0.61 against 0.44, 0.32, 0.42."),
            ("answers", ("hallucination.dataset=qasper",), ("qasper", "hotpotqa", "2wikimqa"),
             "Answers without hallucination 0.39, 0.46, 0.36 against 0.28, 0.36, 0.29."),
        )
    ),
    *(
        Claim(
            id=name, expects="below", bound=1.0, source=f"{V1}, Table 5", says=says,
            effect=f"DIFF V1's {metric} over the Transformer's, geometric mean over seeds of the "
            "models",
            commands=_TABLE5, record=EVALUATIONS,
            measure=evaluated_ratio("outliers", metric, "diff"),
        )
        for name, metric, says in (
            ("outliers", "largest attention logit",
             "Largest attention logit 38.8 against 318.0 (0.4M tokens)."),
            ("outliers-hidden", "largest hidden state",
             "Largest hidden state 1688 against 3609 (0.4M tokens)."),
        )
    ),
    Claim(
        id="quantised-logits", expects="above", bound=0.0, source=f"{V1}, Fig. 8",
        says="With logits of 4 bits HellaSwag falls from 66.2 to 58.8, the Transformer's from 63.4 "
        "to 33.9 %.", effect=f"DIFF V1's change of accuracy by 4-bit logits {_SCORE}",
        commands=commands.evaluation(
            "fig8", "quantized_logits", small=("quantized_logits.window_tokens=128",),
        ),
        record=EVALUATIONS, measure=evaluated(
            "quantized_logits", "change of hellaswag acc_norm", "diff", where={"bits": 4}
        ),
    ),
    *(
        Claim(
            id=name, expects="below", bound=bound, source=f"{V1}, Appendix G", says=says,
            effect=f"{what}, as a factor from 1 up", commands=commands.GRADIENT_FLOW,
            record=GRADIENT_FLOW, measure=gradient_factor(judgement, bound),
        )
        for name, judgement, bound, says, what in (
            # Where values have the size they have at the papers' width: at small width alone the
            # factor is 13, by the head norm.
            ("gradients", "level-large-values", SAME_MAGNITUDE,
             "Gradients have the magnitude of those of softmax attention with h heads of 2d, up to "
             "a constant, so hyperparameters carry over.",
             "gradients of W_Q, W_K, W_V or W_O of V1 against softmax attention's, the worst, "
             "values of size 1 as in a model 2,500 wide"),
            ("gradients-constant", "drift-width", CONSTANT,
             "The ratio of the gradients is a constant.",
             "change of that ratio from width 64 to 256 at the first step, the worst matrix"),
            ("updates", "updates", SAME_MAGNITUDE,
             "AdamW's updates have the same size, as the gradients have.",
             "size of AdamW's updates of W_Q, W_K, W_V or W_O of V1 against softmax attention's, "
             "the worst"),
            ("head-norm-scale", "norm-gain-large-values", SAME_MAGNITUDE,
             "Early in training a head has size ‖x‖/√(2d) ≈ 1 − λ_init, so that its norm's "
             "Jacobian is Θ(1).",
             "the head norm's gain at the first step against 1, the worst layer, values of size 1 "
             "as in a model 2,500 wide"),
        )
    ),
    Claim(
        id="head-norm", expects="above", bound=0.0, source=f"{V1}, Table 6",
        says="Without the head norm V1's loss is 3.122 instead of 3.062.",
        effect="V1's validation loss without head norm minus with it, nats per token",
        commands=commands.TEXT, record=TEXT, measure=loss_difference("diff_no_norm", "diff"),
    ),
    Claim(
        id="head-norm-alone", expects="above", bound=-NORM_MARGIN, source=f"{V1}, Table 6",
        says="The head norm alone gives the Transformer nothing: 3.086 with, 3.088 without (8 "
        "heads of 256).",
        effect="validation loss of softmax with half the heads, with head norm minus without, nats "
        f"per token; at least −{NORM_MARGIN:g}",
        commands=commands.ABLATIONS, record=ABLATIONS,
        measure=loss_difference(
            "softmax_wide_norm", "softmax_wide", bound=-NORM_MARGIN, of="ablations"
        ),
    ),
    *(
        Claim(
            id=f"lambda-init-{value}", expects="below", bound=NORM_MARGIN, source=f"{V1}, Table 6",
            says=f"With λ_init = {value} in every layer V1's loss is {loss} instead of 3.062.",
            effect="V1's validation loss with that constant minus with the schedule, nats per "
            f"token; below {NORM_MARGIN:g}",
            commands=commands.ABLATIONS, record=ABLATIONS,
            measure=loss_difference(name, "diff", bound=NORM_MARGIN, of="ablations"),
        )
        for value, loss, name in (
            ("0.8", "3.065", "diff_lambda_08"), ("0.5", "3.066", "diff_lambda_05"),
        )
    ),
    *(
        Claim(
            id=f"{name}-cost", expects="below", bound=bound, source=f"{V1}, Table 7",
            effect=f"time of DIFF V1's {what} over the Transformer's, both our layers, by `auto`",
            says=f"{says} times as long.", commands=commands.bench("models"), record=BENCHMARKS,
            measure=time_ratio("diff", mode=mode),
        )
        for name, what, mode, bound, says in (
            ("training", "forward and backward pass", "forward_backward", 7_491 / 6_718,
             "Training throughput is 6 to 12 % lower (H100): by the tokens per second printed a "
             "step takes 1.06 to 1.12"),
            ("forward", "forward pass", "forward", 48_762 / 44_521,
             "Prefill throughput is 5 to 10 % lower (H100): by the tokens per second printed it "
             "takes 1.05 to 1.10"),
        )
    ),
    Claim(
        id="shared-loss", expects="below", bound=0.0, source=f"{SHARED}, as summarised",
        says="Shared DIFF's loss is lower than the Transformer's at equal size.",
        effect=f"Shared DIFF's {_LOSS}", commands=commands.TEXT, record=TEXT,
        measure=loss_difference("shared_diff", "softmax"),
    ),
    Claim(
        id="shared-parameters", expects="below", bound=1.0, source=f"{SHARED}, as summarised",
        says="Shared DIFF needs 24 to 40 % fewer parameters (a reading of scaling fits at equal "
        "loss).",
        effect="Shared DIFF's parameters over the Transformer's at equal loss, by fits, at the "
        "middle size",
        commands=commands.SCALING, record=SCALING,
        measure=scaling_ratio("parameters", "shared_diff"),
    ),
    Claim(
        id="shared-tokens", expects="below", bound=1.0, source=f"{SHARED}, as summarised",
        says="Shared DIFF needs 11 to 30 % fewer training tokens.",
        effect="Shared DIFF's tokens over the Transformer's at equal loss, by fits to whole runs, "
        "at the middle budget",
        commands=commands.SCALING, record=SCALING,
        measure=scaling_ratio("tokens", "shared_diff"),
    ),
    Claim(
        id="shared-latency", expects="below", bound=1.0, source=f"{SHARED}, left open there",
        says="Fewer parameters make Shared DIFF faster than V1 (asked, not answered).",
        effect="time of Shared DIFF's forward pass over DIFF V1's",
        commands=commands.bench("models"), record=BENCHMARKS,
        measure=time_ratio(
            "shared_diff", mode="forward", against="diff", on_gpu=False,
            also=("generation", "prefill"),
        ),
    ),
    Claim(
        id="shared-rank", expects="below", bound=NORM_MARGIN, source=f"{SHARED}, left open there",
        says="A small rank is enough for Shared DIFF (asked, not answered: no rank is printed).",
        effect="Shared DIFF's validation loss at rank 2 minus at rank 16, equal parameters, nats "
        f"per token; below {NORM_MARGIN:g}",
        commands=commands.RANK, record=RANK,
        measure=loss_difference(
            "shared_diff_r2", "shared_diff_r16", bound=NORM_MARGIN, of="rank"
        ),
    ),
    Claim(
        id="v2-loss", expects="below", bound=0.0, source=V2,
        says="V2's loss is 0.02 to 0.03 lower than the Transformer's (1T tokens).",
        effect=f"DIFF V2's {_LOSS}", commands=commands.TEXT, record=TEXT,
        measure=loss_difference("diff_v2", "softmax"),
    ),
    Claim(
        id="v2-norm", expects="above", bound=-NORM_MARGIN, source=V2,
        says="V2 needs no head norm.",
        effect="V2's validation loss with head norm minus without, nats per token; at least "
        f"−{NORM_MARGIN:g}",
        commands=commands.TEXT._replace(laptop=None), record=TEXT,  # no ablations at that scale
        measure=loss_difference("diff_v2_norm", "diff_v2", bound=-NORM_MARGIN),
    ),
    *(
        Claim(
            id=f"v2-{name}", expects="above", bound=0.0, source=V2, says=says,
            effect=f"V2's validation loss {what} minus as it is, nats per token",
            commands=commands.ABLATIONS, record=ABLATIONS,
            measure=loss_difference(variant, "diff_v2", of="ablations"),
        )
        for name, variant, what, says in (
            ("lambda", "diff_v2_no_lambda", "without λ",
             "V2 needs its λ (ablated there, no numbers printed)."),
            ("pairing", "diff_v2_across", "with pairs across groups of heads",
             "V2's pairs must share keys and values (unstable otherwise, no numbers printed)."),
        )
    ),
    Claim(
        id="v2-gradient-spikes", expects="below", bound=0.0, source=V2,
        says="V2 has fewer gradient spikes than V1 at large learning rates.",
        effect="share of steps with a gradient spike, V2 minus V1, mean over the rates at which "
        "both attend",
        commands=commands.STABILITY, record=STABILITY,
        measure=stability_difference("gradient_spike_share", "diff_v2", "diff"),
    ),
    Claim(
        id="v2-loss-spikes", expects="below", bound=0.0, source=V2,
        says="V2's loss does not spike where V1's does (7B, large learning rate).",
        effect="share of steps with a loss spike, V2 minus V1, mean over the rates at which both "
        "attend",
        commands=commands.STABILITY, record=STABILITY,
        measure=stability_difference("loss_spike_share", "diff_v2", "diff"),
    ),
    Claim(
        id="v2-decode", expects="below", bound=1.1, source=V2,
        says="V2 decodes as fast as the Transformer: the same keys and values are read.",
        effect="time of DIFF V2's decoding step over the Transformer's by the same technique",
        commands=commands.bench("decode", "--attention v2"), record=BENCHMARKS,
        measure=time_ratio("", mode="decode", suite="decode", attention="v2"),
    ),
)  # fmt: skip
"""In the order of the papers."""
