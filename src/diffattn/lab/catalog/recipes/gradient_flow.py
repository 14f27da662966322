"""Gradient-flow studies: gradients of small models over depth, width and λ_init in training."""

from collections.abc import Callable
from typing import Any

from diffattn.lab.catalog.recipes.plan import StudyPlan, softmax_run
from diffattn.lab.training.config import DataConfig

HEAD_DIM = 16


def smoke() -> StudyPlan:
    """Tiny models, 12 steps: checks that everything runs.

    Command: ``diffattn reproduce gradient-flow --scale smoke``. Hardware: 1 CPU core. Duration: a
    minute. Expected: at the first step DIFF V1 with head norm has larger gradients than without.
    """
    train = {"num_steps": 12, "warmup_steps": 4, "seq_len": 32, "batch_tokens": 64}
    phases = {"start": (1,), "late": (11, 12)}
    return _plan("smoke", train, 512, (32, 16, 64), (2, 1, 3), num_seeds=1, phases=phases)


def laptop() -> StudyPlan:
    """Width 64 to 256, depth 2 to 8, 60 steps, 3 seeds.

    Command: ``diffattn reproduce gradient-flow``. Hardware: 1 CPU core. Duration: about 10 minutes.
    Expected: at the first step the norm's Jacobian is far above 1, because at these widths the
    head's output is far smaller than 1 − λ_init. It falls with width and with training.
    """
    train = {"num_steps": 60, "warmup_steps": 10, "seq_len": 128, "batch_tokens": 512}
    phases = {
        "start": (1,),
        "warm-up": (8, 9, 10, 11, 12),
        "middle": (28, 29, 30, 31, 32),
        "end": (56, 57, 58, 59, 60),
    }
    return _plan("laptop", train, 1_024, (128, 64, 256), (4, 2, 8), num_seeds=3, phases=phases)


def study() -> StudyPlan:
    """Width 128 to 512, depth 4 to 16, 400 steps of 2,048 tokens, 5 seeds.

    Command: ``diffattn reproduce gradient-flow --scale study``. Hardware: 2 CPU cores. Duration:
    about a day of processor time; not run. Expected: not known, but in the widest model the norm's
    Jacobian should start nearer to 1.
    """
    train = {"num_steps": 400, "warmup_steps": 40, "seq_len": 256, "batch_tokens": 2_048}
    phases = {
        "start": (1,),
        "warm-up": (38, 39, 40, 41, 42),
        "middle": (196, 198, 200, 202, 204),
        "end": (392, 394, 396, 398, 400),
    }
    return _plan("study", train, 1_024, (256, 128, 512), (8, 4, 16), num_seeds=5, phases=phases)


def _plan(
    scale: str,
    train: dict[str, Any],
    vocab_size: int,
    widths: tuple[int, int, int],
    depths: tuple[int, int, int],
    *,
    num_seeds: int,
    phases: dict[str, tuple[int, ...]],
) -> StudyPlan:
    """Widths and depths list the base's value, then the smallest and the largest.

    ``phases``: name -> steps, counted from 1, that are measured and averaged.
    """
    (width, *other_widths), (depth, *other_depths) = widths, depths
    train = train | {"learning_rate": 2e-3, "final_learning_rate": 2e-4, "log_every": 1}
    train["evaluate_every"] = train["num_steps"]
    train["evaluation_tokens"] = 4 * train["batch_tokens"]
    # Small, because every run reads the whole validation split at its end.
    data = DataConfig(source="python", vocab_size=vocab_size, validation_fraction=0.002)
    model = {"num_hidden_layers": depth} | _width_settings(width)
    run = softmax_run(f"gradient-flow-{scale}", data, model, train)
    arms: dict[str, dict[str, Any]] = {"base": {}}
    arms |= {f"depth-{layers}": {"num_hidden_layers": layers} for layers in other_depths}
    arms |= {f"width-{size}": _width_settings(size) for size in other_widths}
    # At the papers' widths values have size 1 at the start: 0.02² × 2,500 = 1. So does this arm.
    arms["large-values"] = {"initializer_range": width**-0.5}
    return {"run": run, "seeds": tuple(range(num_seeds)), "arms": arms, "phases": phases}


def _width_settings(width: int) -> dict[str, Any]:
    """Model settings of a width. As in the papers, wider models have more heads of equal width."""
    heads = max(2, width // HEAD_DIM)
    return {
        "hidden_size": width,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": HEAD_DIM,
        "intermediate_size": max(64, round(width * 8 / 3 / 64) * 64),
        "embedding_multiplier": width**0.5,
    }


GRADIENT_FLOW: dict[str, Callable[[], StudyPlan]]
GRADIENT_FLOW = {"smoke": smoke, "laptop": laptop, "study": study}
