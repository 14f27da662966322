"""Check logits and attention maps for NaN and infinity, and name the weights at fault."""

from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.layers.saved_names import saved_name


def require_finite_logits(
    where: str, logits: Tensor, network: nn.Module, *, used: Tensor | None = None
) -> None:
    """Raise if a row of logits has a NaN, a +inf, or no finite entry.

    Some entries may be −inf: some models suppress tokens this way. The check reads the logits once,
    for the maximum of each row, which is NaN if an entry is.

    Args:
        where: Text that begins the message.
        logits: ``[..., vocab_size]``.
        network: The model. After a failed check its weights are searched for NaN and infinity.
        used: bool ``[...]``, True at rows to check, for example not at padding. Default: all.

    Raises:
        DiffAttnError: A row fails the check.
    """
    peaks = logits.detach().amax(-1)
    if used is not None:
        peaks = peaks[used.to(peaks.device)]
    _require(where, "logits", peaks, network)


def require_finite_maps(where: str, maps: Tensor, network: nn.Module) -> None:
    """Raise if attention maps hold a NaN or an infinity, for example from a λ that is NaN.

    Args:
        where: Text that begins the message.
        maps: ``[..., keys]``.
        network: The model. After a failed check its weights are searched for NaN and infinity.

    Raises:
        DiffAttnError: A row holds NaN or infinity.
    """
    # Attention weights are about 1 or less, so a sum is not finite only if an entry is not.
    _require(where, "attention maps", maps.detach().sum(-1), network)


def require_same_logits(must: str, logits: Tensor, expected: Tensor, network: Any) -> None:
    """Raise if logits differ from the expected ones by more than rounding.

    Args:
        must: Start of the message.
        logits: ``[..., vocab_size]``.
        expected: Shape of ``logits``. Where both are −inf, they count as equal.
        network: The model; its dtype, depth and width set the allowed difference.

    Raises:
        ConfigError: The logits differ.
    """
    config = network.config.get_text_config()
    # Assumption: each layer adds about one rounding error of a sum over the hidden size.
    budget = torch.finfo(network.dtype).eps * config.num_hidden_layers * config.hidden_size**0.5
    size = float(expected[expected.isfinite()].abs().max()) or 1.0
    either = expected.isfinite() | logits.isfinite()
    error = float((logits - expected)[either].abs().max()) / size
    if not error <= budget:
        raise ConfigError(f"{must}, got logits that differ by {error:.1e}.")


def _require(where: str, quantity: str, rows: Tensor, network: nn.Module) -> None:
    """Raise unless ``rows``, one number per row of the quantity, are all finite."""
    finite = rows.isfinite()
    if bool(finite.all()):
        return
    broken = rows[~finite]
    raise DiffAttnError(
        f"{where}: {quantity} must be finite, got {float(broken[0])} in {len(broken)} of "
        f"{rows.numel()} rows{_reason(network)}."
    )


def _reason(network: nn.Module) -> str:
    """Text for the message: the first weight that is not finite, or that all weights are finite."""
    for name, weight in network.named_parameters():
        if not weight.isfinite().all():
            return f" (weight {saved_name(name)} holds NaN or infinity)"
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in network.parameters()}
    return f" (all weights are finite; computed in {' and '.join(sorted(dtypes))})"
