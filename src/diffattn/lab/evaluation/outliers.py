"""The largest attention logits and hidden states over many tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from diffattn.lab.evaluation.metrics import Row
from diffattn.lab.evaluation.perplexity.nll_by_position import first_windows
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts, used_of
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import Metric
from diffattn.probes.layer_reader import AttentionInputs, logit_rows, read_layers, require_readable
from diffattn.probes.outliers import (
    HIDDEN,
    HIDDEN_PLACE,
    LOGIT_PLACE,
    LOGITS,
    WITHOUT,
    OutlierScan,
    Parts,
    Tally,
    common_scale,
    layer_rows,
    merged,
    outlier_summary,
    pooled,
)

LARGEST = {"logits": "largest attention logit", "hidden": "largest hidden state"}
"""Names of the headline metrics, from which the claims about Table 5 are checked."""


class Outliers(Protocol):
    """Largest and median attention logits and hidden states, arXiv:2410.05258v2, Table 5."""

    name = "outliers"
    choices = {
        "scaling": "logits after the factor 1/√d, and before it beside; the paper does not say",
        "sign": "absolute values",
        "masked entries": "left out: key j of query i counts where j <= i",
        "both maps": "all logits of A1 and A2 together, and each by itself",
        "hidden states": "the residual stream after every block, each element",
        "median": "from bins of 0.8 %: off by at most 0.4 %",
        "position 0": "included; beside it without keys and tokens at position 0",
        "corpus": "windows of a text, each a sequence of its own that begins with BOS if the "
        "model has it; the paper names neither corpus nor length",
    }
    quick = {"num_windows": 4, "window_tokens": 128, "windows_per_item": 2}

    texts: str = "stdlib"  # see :func:`diffattn.lab.data.corpora.load_corpus`
    num_windows: int = 98  # from the start of the corpus; 98 of 4,096 tokens are the paper's 0.4M
    window_tokens: int = 4096
    windows_per_item: int = 8  # an interruption loses the work on one item at most
    windows_per_document: int = 16  # at most, from its beginning

    def __post_init__(self) -> None:
        self.require_at_least(1, "num_windows", "windows_per_item", "windows_per_document")
        self.require_at_least(2, "window_tokens")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        self.require_fit(model, "window_tokens", self.window_tokens)
        require_readable(model.network, self.window_tokens)
        start = model.start()
        size = self.window_tokens - len(start)
        texts = first_windows(self, model, self.texts, "text", start, size)
        windows, batches = [ids for _, ids in texts], []
        for first in range(0, len(windows), self.windows_per_item):
            some = tuple(windows[first : first + self.windows_per_item])
            name = f"windows-{first}-to-{first + len(some) - 1}"
            batches.append([Item(id=name, payload=(first, some))])
        return batches

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        (item,) = items
        first, windows = item.payload
        scan = OutlierScan()
        for number, ids in enumerate(windows, start=first):
            scan_window(scan, model, ids, number)
        groups = pooled(scan)
        largest = {name: max(x.largest for x in parts.values()) for name, parts in groups.items()}
        row = {
            "tokens": sum(map(len, windows)),
            "prompt": prompt_facts("\n\n".join(map(model.decode, windows))),
            "scores": {
                LARGEST["logits"]: max(x for name, x in largest.items() if name != HIDDEN),
                LARGEST["hidden"]: largest[HIDDEN],
            },
            "scales": [scan.scales[layer] for layer in sorted(scan.scales)],
            "tallies": {
                name: [parts[of_first].to_json() for of_first in (True, False)]
                for name, parts in groups.items()
            },
            "layers": layer_rows(scan),
            "texts": _texts(model, groups),
        }
        return [row]

    def summarise(self, rows: Sequence[Row]) -> Summary:
        groups: dict[str, Parts] = {}
        for name in rows[0]["tallies"]:
            width = len(HIDDEN_PLACE if name == HIDDEN else LOGIT_PLACE)
            groups[name] = {
                of_first: merged([Tally.from_json(r["tallies"][name][i], width) for r in rows])
                for i, of_first in enumerate((True, False))
            }
        texts = {int(token): text for row in rows for token, text in row["texts"].items()}
        scale = common_scale([scale for row in rows for scale in row["scales"]])
        table = outlier_summary(groups, scale, lambda token: texts.get(token, str(token)))
        num_tokens = sum(row["tokens"] for row in rows)
        used = used_of("windows", self.num_windows, num_tokens // self.window_tokens)
        return Summary(
            metrics=_metrics(table, num_tokens),
            tables={"outliers": table, "layers": _layers(rows)} | used,
        )


def scan_window(scan: OutlierScan, model: LanguageModel, ids: Sequence[int], number: int) -> None:
    """Run the sequence ``ids``, and add its logits and hidden states to ``scan`` as ``number``."""
    tokens = torch.tensor(ids, device=model.device)

    def on_attention(layer: int, inputs: AttentionInputs) -> None:
        for rows in logit_rows(inputs):
            scan.add_logits(layer, inputs, rows, tokens, number)

    def on_hidden(layer: int, x: torch.Tensor) -> None:
        scan.add_hidden(layer, x, tokens, number)

    read_layers(model.network, tokens[None], on_attention, on_hidden)


def _texts(model: LanguageModel, groups: Mapping[str, Parts]) -> dict[str, str]:
    """Token id, as a string, to text of the tokens at the largest values."""
    tokens: set[int] = set()
    for name, parts in groups.items():
        names = HIDDEN_PLACE if name == HIDDEN else LOGIT_PLACE
        columns = [i for i, column in enumerate(names) if column.endswith("token")]
        for tally in parts.values():
            tokens |= set(tally.places[:, columns].flatten().tolist())
    return {str(token): model.tokenizer.decode([token]) for token in sorted(tokens)}


def _metrics(table: Mapping[str, Any], num_tokens: int) -> list[Metric]:
    """Metrics without intervals: more tokens could only raise a maximum."""

    def metric(name: str, value: float, **more: Any) -> Metric:
        facts: dict[str, Any] = {"n": num_tokens, "unit": "value", "higher_is_better": None}
        return Metric(name=name, value=float(value), **facts, **more)

    metrics = []
    for name, of_name in table.items():
        for which, row in of_name.items():
            where = {"activation": name, "over": which}
            values = {f"top-{rank}": value for rank, value in row["top"].items()}
            values |= {key: row[key] for key in ("median", "kurtosis")}
            values["massive activations"] = row.get("massive")
            known = {key: value for key, value in values.items() if value is not None}
            metrics += [metric(key, value, where=where) for key, value in known.items()]
    for label, name in ((LARGEST["logits"], LOGITS), (LARGEST["hidden"], HIDDEN)):
        for which, row in table[name].items():
            printed = which != WITHOUT
            title = label if printed else f"{label}, {WITHOUT}"
            metrics.append(metric(title, row["top"]["1"], headline=printed))
    return metrics


def _layers(rows: Sequence[Row]) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = []
    for of_layer in zip(*(row["layers"] for row in rows), strict=True):
        layers.append({})
        for name, of_name in of_layer[0].items():
            layers[-1][name] = {x: max(y[name][x]["largest"] for y in of_layer) for x in of_name}
    return layers
