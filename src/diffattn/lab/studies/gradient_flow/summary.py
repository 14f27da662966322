"""From finished runs to the results of a gradient-flow study, and its limits in words."""

from diffattn.lab.records.study_results import GradientFlowResults
from diffattn.lab.report.sections.gradient_flow import BASE
from diffattn.lab.studies.gradient_flow.config import GradientFlowConfig, run_name
from diffattn.lab.studies.gradient_flow.judgements import (
    DRIFT,
    HALF,
    LEVEL,
    Judge,
    describe_judgements,
)
from diffattn.lab.studies.gradient_flow.sizes import Rows, Sizes
from diffattn.lab.studies.limits import heads_below, spread
from diffattn.lab.studies.study import Results


def gradient_flow_results(
    config: GradientFlowConfig, results: Results, rows: Rows
) -> GradientFlowResults:
    """Ratios of gradients and updates, sizes of heads, and the judgements."""
    sizes = Sizes(config, results, rows)
    judgements = list(Judge(sizes).judgements())
    informative = any(row["verdict"] in ("agrees", "disagrees") for row in judgements)
    return {
        "schema": 1,
        "kind": "gradient-flow",
        "protocol": {"name": "gradient_flow_study", "version": 1},
        "scale": config.scale,
        "definition": {"level": LEVEL, "drift": DRIFT, "half": list(HALF)},
        "ratios": list(sizes.ratios()),
        "heads": list(sizes.heads()),
        "losses": {
            name: [results[run_name(BASE, name, seed)]["validation_loss"] for seed in config.seeds]
            for name in config.types(BASE)
        },
        "judgements": judgements,
        "verdict": {"informative": informative, "sentence": describe_judgements(judgements)},
        "statement": statement(config),
        "complete": True,
    }


def statement(config: GradientFlowConfig) -> str:
    """State the limits of the study."""
    size = heads_below(member.config.model for member in config.members())
    return (
        f"{size}What would refute the claims was fixed before the first run. All models of a "
        "setting read the same tokens at the same seed and step, with one learning rate. The "
        "models are some thousand times smaller than the papers', and values of a narrow model are "
        "small at the start: one setting starts them at the size that they have at the papers' "
        "width. That hyperparameters carry over is not "
        f"tested here. {spread(len(config.seeds))}"
    )
