"""The comparisons of every scale."""

from collections.abc import Sequence
from typing import Any

from diffattn.lab.catalog.models import BASELINE, FEW, GATE, MEMBERS, RANKS_ALONE, SWEPT
from diffattn.lab.catalog.recipes.catalog import SCALES, recipe
from diffattn.lab.studies.text.comparison import ComparisonConfig
from diffattn.lab.training.settings import apply_settings, require_unset
from diffattn.models.config.known_names import check_known

_SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"seeds": (0,), "variants": SWEPT},
    "laptop": {"seeds": (0,), "variants": FEW},
    "study": {
        "seeds": (0, 1, 2, 3, 4),
        "variants": MEMBERS["text"],
        "learning_rates": (1e-3, 2e-3, 4e-3, 8e-3),
        "whole_rates": 2,
    },
    "workstation": {
        "seeds": (0, 1, 2),
        "variants": MEMBERS["text"],
        "learning_rates": (3e-4, 6e-4, 1.2e-3, 2.4e-3),
        "whole_rates": 2,
    },
    "lease": {
        "seeds": (0, 1, 2),
        "variants": (BASELINE, GATE, "diff_v2", "diff", "shared_diff"),
        "later": ("shared_diff",),
        "learning_rates": (7.5e-4, 1.5e-3, 3e-3),
        "own_rates": True,
    },
}
"""Scale -> fields of its comparison besides the recipe."""
_ENGINE = {"lease": ("engine.save_every=1080", "engine.keep_checkpoints=1")}
"""Scale -> settings that do not change results. A checkpoint of a lease has 350 MB. A run that is
stopped writes a checkpoint anyway, so that regular checkpoints only matter after a kill."""
_RATE_FACTORS = {"study": {"diff": 0.5, "shared_diff": 0.5}}
"""For ablations and ranks: factors of the base's rate, chosen by the sweep of the comparison on
text. At the base's rate Shared DIFF does not pass the induction phase in time: its rows would be
uninformative. The factors stay if settings change the model or the rate; the statement says so."""
_SEEDS_OF_ROWS = {"smoke": 1, "laptop": 3}
_SEEDS_OF_LONG_ROWS = 5
"""Number of seeds for ablations and ranks at all other scales, as in the committed record."""


def comparison(
    scale: str,
    *,
    kind: str = "text",
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
    match: str = "params",
) -> ComparisonConfig:
    """A comparison of a scale.

    Arguments are those of :func:`diffattn.reproduce`.

    Raises:
        ConfigError: An unknown scale, kind or setting.
    """
    check_known("reproduce", "scale", scale, SCALES)
    check_known("reproduce", "kind", kind, MEMBERS)
    fields = _SCALES[scale]
    if kind != "text":
        count = _SEEDS_OF_ROWS.get(scale, _SEEDS_OF_LONG_ROWS)
        each = tuple(range(count)) if seeds is None else seeds
        alone = kind == "rank" and scale not in _SEEDS_OF_ROWS
        fields = {
            "variants": RANKS_ALONE if alone else MEMBERS[kind],
            "seeds": tuple(each),
            "fewer_seeds": max(1, len(each)),
            "rate_factors": _RATE_FACTORS.get(scale, {}),
        }
    elif seeds is not None:
        fields = fields | {"seeds": tuple(seeds)}
    if fields.get("learning_rates"):
        require_unset(settings, "train.learning_rate", f"scale {scale!r} sweeps the rates it tries")
    base = apply_settings(recipe(scale), [*_ENGINE.get(scale, ()), *settings])
    return ComparisonConfig(scale=scale, kind=kind, base=base, match=match, **fields)
