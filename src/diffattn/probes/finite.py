"""Is a model broken? Rows of numbers that say nothing, and the weights that may be why."""

from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.layers.saved_names import saved_name


def require_finite_logits(
    where: str, logits: Tensor, network: nn.Module, *, used: Tensor | None = None
) -> None:
    """Refuse logits that no token can be read off: a NaN, a +inf, or no finite entry.

    Single entries of −inf are allowed: some models suppress tokens so. The check is one maximum
    per row, which a NaN passes through; it reads the logits once, as every softmax does.

    Args:
        where: Whose they are, first in the message.
        logits: ``[..., vocab_size]``.
        network: Searched for the weights at fault, only once logits are refused.
        used: bool ``[...]``, which rows count; padding does not. Default: all.

    Raises:
        DiffAttnError: A row is broken.
    """
    peaks = logits.detach().amax(-1)
    if used is not None:
        peaks = peaks[used.to(peaks.device)]
    _require(where, "logits", peaks, network)


def require_finite_maps(where: str, maps: Tensor, network: nn.Module) -> None:
    """Refuse attention maps with a NaN or an infinity, for example of a λ that is NaN.

    Args:
        where: Whose they are, first in the message.
        maps: ``[..., keys]``.
        network: Searched for the weights at fault, only once maps are refused.

    Raises:
        DiffAttnError: A row is broken.
    """
    # Weights are of the size of 1, so that a sum overflows only if one of them has.
    _require(where, "attention maps", maps.detach().sum(-1), network)


def require_same_logits(must: str, logits: Tensor, expected: Tensor, network: Any) -> None:
    """Refuse logits of a model that differ by more than rounding.

    Args:
        must: Start of the message.
        logits: ``[..., vocab_size]``.
        expected: Shape of ``logits``. Entries of −inf are allowed: some models suppress tokens so.
        network: The model; its dtype and size set the budget.

    Raises:
        ConfigError: The logits differ.
    """
    config = network.config.get_text_config()
    # Each layer rounds a sum over the hidden size once more or less.
    budget = torch.finfo(network.dtype).eps * config.num_hidden_layers * config.hidden_size**0.5
    size = float(expected[expected.isfinite()].abs().max()) or 1.0
    either = expected.isfinite() | logits.isfinite()
    error = float((logits - expected)[either].abs().max()) / size
    if not error <= budget:
        raise ConfigError(f"{must}, got logits that differ by {error:.1e}.")


def _require(where: str, quantity: str, rows: Tensor, network: nn.Module) -> None:
    """One number per row, finite where the row is sound."""
    finite = rows.isfinite()
    if bool(finite.all()):
        return
    broken = rows[~finite]
    raise DiffAttnError(
        f"{where}: {quantity} must be finite, got {float(broken[0])} in {len(broken)} of "
        f"{rows.numel()} rows{_reason(network)}."
    )


def _reason(network: nn.Module) -> str:
    """The first weight that is not finite, or that all are and the arithmetic is at fault."""
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            return f" (weight {saved_name(name)} holds NaN or infinity)"
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in network.parameters()}
    return f" (all weights are finite; computed in {' and '.join(sorted(dtypes))})"
