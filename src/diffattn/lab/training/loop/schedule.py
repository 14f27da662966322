"""Optimizer groups and learning-rate schedule of the papers."""

import torch
from torch import nn

from diffattn.lab.training.config import TrainConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two groups: matrices with weight decay; λ vectors, norms and biases without.

    Source: arXiv:2410.05258v2, Appendix D (recipe of StableLM-3B-4E1T). Parameters with fewer than
    two axes are not decayed.
    """
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def learning_rate_factor(step: int, config: TrainConfig) -> float:
    """Learning rate at a step as a share of the peak: linear warm-up, linear decay to the floor.

    Source: arXiv:2410.05258v2, Appendix D (linear decay with warm-up). Steps done count from 0,
    where the factor is above 0.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    floor = config.final_learning_rate / config.learning_rate
    decay_steps = max(1, config.num_steps - 1 - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / decay_steps)
    return 1.0 - (1.0 - floor) * done


def optimizer_and_scheduler(
    model: nn.Module, config: TrainConfig
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW over :func:`parameter_groups`, with :func:`learning_rate_factor`."""
    optimizer = torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta_1, config.beta_2),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, config)
    )
    return optimizer, scheduler
