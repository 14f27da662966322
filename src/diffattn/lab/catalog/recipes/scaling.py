"""Scaling studies: small models of several sizes, and one size with several budgets of tokens."""

from collections.abc import Callable

from diffattn.lab.catalog.recipes.plan import RunPlan, StudyPlan, softmax_run
from diffattn.lab.training.config import DataConfig

_CONTROLS = ("none", "softmax_minus_mean")
"""No attention, and the leading control on text: softmax minus 0.7 times the mean value."""


def smoke() -> StudyPlan:
    """Tiny models of four sizes and budgets, about 8 steps: checks that everything runs.

    Command: ``diffattn reproduce scaling --scale smoke``. Hardware: 2 CPU cores. Duration: under a
    minute. Expected: no fit, or fits with wide intervals.
    """
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 4, "head_dim": 4}
    run = _run("smoke", 512, size, {"num_steps": 8, "batch_tokens": 64, "seq_len": 32})
    factors = (0.5, 1.0, 1.5, 2.0)
    types = ("softmax", "diff", *_CONTROLS)
    return {"run": run, "seeds": (0,), "widths": factors, "budgets": factors, "types": types}


def laptop() -> StudyPlan:
    """Five sizes over a factor of 15, four budgets over a factor of 8, 2 seeds.

    Command: ``diffattn reproduce scaling``. Hardware: 2 CPU cores. Duration: an hour of processor
    time. Expected: the committed records. The largest model has 5 DIFF heads. The papers' smallest
    model has 8 DIFF heads and a thousand times the parameters.
    """
    size = {"hidden_size": 64, "num_hidden_layers": 3, "num_heads": 4, "head_dim": 16}
    run = _run("laptop", 1_024, size, {"num_steps": 640, "batch_tokens": 512, "seq_len": 128})
    return {
        "run": run,
        "seeds": (0, 1),
        "widths": (0.5, 1.0, 1.5, 2.0, 2.5),
        "budgets": (0.25, 0.5, 1.0, 2.0),
        "types": ("softmax", "diff", "diff_v2", "shared_diff", *_CONTROLS),
    }


def _run(scale: str, vocab_size: int, size: dict[str, int], pace: dict[str, int]) -> RunPlan:
    hidden_size, num_steps = size["hidden_size"], pace["num_steps"]
    peak = 3e-3 * (128 / hidden_size) ** 0.5
    train = pace | {
        "learning_rate": peak,
        "final_learning_rate": peak / 10,
        "warmup_steps": num_steps // 20,
        "evaluate_every": num_steps,
        "evaluation_tokens": 2 * pace["seq_len"],
    }
    # Small, because every run reads the whole validation split at its end.
    data = DataConfig(source="python", vocab_size=vocab_size, validation_fraction=0.01)
    model = size | {"intermediate_size": hidden_size * 5 // 2}
    return softmax_run(f"scaling-{scale}", data, model, train)


SCALING_STUDIES: dict[str, Callable[[], StudyPlan]] = {"smoke": smoke, "laptop": laptop}
