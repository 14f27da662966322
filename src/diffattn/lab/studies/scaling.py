"""Scaling studies: every model at every size, one size at every token budget, and the fits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any

from diffattn.errors import DiffAttnError
from diffattn.lab.catalog.models import BASELINE, FLOOR, UNIFORM_SECOND, VARIANTS, type_name
from diffattn.lab.catalog.recipes.scaling import SCALING_STUDIES
from diffattn.lab.records.fields import require
from diffattn.lab.records.study_results import (
    Equivalent,
    ScalingAxis,
    ScalingPoint,
    ScalingResults,
    ScalingVerdict,
)
from diffattn.lab.records.text_results import Outcome
from diffattn.lab.report.page.wording import listing, number
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.power_law import equivalence_of, equivalent_at, fits_of
from diffattn.lab.studies.limits import MARGIN, heads_below, spread
from diffattn.lab.studies.study import FixedStudy, PlannedRun
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import parameter_count


@dataclass(frozen=True, kw_only=True)
class ScalingStudyConfig(FixedStudy):
    """The runs of a scaling study. ``base`` lies on both axes."""

    kind: str = "scaling"
    widths: tuple[float, ...]
    """Hidden sizes divided by the base's. Heads and the FFN grow in proportion."""
    budgets: tuple[float, ...]
    """Numbers of steps divided by the base's. Each budget has its own full schedule."""
    types: tuple[str, ...]
    extrapolate: bool = False
    """Whether equivalents are read beyond the points of the fits. Not part of ``study.json``, so
    that a finished study can be judged again with another value."""

    @property
    def places(self) -> dict[str, list[tuple[float, float]]]:
        """Axis -> pairs of width and budget along it, rising."""
        sizes = [(width, 1.0) for width in sorted(self.widths)]
        return {"parameters": sizes, "tokens": [(1.0, budget) for budget in sorted(self.budgets)]}

    def model_at(self, width: float) -> DiffTransformerConfig:
        """The softmax model of a size; refused if heads or widths would not be whole."""
        base, whole = self.base.model, {}
        for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads"):
            size = getattr(base, name) * width
            must = f"{name} must be whole at every width, as at width {width:g}"
            require("ScalingStudyConfig", size == int(size), must, size)
            whole[name] = int(size)
        multiplier = base.embedding_multiplier * width**0.5  # if √hidden_size, it remains so
        settings = base.settings() | whole | {"embedding_multiplier": multiplier}
        return DiffTransformerConfig(**settings)

    def run_name(self, name: str, width: float, budget: float, seed: int) -> str:
        """Name of a run, unique within its study."""
        hidden, steps = self.base.model.hidden_size * width, self.steps_at(budget)
        return f"{name}-h{hidden:g}-s{steps}-seed{seed}"

    def steps_at(self, budget: float) -> int:
        """Training steps of a budget."""
        return round(self.base.train.num_steps * budget)

    def planned_runs(self) -> list[PlannedRun]:
        """The runs, seed by seed."""
        planned = []
        for seed in self.seeds:
            for width, budget in dict.fromkeys(chain(*self.places.values())):
                base, steps = self.model_at(width), self.steps_at(budget)
                train = self.base.train.at(
                    # Equal for all types and budgets. The paper halves it at 1.6 times the width.
                    float(self.base.train.learning_rate * width**-0.5),
                    seed,
                    num_steps=steps,
                    evaluate_every=steps,
                    warmup_steps=round(self.base.train.warmup_steps * budget),
                )
                for name in self.types:
                    twin = VARIANTS[name].twin(base, self.match)
                    run_name = self.run_name(name, width, budget, seed)
                    run = replace(self.base, name=run_name, model=twin.config, train=train)
                    planned.append(PlannedRun.from_twin(run, twin, records_divergence=True))
        return planned

    def resolved(self) -> dict[str, Any]:
        """All settings as plain values, without ``extrapolate``."""
        return {name: x for name, x in super().resolved().items() if name != "extrapolate"}


scaling_study = partial(ScalingStudyConfig.planned, SCALING_STUDIES)
Models = Mapping[tuple[str, float], DiffTransformerConfig]
"""Name and width -> configuration of the model."""


