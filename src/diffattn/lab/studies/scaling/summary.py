"""From finished runs to the scaling study's fits, and where one type does what another needs."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FLOOR, UNIFORM_SECOND, VARIANTS
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.scaling import equivalence_of, fits_of
from diffattn.lab.studies.limits import heads_below, spread
from diffattn.lab.studies.scaling.config import FORM, SECOND_FORM, ScalingStudyConfig
from diffattn.lab.studies.scaling.verdict import verdict
from diffattn.models.accounting import parameter_count
from diffattn.models.config.configuration_diff_transformer import DiffTransformerConfig

AXES = ("parameters", "tokens")
Models = Mapping[tuple[str, float], DiffTransformerConfig]
"""Name and width to model."""


def scaling_results(config: ScalingStudyConfig, losses: Mapping[str, float]) -> dict[str, Any]:
    """Points, fits and equivalents along both axes.

    Args:
        config: The study.
        losses: Name of every run to its validation loss.
    """
    models = {
        (name, width): VARIANTS[name].twin(config.model_at(width), config.match).config
        for width in config.widths
        for name in config.types
    }
    axes = {axis: _along(config, models, losses, axis) for axis in AXES}
    return {
        "schema": 1,
        "kind": "scaling",
        "protocol": {"name": "scaling_study", "version": 2},
        "scale": config.scale,
        "extrapolate": config.extrapolate,
        "axes": axes,
        "verdict": verdict(axes),
        "statement": statement(config, models.values()),
        "complete": True,
    }


def _along(
    config: ScalingStudyConfig,
    models: Models,
    losses: Mapping[str, float],
    axis: str,
) -> dict[str, Any]:
    """Everything of one axis."""
    where = config.sizes if axis == "parameters" else config.lengths
    types: dict[str, dict[str, Any]] = {
        name: {"points": [_point(config, models, losses, axis, name, *at) for at in where]}
        for name in config.types
    }
    groups = {
        name: [(point["x"], loss) for point in of["points"] for loss in point["loss"]["values"]]
        for name, of in types.items()
    }
    laws, fits = fits_of(groups, form=FORM)
    form, unbent = FORM, [name for name in fits if name != FLOOR and fits[name]["refused"]]
    if unbent:
        form = SECOND_FORM
        laws, fits = fits_of(groups, form=form)
    for name, of in types.items():
        of["fit"] = fits[name]
    middle = len(where) // 2
    return {
        "form": form,
        "unbent": unbent,
        "read_at": middle,
        "types": types,
        "equivalents": [
            equivalence_of(point["x"], name, other, laws, extrapolate=config.extrapolate)
            | {"point": index}
            for name, other in _pairs(config)
            for index, point in enumerate(types[name]["points"])
        ],
    }


def _pairs(config: ScalingStudyConfig) -> Iterator[tuple[str, str]]:
    """Every model with softmax, and every differential type with the second map that is blind."""
    for name in config.types:
        if name != BASELINE:
            yield name, BASELINE
    if UNIFORM_SECOND in config.types:
        for name in config.types:
            if VARIANTS[name].role == "type":
                yield name, UNIFORM_SECOND


def _point(
    config: ScalingStudyConfig,
    models: Models,
    losses: Mapping[str, float],
    axis: str,
    name: str,
    width: float,
    budget: float,
) -> dict[str, Any]:
    runs = [config.run_name(name, width, budget, seed) for seed in config.seeds]
    values = [losses[run] for run in runs]
    parameters, tokens = parameter_count(models[name, width]), config.tokens_at(budget)
    return {
        "x": parameters if axis == "parameters" else tokens,
        "parameters": parameters,
        "tokens": tokens,
        "runs": runs,
        "loss": {"values": values, **mean_interval(values).recorded()},
    }


def statement(config: ScalingStudyConfig, models: Iterable[DiffTransformerConfig]) -> str:
    """What this study can and cannot show, in plain words."""
    size = heads_below(models)
    return (
        f"{size}The sizes differ in width, not in depth. No learning rate was tuned: the peak "
        "falls with the root of the width and is the same for all types and budgets, a rule "
        "written down before the first run; a type that wants another rate looks worse than it "
        "is. A fit says nothing of sizes and budgets beyond its points; the published curves begin "
        "at 830 million parameters. Intervals of fits have the degrees of freedom of sizes "
        "or budgets, whatever the number of seeds, and take these for independent, though runs of "
        f"a seed share their data order. {spread(len(config.seeds))}"
    )
