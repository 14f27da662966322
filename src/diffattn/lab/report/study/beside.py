"""Studies of text as a section of another page: one that has just run, and the committed one."""

from collections.abc import Sequence
from typing import Any

from diffattn.files.io import read_json
from diffattn.lab.catalog.models import BASELINE, FEW, GATE
from diffattn.lab.records.text_results import COPIES
from diffattn.lab.report.page.elements import Element, Fold, Text, shown
from diffattn.lab.report.page.run_tables import cost_table
from diffattn.lab.report.page.study_page import TEXT
from diffattn.lab.report.page.wording import count, listing, number, plural, type_name
from diffattn.lab.report.study.charts import difference_bars, loss_chart
from diffattn.lab.report.study.files import LOSS, TextStudy
from diffattn.lab.report.study.tables import other_tables, results_table


def loss_section(live: TextStudy | None = None) -> list[Element]:
    """Differences in loss: of a study that has just run, if informative, and the committed."""
    if live is None or not (sentence := sentence_beside_counts(live)):
        return committed_text()
    details = shown(
        results_table(live),
        *other_tables(live),
        loss_chart(live, "chart-text-loss"),
        cost_table(live),
    )
    trained = [entry for name in live.variants if (entry := live.difference(name, BASELINE))]
    return [Text(sentence), *committed_text(trained), Fold("The models that you trained", details)]


def sentence_beside_counts(study: TextStudy) -> str:
    """Losses of the laptop comparison's models beside counting; empty for other models."""
    results = study.results
    if results is None or study.variants != FEW or not results["verdict"]["informative"]:
        return ""
    losses = listing(
        f"{type_name(name)} {number(variant['at']['best'][LOSS]['mean'], 2)}"
        for name, variant in study.entries.items()
    )
    counted = number(results["count_models"][COPIES]["loss"], 2)
    steps = count(study.info["config"]["train"]["num_steps"])
    chance = (
        " With one seed the differences may be chance." if len(study.info["seeds"]) == 1 else ""
    )
    return (
        f"After {steps} steps on Python's source code and documentation the losses in nats per "
        f"token are: {losses}. Counting pairs of tokens and copying them from the context gives "
        f"{counted}: all of these models have learned more than that.{chance}"
    )


def committed_text(
    trained: Sequence[dict[str, Any]] = (), config_hash: str | None = None
) -> list[Element]:
    """The differences of the committed study on text, below those of a study that has just run.

    Nothing is shown if ``config_hash`` is that of the committed study.
    """
    committed = read_json(TEXT)
    if config_hash == committed["config_hash"]:
        return []
    entries = {entry["variant"]: entry for entry in committed["differences"]}
    best, gate = entries["diff_v2"], entries[GATE]
    lead = (
        f"The longer study in published/text has {count(committed['parameters'])} parameters, "
        f"{committed['train_tokens']} and {plural(committed['seeds'], 'seed')}. There DIFF V2 ends "
        f"{number(-best['mean'], 2)} nats per token below the Transformer and V2's gate on one map "
        f"{number(-gate['mean'], 2)}. On tokens that are new in their window, where nothing can be "
        f"copied, V2 is {number(-best['new'], 2)} below and the gate {number(-gate['new'], 2)}: "
        "most of V2's lead is copying from the context."
    )
    longer = [{"runs": [], "values": []} | entry for entry in committed["differences"]]
    labels = [f"Here: {type_name(entry['variant'])}" for entry in trained]
    where = "Longer study: " if trained else ""
    labels += [f"{where}{type_name(entry['variant'])}" for entry in longer]
    drawn = [*trained, *longer]
    bars = difference_bars(drawn, labels, f"the {type_name(BASELINE)}", "chart-committed")
    return shown(Text(lead), bars)
