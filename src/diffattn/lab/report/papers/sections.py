"""The tables and figures of the papers, in their order, and the claims that test them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperResult:
    """One table or figure of a paper."""

    id: str
    """Unique in the page."""
    title: str
    source: str
    """Paper and table, figure or section."""
    says: str
    """The result of the paper in a sentence or two, with its scale."""
    tables: tuple[str, ...] = ()
    """Of :func:`diffattn.lab.report.paper.published_tables`."""
    claims: tuple[str, ...] = ()
    """Short names of the claims that test it."""
    remark: str = ""
    """A fact that a reader needs to weigh it."""


_DIFF, _SHARED, _V2 = "arXiv:2410.05258v2", "arXiv:2501.17900", "DIFF V2 note, January 2026"

PAPER_RESULTS: tuple[PaperResult, ...] = (
    PaperResult(
        id="lm-tasks",
        title="Tasks for language models",
        source=f"{_DIFF}, Tables 1 and 8",
        says="A 3B model scores 56.2 % against 55.4 % on seven tasks after 350B tokens, and "
        "60.6 % after 1T.",
        tables=("lm_tasks", "zero_shot_1t"),
        claims=("lm-tasks",),
        remark="One standard error of a task is 0.5 to 2.0 points: most differences of single "
        "tasks lie within two.",
    ),
    PaperResult(
        id="size",
        title="Loss by size",
        source=f"{_DIFF}, section 3.2, Fig. 3a",
        says="From 0.83B to 13.1B parameters the loss is lower at every size; 6.8B parameters do "
        "what 11B of the Transformer do.",
        claims=("loss", "size"),
        remark="Five points and three free numbers per curve; where the two curves end at "
        "different losses, the ratio grows with size without bound.",
    ),
    PaperResult(
        id="tokens",
        title="Loss by training tokens",
        source=f"{_DIFF}, section 3.2, Fig. 3b",
        says="A 3B model needs 160B tokens for the loss that takes the Transformer 251B.",
        claims=("tokens",),
    ),
    PaperResult(
        id="long-context",
        title="Loss by position",
        source=f"{_DIFF}, section 3.3, Fig. 4",
        says="Up to 64K tokens the cumulative average loss is lower at every position; the figure "
        "has no numbers.",
        claims=("long-context",),
    ),
    PaperResult(
        id="needles",
        title="Needles in a long text",
        source=f"{_DIFF}, section 3.3, Table 2 and Fig. 5",
        says="Of six needles in 4K tokens two are found with 0.85 against 0.55; in 64K tokens, at "
        "a quarter of the depth, with 0.88 against 0.12.",
        tables=("needles_4k",),
        claims=("needles", "recall-can", "recall-sooner"),
        remark="50 samples per cell: about ±0.14 at one half. Recall among noise tokens is our "
        "small version, which models of a few minutes can learn.",
    ),
    PaperResult(
        id="attention",
        title="Attention to the answer and to noise",
        source=f"{_DIFF}, section 3.3, Fig. 1 and Table 3",
        says="The share of attention on the answer is 0.31 against 0.03, that on noise 0.02 "
        "against 0.52 (the answer at half the depth).",
        tables=("attention",),
        claims=("answer-attention", "noise-attention"),
        remark="Signed weights can cancel and make noise small by themselves, so our claim about "
        "noise is measured with absolute weights.",
    ),
    PaperResult(
        id="many-shot",
        title="Learning from many examples in the context",
        source=f"{_DIFF}, section 3.4, Fig. 6",
        says="With examples that fill up to 64K tokens, accuracy is 5.2 to 21.6 points higher on "
        "four data sets.",
        claims=("many-shot",),
        remark="One run and 100 questions per point: neighbours jump by ten points. The dashed "
        "lines average from a point chosen for each data set.",
    ),
    PaperResult(
        id="order",
        title="The order of examples",
        source=f"{_DIFF}, section 3.4, Fig. 7 and 11",
        says="Over ten random orders of the same examples, best minus worst accuracy is 4 points "
        "against 19 (TREC).",
        tables=("orders",),
        claims=("order",),
        remark="The range of ten draws grows with their noise: models of low accuracy have wider "
        "ranges for that reason alone.",
    ),
    PaperResult(
        id="hallucination",
        title="Hallucination",
        source=f"{_DIFF}, section 3.5, Table 4",
        says="A judge finds more outputs free of hallucination in all six data sets, by 0.07 to "
        "0.19.",
        tables=("hallucination",),
        claims=("hallucination-summaries", "hallucination-answers"),
        remark="100 texts per data set: one standard error is about 0.05.",
    ),
    PaperResult(
        id="outliers",
        title="Activation outliers",
        source=f"{_DIFF}, section 3.6, Table 5",
        says="The largest attention logit is 38.8 against 318.0, the largest hidden state 1688 "
        "against 3609.",
        tables=("outliers",),
        claims=("outliers", "outliers-hidden"),
        remark="Neither the text nor whether logits are scaled is stated.",
    ),
    PaperResult(
        id="quantised",
        title="Attention logits of few bits",
        source=f"{_DIFF}, section 3.6, Fig. 8",
        says="With logits of 4 bits HellaSwag falls from 66.2 to 58.8 %, the Transformer's from "
        "63.4 to 33.9 %.",
        tables=("quantised",),
        claims=("quantised-logits",),
    ),
    PaperResult(
        id="ablations",
        title="Ablations",
        source=f"{_DIFF}, section 3.8, Table 6",
        says="The head norm carries the gain: without it the loss is 3.122 instead of 3.062; how "
        "λ starts matters little.",
        tables=("ablations",),
        claims=(
            "context-recall",
            "head-norm",
            "head-norm-alone",
            "lambda-init-0.8",
            "lambda-init-0.5",
        ),
    ),
    PaperResult(
        id="throughput",
        title="Throughput",
        source=f"{_DIFF}, Appendix A, Table 7",
        says="Training is 6 to 12 % slower on an H100, a forward pass 5 to 10 %.",
        tables=("throughput",),
        claims=("training-cost", "forward-cost"),
    ),
    PaperResult(
        id="gradients",
        title="Gradient flow",
        source=f"{_DIFF}, Appendix G",
        says="Gradients have the Transformer's magnitude up to a constant factor, so its "
        "hyperparameters carry over.",
        claims=("gradients", "gradients-constant", "updates", "head-norm-scale"),
    ),
    PaperResult(
        id="mathematics",
        title="Mathematics",
        source=f"{_DIFF}, Appendix C, Fig. 9 and 10",
        says="Trained further on 20B tokens of mathematics, 31.4 % against 20.1 % on eight sets; "
        "after training on long solutions 50.8 % against 43.3 %.",
        tables=("math_tokens", "math_sets"),
        remark="The recipes are there as configurations; no claim is tested, as no model of a "
        "size that could answer has been trained here. The best checkpoint was chosen on the sets "
        "that are reported.",
    ),
    PaperResult(
        id="shared",
        title="Shared DIFF",
        source=_SHARED,
        says="One shared pair of projections with low-rank updates is said to need 24 to 40 % "
        "fewer parameters and 11 to 30 % fewer tokens at equal loss.",
        claims=(
            "shared-loss",
            "shared-parameters",
            "shared-tokens",
            "shared-latency",
            "shared-rank",
        ),
        remark="These are readings of fits at equal loss, as “62 %” is: in a block of the Llama "
        "kind, half of the query and key weights are at most 8.3 % of the block. No code and no "
        "rank are published.",
    ),
    PaperResult(
        id="v2",
        title="DIFF V2",
        source=_V2,
        says="λ per token, no head norm, one key and value for both queries: loss 0.02 to 0.03 "
        "lower at 1T tokens, fewer spikes, decoding as fast as the Transformer's.",
        claims=(
            "v2-loss",
            "v2-norm",
            "v2-lambda",
            "v2-pairing",
            "v2-gradient-spikes",
            "v2-loss-spikes",
            "v2-decode",
        ),
        remark="A note, not a paper: its tables are not published.",
    ),
)
"""In the order of the papers."""
