"""How much attention goes to the answer and how much to noise, in multi-needle retrieval."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from diffattn.lab.evaluation.long_context.haystack import span_within
from diffattn.lab.evaluation.long_context.needle import CITIES, MagicPrompt, MagicProtocol, needle
from diffattn.lab.evaluation.metrics import metric, rows_with
from diffattn.lab.evaluation.protocol import Item, Summary
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.intervals import cluster_mean
from diffattn.probes.attention_rows import LayerRows, attention_rows, segment_shares, segment_sums

SEGMENTS = ("bos", "before", "answer", "after", "query")
"""Segments of the prompt. They cover each token once, in this order."""
_COMPARED = ("signed", "clipped", "absolute")
"""Kinds of weights whose shares on answer and noise are metrics; the others are in tables alone."""


class AttentionSegments(MagicProtocol):
    """The attention of the token that predicts the answer's first digit, summed over five segments.

    Weights of differential maps are signed, A1 − λ A2, so the sum over noise may be near 0 only
    because signs cancel. So shares of clipped and absolute weights, A1 and A2 are recorded too.
    """

    name = "attention_segments"
    choices = {
        "query row": "the last prompt token, after 'Answer: The special magic CITY number is:' and "
        "the space where the tokenizer makes it a token: what comes next is the first digit",
        "answer": "the whole needle with its line ends; 'number' counts its digits alone",
        "noise": "context before and after together, other needles included; BOS and query are "
        "neither",
        "normalisation": "global: summed over each segment, averaged over layers and heads, then "
        "divided by the sum of the five; row: divided per head before averaging",
        "weights": "signed A1 − λ A2 as printed by the paper (inferred); clipped at 0, absolute, "
        "A1 and A2 beside it, and 'uniform', what evenly spread attention would give",
        "haystack": "as in protocol needle: one text per sample for all depths; 8 needles, one "
        "asked for, as in Figure 5; the paper gives neither number nor length",
        "bos": "EOS where the tokenizer has no BOS",
        "intervals": "Student t over samples",
    }
    quick = {"length": 512, "num_needles": 3, "samples": 2}
    quick_short = {"num_needles": 1}

    length: int = 4_096  # tokens of the prompt, exactly
    num_needles: int = 8
    per_head: bool = False  # record the sums of every layer and head, 10 kB per 100 heads and item

    def __post_init__(self) -> None:
        self.require_depths(self.depths)
        self.require_at_least(1, "num_needles", most=len(CITIES))
        self.require_at_least(1, "length", "samples")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One haystack per batch, with all depths: these prompts share a prefix."""
        self.require_fit(model, "length", self.length)
        self.build_prompts(model, self.depths[:1], **self.settings(0))  # raises if they do not fit
        return [
            [
                Item(id=f"{sample}/{depth:g}", payload=(sample, depth), cluster=str(sample))
                for depth in self.depths
            ]
            for sample in range(self.samples)
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Read each prompt up to its last token, then record the attention of the last token."""
        settings = self.settings(items[0].payload[0])

        def row(prompt: MagicPrompt, prefix: Prefix) -> dict[str, Any]:
            last = torch.tensor([prompt.ids[-1:]], device=model.device)
            layers = attention_rows(model.network, last, prefix.rows(1))
            return self._row(model, prompt, layers) | {"sample": settings["sample"]}

        prompts = self.build_prompts(model, [item.payload[-1] for item in items], **settings)
        return self.read_rows(model, prompts, row)

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        metrics: list[Metric] = []
        table = []
        for depth in self.depths:
            at_depth = rows_with(rows, depth=depth)
            for normalised, kinds in (at_depth[0]["shares"] if at_depth else {}).items():
                for weights, part in [(w, part) for w in kinds for part in kinds[w]]:
                    values = [row["shares"][normalised][weights][part] for row in at_depth]
                    mean = cluster_mean(values)
                    where = {"weights": weights, "normalised": normalised, "depth": depth}
                    numbers = {"mean": mean.mean, "low": mean.low, "high": mean.high, "n": mean.n}
                    table.append({**where, "part": part, **numbers})
                    is_figure = len(self.depths) == 1 and part in SEGMENTS  # as Figure 1 has
                    if weights in _COMPARED and (part in ("answer", "noise") or is_figure):
                        options: dict[str, Any] = {
                            "headline": weights == "signed" and normalised == "global",
                            "higher_is_better": {"answer": True, "noise": False}.get(part),
                        }
                        metrics.append(metric(part, mean, where=where, **options))
        factors = [row["one_minus_lambda"] for row in rows]
        tables: dict[str, Any] = {
            "segments": table,
            "one_minus_lambda": [sum(x) / len(x) for x in zip(*factors, strict=True)],
        }
        if self.per_head:
            tables["heads"] = {}
            for depth in dict.fromkeys(row["depth"] for row in rows):
                heads = [row["heads"] for row in rows_with(rows, depth=depth)]
                means = {"spans": heads[0]["spans"]}
                for weights in [key for key in heads[0] if key != "spans"]:
                    sums = torch.tensor([head[weights] for head in heads], dtype=torch.float64)
                    means[weights] = _rounded(sums.mean(0).tolist())
                tables["heads"][f"{depth:g}"] = means
        return Summary(metrics=metrics, tables=tables)

    def settings(self, sample: int) -> dict[str, Any]:
        facts = {"length": self.length, "num_needles": self.num_needles, "sample": sample}
        return facts | {"up_to_digits": True}

    def _row(
        self, model: LanguageModel, prompt: MagicPrompt, layers: Sequence[LayerRows]
    ) -> dict[str, Any]:
        """The row of one prompt: shares of attention, and with ``per_head`` the sums per head."""
        spans = dict(zip(SEGMENTS, segment_spans(prompt), strict=True))
        city, number = prompt.cities[0], prompt.numbers[0]  # 0: the needle that is asked for
        start, end = span_within(model, needle(city, number), number)  # of the digits
        spans["number"] = (prompt.spans[0][0] + start, prompt.spans[0][0] + end)
        sums = segment_sums(layers, list(spans.values()))
        shares: dict[str, dict[str, dict[str, float]]] = {}
        tokens = torch.tensor([[[b - a for a, b in spans.values()]]], dtype=torch.float64)
        for weights, weighted in [*sums.items(), ("uniform", tokens)]:
            for normalised, values in segment_shares(weighted, len(SEGMENTS)).items():
                parts = dict(zip(spans, values, strict=True))
                parts["noise"] = parts["before"] + parts["after"]
                shares.setdefault(normalised, {})[weights] = parts
        row: dict[str, Any] = {
            "city": city,
            "number": number,
            "spans": spans,
            "realised": [round(x, 3) for x in prompt.realised],
            "shares": shares,
            # Rows of the signed map sum to 1 − λ for every kind of λ; to 1 for softmax.
            "one_minus_lambda": sums["signed"][..., : len(SEGMENTS)].sum(-1).mean(-1).tolist(),
            "scores": {
                f"{part}_{weights}": shares["global"][weights][part]
                for weights in _COMPARED
                for part in ("answer", "noise")
            },
        }
        if self.per_head:
            row["heads"] = {
                "spans": list(spans),
                **{weights: _rounded(weighted.tolist()) for weights, weighted in sums.items()},
            }
        return row


def segment_spans(prompt: MagicPrompt) -> list[tuple[int, int]]:
    """``(start, end)`` of each segment of ``SEGMENTS`` in tokens, end excluded."""
    (start, end), (first, last) = prompt.context, prompt.spans[0]
    return [(0, start), (start, first), (first, last), (last, end), (end, len(prompt.ids))]


def _rounded(values: Any) -> Any:
    """Nested lists with numbers rounded to six significant digits."""
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return float(f"{values:.6g}")
