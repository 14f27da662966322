"""Check logits and attention maps for NaN and infinity, and name the weights at fault."""

from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.layers.saved_names import saved_name


def require_finite_logits(
    where: str, logits: Tensor, network: nn.Module, *, used: Tensor | None = None
) -> None:
    """Raise if a row of logits ``[..., vocab_size]`` has a NaN, a +inf, or no finite entry.

    Some entries may be −inf: some models suppress tokens this way. The check reads the logits once,
    for the maximum of each row, which is NaN if an entry is. ``used`` is bool ``[...]``, True at
    rows to check, for example not at padding.
    """
    peaks = logits.detach().amax(-1)
    if used is not None:
        peaks = peaks[used.to(peaks.device)]
    _require(where, "logits", peaks, network)


def require_finite_maps(where: str, maps: Tensor, network: nn.Module) -> None:
    """Raise if attention maps ``[..., keys]`` hold a NaN or an infinity, for example of λ."""
    # Attention weights are about 1 or less, so a sum is not finite only if an entry is not.
    _require(where, "attention maps", maps.detach().sum(-1), network)


def require_same_logits(must: str, logits: Tensor, expected: Tensor, network: Any) -> None:
    """Raise a ConfigError if logits differ from the expected ones by more than rounding."""
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
    broken = rows[~rows.isfinite()]
    if not len(broken):
        return
    weights = dict(network.named_parameters())
    dtypes = sorted({str(x.dtype).removeprefix("torch.") for x in weights.values()})
    at_fault = (saved_name(name) for name, x in weights.items() if not x.isfinite().all())
    name = next(at_fault, None)
    reason = f"weight {name} holds NaN or infinity"
    if name is None:
        reason = f"all weights are finite; computed in {' and '.join(dtypes)}"
    raise DiffAttnError(
        f"{where}: {quantity} must be finite, got {float(broken[0])} in {len(broken)} of "
        f"{rows.numel()} rows ({reason})."
    )
