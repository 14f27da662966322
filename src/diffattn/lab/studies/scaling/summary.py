"""From finished runs to the fits of a scaling study, its equivalents and its limits in words."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from diffattn.errors import DiffAttnError
from diffattn.lab.catalog.models import BASELINE, FLOOR, UNIFORM_SECOND, VARIANTS, type_name
from diffattn.lab.records.study_results import ScalingAxis, ScalingPoint, ScalingResults
from diffattn.lab.report.page.wording import listing
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.scaling import equivalence_of, fits_of
from diffattn.lab.studies.limits import heads_below, spread
from diffattn.lab.studies.scaling.config import ScalingStudyConfig
from diffattn.lab.studies.scaling.verdict import verdict
from diffattn.models.accounting import parameter_count
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig

AXES = ("parameters", "tokens")
FORM = "offset"
"""The paper's form: L = a x^-b + c."""
SECOND_FORM = "kaplan"
"""L = a x^-b, for all models along an axis if one model has no fit of the paper's form."""
Models = Mapping[tuple[str, float], DiffTransformerConfig]
"""Name and width -> configuration of the model."""


def scaling_results(
    config: ScalingStudyConfig, losses: Mapping[str, float | None]
) -> ScalingResults:
    """Points, fits and equivalents along both axes. Models with a diverged run are left out.

    Args:
        losses: Name of a run -> its validation loss; ``None`` if it diverged.
    """
    places = {*config.sizes, *config.lengths}
    lost = {
        name: [
            run
            for place in places
            for seed in config.seeds
            if losses[run := config.run_name(name, *place, seed)] is None
        ]
        for name in config.types
    }
    for name in (BASELINE, FLOOR):
        if lost.get(name):
            raise DiffAttnError(
                "reproduce: every run without a second map must end with a loss, got none from "
                f"{', '.join(sorted(lost[name]))}. The others are kept. Choose another --out and "
                "--set a lower train.learning_rate."
            )
    left_out = [name for name in config.types if lost[name]]
    config = replace(config, types=tuple(name for name in config.types if not lost[name]))
    models = {
        (name, width): VARIANTS[name].twin(config.model_at(width), config.match).config
        for width in config.widths
        for name in config.types
    }
    axes = {axis: _axis_results(config, models, losses, axis) for axis in AXES}
    apart = f"Left out, as a run diverged: {listing(map(type_name, left_out))}. "
    return {
        "schema": 1,
        "kind": "scaling",
        "protocol": {"name": "scaling_study", "version": 2},
        "scale": config.scale,
        "extrapolate": config.extrapolate,
        "axes": axes,
        "verdict": verdict(axes),
        "statement": (apart if left_out else "") + statement(config, models.values()),
        "complete": True,
    }


def _axis_results(
    config: ScalingStudyConfig, models: Models, losses: Mapping[str, float | None], axis: str
) -> ScalingAxis:
    places = config.sizes if axis == "parameters" else config.lengths
    points = {
        name: [_point(config, models, losses, axis, name, *place) for place in places]
        for name in config.types
    }
    groups = {
        name: [(point["x"], loss) for point in of_type for loss in point["loss"]["values"]]
        for name, of_type in points.items()
    }
    laws, fits = fits_of(groups, form=FORM)
    form, unbent = FORM, [name for name in fits if name != FLOOR and fits[name]["refused"]]
    if unbent:
        form = SECOND_FORM
        laws, fits = fits_of(groups, form=form)
    equivalents: Any = [
        equivalence_of(point["x"], name, other, laws, extrapolate=config.extrapolate)
        | {"point": index}
        for name, other in _pairs(config)
        for index, point in enumerate(points[name])
    ]
    types: Any = {name: {"points": points[name], "fit": fits[name]} for name in config.types}
    return {
        "form": form,
        "unbent": unbent,
        "read_at": len(places) // 2,
        "types": types,
        "equivalents": equivalents,
    }


def _pairs(config: ScalingStudyConfig) -> Iterator[tuple[str, str]]:
    """Every model with softmax, and every differential type with the uniform second map."""
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
    losses: Mapping[str, float | None],
    axis: str,
    name: str,
    width: float,
    budget: float,
) -> ScalingPoint:
    runs = [config.run_name(name, width, budget, seed) for seed in config.seeds]
    values = [loss for run in runs if (loss := losses[run]) is not None]
    parameters, tokens = parameter_count(models[name, width]), config.tokens_at(budget)
    loss_of_seeds: Any = {"values": values, **mean_interval(values).recorded()}
    return {
        "x": parameters if axis == "parameters" else tokens,
        "parameters": parameters,
        "tokens": tokens,
        "runs": runs,
        "loss": loss_of_seeds,
    }


def statement(config: ScalingStudyConfig, models: Iterable[DiffTransformerConfig]) -> str:
    """State the limits of the study."""
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
