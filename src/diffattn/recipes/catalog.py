"""Every recipe by name."""

from collections.abc import Callable

from diffattn.errors import ConfigError, did_you_mean
from diffattn.models import presets
from diffattn.recipes.diff_transformer_3b import diff_transformer_3b, main_run
from diffattn.recipes.diff_transformer_scaling import SCALING
from diffattn.recipes.laptop import laptop
from diffattn.recipes.plan import RunPlan
from diffattn.recipes.smoke import smoke
from diffattn.recipes.study import study
from diffattn.training.config import RunConfig

RECIPES: dict[str, Callable[[], RunPlan]] = {
    "smoke": smoke,
    "laptop": laptop,
    "study": study,
    "diff-transformer-3b": diff_transformer_3b,
    **SCALING,
}
SCALES = ("smoke", "laptop", "study")
"""Recipes of softmax models, whose twins ``diffattn reproduce`` compares."""


def plan(name: str) -> RunPlan:
    """The settings of a recipe, without torch.

    Raises:
        ConfigError: No such recipe.
    """
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES)
        raise ConfigError(f"Unknown recipe {name!r}.{hint} See 'diffattn list recipes'.")
    return RECIPES[name]()


def plan_of_size(name: str) -> RunPlan:
    """The settings of a recipe, or of the papers' main training of a preset, without torch.

    Raises:
        ConfigError: Neither a recipe nor a preset.
    """
    if name in RECIPES or name not in presets.names():
        return plan(name)
    return main_run(name, name)


def recipe(name: str) -> RunConfig:
    """The configuration of a recipe.

    Raises:
        ConfigError: No such recipe.
    """
    return plan(name).config()
