"""Accuracy over orders of the same demonstrations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffattn.lab.evaluation.icl.data import ICL_DATASETS
from diffattn.lab.evaluation.icl.demonstrations import (
    DemonstrationReader,
    alternating_order,
    kept_per_model,
    random_order,
)
from diffattn.lab.evaluation.icl.many_shot import (
    DECODINGS,
    PROMPT_CHOICES,
    LabelProtocol,
    Ready,
    most_frequent_answer,
)
from diffattn.lab.evaluation.metrics import score_metric
from diffattn.lab.evaluation.protocol import Summary
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.proportions import expected_range
from diffattn.models.config.known_names import check_known

ORDERS = {"random": random_order, "alternating": alternating_order}
_REPEATS = 2_000


@dataclass(frozen=True, kw_only=True)
class OrderRobustness(LabelProtocol):
    """The same demonstrations in several orders: best minus worst accuracy.

    Source: arXiv:2410.05258v2, section 3.4, Fig. 7 and 11.
    """

    name = "order_robustness"
    choices = PROMPT_CHOICES | {
        "number": "the paper does not tell it; per_class times the classes, or by default the "
        "largest number of Fig. 6 that fits the model",
        "demonstrations": "the first of the balanced rounds of many_shot; orders permute them all",
        "alternating": "one of every class in turn, in an order of the classes drawn per seed; "
        "an exhausted class is skipped",
        "range by chance": "of independent binomial draws; and of the measured answers with each "
        "test item's right answers shuffled over the orders, which keeps the items' difficulty",
    }
    quick = {"data": "generated", "per_class": 2, "orders": 3, "test_items": 12}
    quick_short = {"per_class": 1}

    format: str = "random"
    """``random`` or ``alternating``."""
    per_class: int | None = None
    """Demonstrations per class. Default: as many as fit; see ``choices``."""
    orders: int = 10
    """Permutations. The paper has 10, in format ``alternating`` 30 and 30 test items."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.name, "format", self.format, ORDERS)
        self.require_at_least(1, "per_class")
        self.require_at_least(2, "orders")

    @kept_per_model
    def ready(self, model: LanguageModel) -> Ready:
        """See :meth:`LabelProtocol.ready`; readers are made as they are needed."""
        known = ICL_DATASETS[self.dataset]
        wanted = known.shots if self.per_class is None else (self.per_class * known.num_classes,)
        hint = "Choose a smaller per_class."
        task, order, _, usable = self.order_that_fits(model, wanted, hint)
        return Ready(task, order[: usable[-1]], {})

    def groups(self, ready: Ready) -> Sequence[int]:
        """The orders."""
        return range(self.orders)

    def demonstrations(
        self, model: LanguageModel, ready: Ready, group: int
    ) -> tuple[DemonstrationReader, dict[str, Any]]:
        """All of them in one order."""
        if group not in ready.readers:  # one order's keys and values at a time
            pieces = ready.task.encode(model, ORDERS[self.format](ready.order, self.seed + group))
            ready.readers.clear()
            ready.readers[group] = DemonstrationReader(pieces, [len(pieces)])
        return ready.readers[group], {"order": group, "shots": len(ready.order)}

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Mean, spread and range over the orders, and the range that chance brings."""
        metrics: list[Metric] = []
        tables: dict[str, Any] = {
            "shots": rows[0]["shots"],
            "most_frequent_answer": most_frequent_answer(rows),
        }
        for decoding in DECODINGS:
            name, chosen = f"accuracy_{decoding}", decoding == self.decoding
            orders = sorted({row["order"] for row in rows})
            by_order = {n: [row for row in rows if row["order"] == n] for n in orders}
            each = [x for n in orders for x in score_metric(name, by_order[n], {"order": n})]
            metrics += score_metric(name, rows, {}, headline=chosen)
            metrics += each
            ranges, facts = _ranges(_grid(rows, name), decoding, headline=chosen)
            metrics += ranges
            tables[name] = {"by_order": [m.value for m in each]} | facts
        return Summary(metrics=metrics, tables=tables)


def _grid(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Scores ``[orders, test items]`` of the items that were scored in every order."""
    orders = sorted({row["order"] for row in rows})
    by_item: dict[str, dict[int, float]] = {}
    for row in rows:
        by_item.setdefault(str(row["cluster"]), {})[row["order"]] = row["scores"][name]
    whole = [scores for scores in by_item.values() if len(scores) == len(orders)]
    return np.array([[scores[order] for scores in whole] for order in orders])


def _ranges(
    scores: np.ndarray, decoding: str, *, headline: bool
) -> tuple[list[Metric], dict[str, float]]:
    """The margin over the orders with its interval, and that of chance."""
    num_orders, n = scores.shape
    if n == 0:
        return [], {}
    generator = np.random.default_rng(0)
    means = scores.mean(1)
    margin = float(np.ptp(means))
    drawn = generator.integers(0, n, size=(_REPEATS, n))
    spread = np.ptp(scores[:, drawn].mean(2), axis=0)
    shuffled = np.array(
        [np.ptp(generator.permuted(scores, axis=0).mean(1)) for _ in range(_REPEATS)]
    )
    low, high = np.quantile(spread, [0.025, 0.975])
    facts = {
        "standard_deviation": float(means.std(ddof=1)),
        "best": float(means.max()),
        "worst": float(means.min()),
        "margin_expected_binomial": expected_range(float(means.mean()), n, num_orders),
        "margin_expected_dealt": float(shuffled.mean()),
        # Counted with the measured one, so that p is never 0; sums in another order may differ.
        "margin_p_value": (1 + int((shuffled >= margin - 1e-12).sum())) / (1 + _REPEATS),
    }
    interval: dict[str, Any] = {"method": "none: no answer changed with the order"}
    if np.ptp(scores, axis=0).any():
        ends = {"low": min(margin, float(low)), "high": max(margin, float(high))}
        interval = ends | {"method": "bootstrap over test items"}

    def fact(name: str, value: float, count: int, better: bool | None, **more: Any) -> Metric:
        shown: dict[str, Any] = {"headline": headline, "higher_is_better": better, **more}
        return Metric(name=f"{name}_{decoding}", value=value, n=count, **shown)

    expected = ("margin_expected_binomial", "margin_expected_dealt")
    spread_of_orders = facts["standard_deviation"]
    return [
        fact("margin", margin, n, False, **interval),
        *(fact(key, facts[key], n, None) for key in expected),
        fact("standard_deviation", spread_of_orders, num_orders, False),
    ], facts
