"""Every recipe by name."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from diffattn.errors import ConfigError, did_you_mean
from diffattn.lab.catalog.recipes import diff_transformer as paper
from diffattn.lab.catalog.recipes.comparison import COMPARISON
from diffattn.lab.catalog.recipes.plan import RunPlan, laptop_sibling
from diffattn.lab.training.config import RunConfig
from diffattn.models import presets

_LARGE: dict[str, tuple[str, Mapping[str, Callable[[], RunPlan]]]] = {
    "main pair": ("The DIFF paper's main models (Table 8)", paper.MAIN),
    "sizes": ("Loss over the size of the model (Figure 3a)", paper.SCALING),
    "tokens": ("Loss over training tokens (Figure 3b)", paper.TOKEN_SCALING),
    "long context": ("Then a context of 65,536 (Figures 4 and 5)", paper.LONG_CONTEXT),
    "ablations": ("Ablations of Table 6 and of the V2 note", paper.ABLATIONS),
    "Shared DIFF": ("Shared DIFF: rank, λ_init and norm", paper.SHARED_DIFF),
    "mathematics": ("Then mathematics, in two stages (Figure 9)", paper.MATH),
}
"""Experiment -> its title in lists, and its recipes."""
GROUPS: dict[str, Mapping[str, Callable[[], RunPlan]]] = {
    "comparison": COMPARISON,
    **{group: makes for group, (_, makes) in _LARGE.items()},
    **{
        f"{group}, laptop": {
            f"{name}-laptop": partial(
                laptop_sibling, make, 1_024 if group == "long context" else 256
            )
            for name, make in makes.items()
        }
        for group, (_, makes) in _LARGE.items()
    },
}
"""Experiment -> recipe name -> recipe. Every large recipe has a small sibling."""
TITLES = {
    "comparison": "Softmax models, whose twins 'diffattn reproduce text --scale NAME' compares",
    **{group: title for group, (title, _) in _LARGE.items()},
    "laptop": "Small siblings of the above, minutes on 2 CPU cores",
}
"""Experiment -> title in lists. All siblings share the title ``"laptop"``."""
RECIPES = {name: make for makes in GROUPS.values() for name, make in makes.items()}
SCALES = tuple(COMPARISON)
"""Recipes of softmax models, whose twins ``diffattn reproduce text`` compares."""
GPU_SCALES = ("workstation", "lease")


def default_folder(kind: str, scale: str) -> Path:
    """Folder of a study's files, unless the user names another."""
    return Path("runs") / (scale if kind == "text" else f"{kind}-{scale}")


def plan(name: str) -> RunPlan:
    """The settings of a recipe, without torch."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES)
        raise ConfigError(f"Unknown recipe {name!r}.{hint} See 'diffattn list recipes'.")
    return RECIPES[name]()


def plan_of_size(name: str) -> RunPlan:
    """The settings of a recipe, or of the papers' main training of a preset, without torch."""
    if name in RECIPES:
        return plan(name)
    if name not in presets.NAMES:
        hint = did_you_mean(name, [*presets.NAMES, *RECIPES])
        raise ConfigError(
            f"Unknown recipe or preset {name!r}.{hint} See 'diffattn list recipes' and "
            "'diffattn list presets'."
        )
    return paper.main_run(name, name)


def recipe(name: str) -> RunConfig:
    """The configuration of a recipe."""
    return plan(name).config()
