"""All protocols and presets by name, with facts that need no import of their modules."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolFacts:
    """Facts of a protocol that are known before its module and PyTorch are loaded."""

    path: str  # ``MODULE:CLASS``, relative to ``diffattn.lab.evaluation``
    version: int  # raised by each change of data, prompt, scoring or seeds
    summary: str  # for ``diffattn list protocols``
    source: str  # paper and section, and the reference code if there is any
    primary: tuple[str, ...] = ()
    """Names of the score that decides the verdict: the first one that the rows have. A name in
    braces, such as ``{decoding}``, is a parameter. Declared before anything is measured."""
    any_context: bool = False  # ``--quick`` fits a context of any length


PROTOCOLS: dict[str, ProtocolFacts] = {
    "ar_hits": ProtocolFacts(
        path="perplexity.ar_hits:ArHits",
        version=3,
        summary="loss on the last tokens of n-grams repeated in the context, and on all others",
        source="arXiv:2410.05258v2, Table 6; Zoology, arXiv:2312.04927; "
        "arXiv:2407.05483, appendix B",
        primary=("ar_hit_2_nll", "nll"),
        any_context=True,
    ),
    "attention_segments": ProtocolFacts(
        path="long_context.attention_segments:AttentionSegments",
        version=4,
        summary="attention to answer and noise in multi-needle retrieval (Table 3, Fig. 1)",
        source="arXiv:2410.05258v2, Table 3 and Figure 1 (segments read off the figure)",
        primary=("answer_signed",),
    ),
    "babilong": ProtocolFacts(
        path="long_context.babilong.babilong:BabiLong",
        version=5,
        summary="bAbI-like facts spread over a long text, 0K to 128K",
        source="arXiv:2406.10149 (BABILong), tasks qa1 to qa5; score of booydar/babilong",
        primary=("accuracy",),
    ),
    "block_perplexity": ProtocolFacts(
        path="perplexity.perplexities:BlockPerplexity",
        version=1,
        summary="perplexity of blocks that do not overlap, as WikiText-2 is usually reported",
        source="GPTQ, arXiv:2210.17323 (evaluation code); transformers' documentation",
        primary=("nll",),
        any_context=True,
    ),
    "hallucination": ProtocolFacts(
        path="hallucination.hallucination:Hallucination",
        version=4,
        summary="summaries and answers that the document supports; 'diffattn judge' adds the judge",
        source="arXiv:2410.05258v2, Table 4; arXiv:2407.07071 (voidism/Lookback-Lens); "
        "arXiv:2308.14508 (THUDM/LongBench)",
        primary=("span_match", "entities_found"),
    ),
    "hidden_needle": ProtocolFacts(
        path="long_context.hidden_needle:HiddenNeedleSearch",
        version=6,
        summary="needles without literal overlap with the question, and the effective length",
        source="arXiv:2502.05167 (NoLiMa): depths, score and effective length; needles of our own",
        primary=("contains",),
    ),
    "key_values": ProtocolFacts(
        path="long_context.key_values:KeyValues",
        version=4,
        summary="the value of one key in a JSON object of random UUIDs, by length",
        source="arXiv:2307.03172, section 3.1; arXiv:2410.02694 (JSON-KV)",
        primary=("recall",),
    ),
    "lm_tasks": ProtocolFacts(
        path="lm_tasks.lm_tasks:LmTasks",
        version=4,
        summary="seven multiple-choice tasks of lm-evaluation-harness, 0-shot or few-shot",
        source="arXiv:2410.05258v2, Tables 1 and 8; lm-evaluation-harness (tasks and prompts)",
        primary=("average", "{task} {metric}"),
        any_context=True,
    ),
    "needle": ProtocolFacts(
        path="long_context.needle:Needle",
        version=5,
        summary="magic numbers of R of N cities hidden in a long text (Table 2, Fig. 5)",
        source="arXiv:2410.05258v2, section 3.4; needles and questions of LWM (arXiv:2402.08268)",
        primary=("recall",),
    ),
    "nll_by_position": ProtocolFacts(
        path="perplexity.nll_by_position:NllByPosition",
        version=2,
        summary="average loss up to each position of long documents, and its power law",
        source="arXiv:2410.05258v2, section 3.3, Fig. 4; Gemini 1.5, arXiv:2403.05530, 5.2.1.1",
        primary=("nll",),
        any_context=True,
    ),
    "outliers": ProtocolFacts(
        path="outliers:Outliers",
        version=1,
        summary="largest and median attention logits and hidden states over many tokens (Table 5)",
        source="arXiv:2410.05258v2, Table 5",
        primary=("largest hidden state",),
        any_context=True,
    ),
    "quantized_logits": ProtocolFacts(
        path="quantized_logits:QuantizedLogits",
        version=3,
        summary="another protocol with attention logits of 16, 8, 6 and 4 bits, and perplexity",
        source="arXiv:2410.05258v2, Fig. 8",
        any_context=True,
    ),
    "ruler": ProtocolFacts(
        path="long_context.ruler.ruler:Ruler",
        version=7,
        summary="RULER's 13 long-context tasks by length, and the effective length",
        source="arXiv:2404.06654 (RULER); templates and scores of NVIDIA/RULER",
        primary=("score",),
    ),
    "sliding_perplexity": ProtocolFacts(
        path="perplexity.perplexities:SlidingPerplexity",
        version=2,
        summary="perplexity of long documents by windows that slide by 256 tokens",
        source="ALiBi, arXiv:2108.12409; YaRN, arXiv:2309.00071, section 4.3.1",
        primary=("nll_window_{windows}",),
        any_context=True,
    ),
    "word_perplexity": ProtocolFacts(
        path="perplexity.perplexities:WordPerplexity",
        version=2,
        summary="perplexity per word of whole documents: total loss / number of words",
        source="Compressive Transformers, arXiv:1911.05507, section 4.3 (PG-19)",
        primary=("nll_per_word",),
        any_context=True,
    ),
    "many_shot": ProtocolFacts(
        path="icl.label_protocols:ManyShot",
        version=2,
        summary="classification by up to thousands of demonstrations in the prompt",
        source="arXiv:2410.05258v2, section 3.4, Fig. 6; abertsch72/long-context-icl",
        primary=("accuracy_{decoding}",),
    ),
    "order_robustness": ProtocolFacts(
        path="icl.label_protocols:OrderRobustness",
        version=2,
        summary="accuracy over permutations of the same demonstrations, best minus worst",
        source="arXiv:2410.05258v2, section 3.4, Fig. 7 and 11",
        primary=("accuracy_{decoding}",),
    ),
    "remapped_labels": ProtocolFacts(
        path="icl.remapped_labels:RemappedLabels",
        version=3,
        summary="classification by demonstrations with random numbers for labels",
        source="arXiv:2410.02694 (ICL); princeton-nlp/HELMET",
        primary=("exact_match",),
    ),
}

PRIMARY = {name: facts.primary for name, facts in PROTOCOLS.items() if facts.primary}
PRIMARY["hallucination_judge"] = ("accuracy",)

_ICL = ("trec", "trec_fine", "banking77", "clinic150")

# Preset -> folder name -> protocol and its parameters.
PRESETS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "fig4": {"nll_by_position": ("nll_by_position", {})},
    "table5": {"outliers": ("outliers", {})},
    "table6": {"ar_hits": ("ar_hits", {})},
    "table4": {
        name: ("hallucination", {"dataset": name})
        for name in ("xsum", "cnn_dm", "multi_news", "qasper", "hotpotqa", "2wikimqa")
    },
    "table2": {"table2": ("needle", {})},
    "fig5": {
        "fig5": ("needle", {"tasks": ((8, 1),), "lengths": tuple(range(8_192, 65_537, 8_192))})
    },
    "table3": {"table3": ("attention_segments", {})},
    "fig1": {"fig1": ("attention_segments", {"depths": (50,)})},
    "long_context": {
        "ruler": ("ruler", {}),
        "babilong": ("babilong", {}),
        "key_values": ("key_values", {}),
    },
    "fig8": {"quantized_logits": ("quantized_logits", {})},
    "table1": {"lm_tasks_0shot": ("lm_tasks", {"num_fewshot": 0})},
    "table8": {
        "lm_tasks_0shot": ("lm_tasks", {"num_fewshot": 0}),
        "lm_tasks_5shot": ("lm_tasks", {"num_fewshot": 5}),
    },
    "fig6": {f"many_shot_{name}": ("many_shot", {"dataset": name}) for name in _ICL},
    "fig7": {
        "order_random": ("order_robustness", {"dataset": "trec"}),
        "order_alternating": (
            "order_robustness",
            {"dataset": "trec", "format": "alternating", "orders": 30, "test_items": 30},
        ),
    },
    "fig11": {f"order_{name}": ("order_robustness", {"dataset": name}) for name in _ICL},
}
