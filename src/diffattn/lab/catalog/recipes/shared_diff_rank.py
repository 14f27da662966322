"""Shared DIFF at several ranks and λ_init, and with its norm on the map; its paper tests none."""

from dataclasses import replace
from functools import partial

from diffattn.lab.catalog.recipes.diff_transformer import scaling
from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.models.twins import twin

# Ranks 2 and 4 would have the same laptop sibling as rank 8, of rank 1. The studies train them.
_RANKS = (8, 16, 32, 64)
_LAMBDA_INITS = {"": None, "-lambda-0.8": 0.8, "-lambda-0.5": 0.5}


def shared_diff(rank: int, constant: str) -> RunPlan:
    """Shared DIFF at 1.4B and 10B tokens with another rank of its updates, or a constant λ_init.

    Command: ``diffattn train shared-diff-r16 --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Tokens:
    10B. Expected: not known; the paper prints neither ranks nor their losses. From rank d/2 = 64
    on, the updates and their base have at least as many parameters as V1. The ranks and the
    training of the scaling study are our choice. The FFN is widened to V1's parameter count.

    Source: arXiv:2501.17900, Shared DIFF attention (Q and K projections).

    Args:
        constant: Ending of the recipe's name for a constant λ_init; empty for the default.
    """
    run, lambda_init = scaling("1.4b"), _LAMBDA_INITS[constant]
    model = twin(run.model, "shared_diff", shared_rank=rank, lambda_init=lambda_init).config
    return replace(run, name=f"shared-diff-r{rank}{constant}", model=model)


def shared_diff_map_norm() -> RunPlan:
    """Shared DIFF at 1.4B and 10B tokens, with its norm on the difference of the maps.

    Rows of that map are normalised in place of the heads' outputs. Only the reference backend runs
    it, as it holds the maps: by ``diffattn plan``, an H200 has room for 2 sequences at a time.

    Command: ``diffattn train shared-diff-map-norm --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Tokens:
    10B. Expected: not known. The paper says that the norm acts on attention scores; the type
    ``shared_diff`` takes them for the heads' outputs. The paper's losses do not decide it.

    Source: arXiv:2501.17900, Shared DIFF attention (the norm).
    """
    run = scaling("1.4b")
    model = twin(run.model, "shared_diff_map_norm").config
    train = replace(run.train, micro_batch_sequences=2)
    return replace(run, name="shared-diff-map-norm", model=model, train=train)


SHARED_DIFF = {
    f"shared-diff-r{rank}{constant}": partial(shared_diff, rank, constant)
    for rank in _RANKS
    for constant in _LAMBDA_INITS
} | {"shared-diff-map-norm": shared_diff_map_norm}