def scaling_results(
    config: ScalingStudyConfig, losses: Mapping[str, float | None]
) -> ScalingResults:
    """Points, fits and equivalents along both axes. Models with a diverged run are left out.

    ``losses``: name of a run -> its validation loss; ``None`` if it diverged.
    """
    lost = {
        name: {
            run
            for place in chain(*config.places.values())
            for seed in config.seeds
            if losses[run := config.run_name(name, *place, seed)] is None
        }
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
    axes = {axis: _axis_results(config, models, losses, axis) for axis in config.places}
    apart = f"Left out, as a run diverged: {listing(map(type_name, left_out))}. "
    return {
        "schema": 1,
        "kind": "scaling",
        "protocol": {"name": "scaling_study", "version": 2},
        "scale": config.scale,
        "extrapolate": config.extrapolate,
        "axes": axes,
        "verdict": verdict(axes),
        "statement": (apart if left_out else "") + _statement(config, models.values()),
        "complete": True,
    }


def _axis_results(
    config: ScalingStudyConfig, models: Models, losses: Mapping[str, float | None], axis: str
) -> ScalingAxis:
    places = config.places[axis]
    points: dict[str, list[ScalingPoint]] = {name: [] for name in config.types}
    for name, (width, budget) in product(config.types, places):
        runs = [config.run_name(name, width, budget, seed) for seed in config.seeds]
        values = [loss for run in runs if (loss := losses[run]) is not None]
        parameters = parameter_count(models[name, width])
        tokens = config.steps_at(budget) * config.base.train.batch_tokens
        loss_of_seeds: Any = {"values": values, **mean_interval(values).recorded()}
        points[name].append(
            {
                "x": parameters if axis == "parameters" else tokens,
                "parameters": parameters,
                "tokens": tokens,
                "runs": runs,
                "loss": loss_of_seeds,
            }
        )
    groups = {
        name: [(point["x"], loss) for point in of_type for loss in point["loss"]["values"]]
        for name, of_type in points.items()
    }
    form = "offset"  # the paper's: L = a x^-b + c
    laws, fits = fits_of(groups, form=form)
    unbent = [name for name in fits if name != FLOOR and fits[name]["refused"]]
    if unbent:
        form = "kaplan"  # L = a x^-b, for all models along an axis if one has no offset fit
        laws, fits = fits_of(groups, form=form)
    pairs = [(name, BASELINE) for name in config.types if name != BASELINE]
    if UNIFORM_SECOND in config.types:
        differential = (name for name in config.types if VARIANTS[name].role == "type")
        pairs += [(name, UNIFORM_SECOND) for name in differential]
    equivalents: Any = [
        equivalence_of(point["x"], name, other, laws, extrapolate=config.extrapolate)
        | {"point": index}
        for name, other in pairs
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


def _statement(config: ScalingStudyConfig, models: Iterable[DiffTransformerConfig]) -> str:
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


_NEEDS = {"parameters": "parameters", "tokens": "training tokens"}


# How many parameters or tokens a model needs for the loss of another.
_FEWER, _MORE = "fewer are needed by", "more are needed by"
_SAME, _UNKNOWN = "no difference is shown for", "nothing can be said of"


def verdict(axes: Mapping[str, ScalingAxis]) -> ScalingVerdict:
    """Judge how much every type needs for equal loss, at the point ``read_at`` of each axis.

    An axis is uninformative if softmax attention does not beat no attention at that point, or if no
    attention does not need more. Then differences need not be due to attention.
    """
    verdicts = {name: _axis_verdict(name, axis) for name, axis in axes.items()}
    sentences = [_headline(axes, verdicts), *(entry["sentence"] for entry in verdicts.values())]
    return {"sentence": " ".join(sentences), "axes": verdicts}


def _headline(axes: Mapping[str, ScalingAxis], verdicts: Mapping[str, Outcome]) -> str:
    """Sentence on the types that need less than the Transformer and the uniform second map."""
    informative = [name for name in axes if verdicts[name]["informative"]]
    if not informative:
        return "Nothing can be said of attention types."
    savings = []
    for name in informative:
        types = []
        for kind in axes[name]["types"]:
            rows = [equivalent_at(axes[name], kind, x) for x in (BASELINE, UNIFORM_SECOND)]
            if VARIANTS[kind].role == "type" and all(_need(row) == _FEWER for row in rows):
                types.append(type_name(kind))
        if types:
            savings.append(f"fewer {_NEEDS[name]} are needed by {listing(types)}")
    against = "the Transformer and a control whose second map sees nothing"
    if savings:
        return f"For the loss of {against}, {listing(savings)}."
    needs = " or ".join(f"fewer {_NEEDS[name]}" for name in informative)
    return f"No differential type is shown to need {needs} than both {against}."


def _axis_verdict(name: str, axis: ScalingAxis) -> Outcome:
    reason = _uninformative(axis)
    if reason:
        sentence = f"Over {name}, uninformative about attention types: {reason}."
        return {"informative": False, "sentence": sentence}
    shares: dict[str, list[str]] = {need: [] for need in (_FEWER, _MORE, _SAME, _UNKNOWN)}
    for model in axis["types"]:
        if model not in (BASELINE, FLOOR):
            row = equivalent_at(axis, model, BASELINE)
            shares[_need(row)].append(_format_share(axis, model, row))
    head = f"For equal loss, of the Transformer's {_NEEDS[name]} (95 % interval"
    if axis["unbent"]:
        names = listing(map(type_name, axis["unbent"]))
        head += f"; by fits of a x⁻ᵇ, as for {names} none of a x⁻ᵇ + c was possible"
    parts = [f"{need} {listing(models)}" for need, models in shares.items() if models]
    return {"informative": True, "sentence": f"{head}): {'; '.join(parts)}."}


def _uninformative(axis: ScalingAxis) -> str:
    """The reason why an axis is uninformative about types; empty if it is informative."""
    types = axis["types"]
    floor, softmax = (
        types[name]["points"][axis["read_at"]]["loss"]["mean"] for name in (FLOOR, BASELINE)
    )
    losses = f"({number(softmax, 3)} against {number(floor, 3)} nats)"
    if softmax >= floor:
        return f"where it is read, softmax attention does not beat no attention {losses}"
    row = equivalent_at(axis, FLOOR, BASELINE)
    if types[FLOOR]["fit"]["refused"] and floor - softmax < MARGIN:
        return (
            f"{type_name(FLOOR)} has no fit, and softmax attention beats it by less than {MARGIN} "
            f"nats where it is read {losses}"
        )
    if _need(row) in (_MORE, _UNKNOWN):  # unknown: outside softmax's points, or no fit
        return ""
    share = _format_share(axis, FLOOR, row)
    return f"by its fits not even {share} is shown to need more than the Transformer"


def _need(row: Equivalent | None) -> str:
    if row is None or row["refused"]:
        return _UNKNOWN
    low, high = row["low"], row["high"]
    if low is None or high is None or low <= 1 <= high:
        return _SAME
    return _FEWER if high < 1 else _MORE


def _format_share(axis: ScalingAxis, name: str, row: Equivalent | None) -> str:
    """A model with its share of the Transformer's needs, and whether a control needs as little."""
    is_control = VARIANTS[name].role == "control"
    label = f"the control {type_name(name)}" if is_control else type_name(name)
    if row is None or row["ratio"] is None:
        return f"{label} ({'not compared' if row is None else row['refused']})"
    text = f"{number(100 * row['ratio'], 0)} %"
    if row["low"] is None or row["high"] is None:
        text += ", no interval"
    else:
        text += f", {number(100 * row['low'], 0)} to {number(100 * row['high'], 0)} %"
    if row["extrapolated"]:
        text += ", extrapolated"
    if _need(row) == _FEWER and name != UNIFORM_SECOND:
        against = equivalent_at(axis, name, UNIFORM_SECOND)
        if against is None:
            text += ", without a control that would explain it"
        elif _need(against) != _FEWER:
            text += f", not shown to need fewer than {type_name(UNIFORM_SECOND)}"
    return f"{label} ({text})"
