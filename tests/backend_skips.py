"""Skips that state their reason."""

import pytest
import torch

from diffattn.lab.testing.inputs import OpCase
from diffattn.ops.inputs import backends, kernel_support


def require_backend(
    op: str,
    name: str,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    case: OpCase | None = None,
) -> None:
    """Skip the running test unless the backend can run on this machine, device and dtype.

    Args:
        op: For example ``"diff_attention"``.
        name: A name from :func:`diffattn.ops.inputs.backends.names`, or an error.
        case: Widths and lengths of the inputs. Default: widths of V1, 64 and 128.
    """
    case = OpCase(name="", num_queries=2, head_dim=64, value_dim=128) if case is None else case
    inputs = backends.Inputs(
        device=torch.device(device).type, dtype=dtype, batch=case.batch, num_heads=case.num_heads,
        num_queries=case.num_queries,
        num_keys=case.num_queries if case.num_keys is None else case.num_keys,
        head_dim=case.head_dim, value_dim=case.value_dim,
        capability=kernel_support.compute_capability(torch.device(device)),
        needs_gradient=torch.is_grad_enabled(),
    )  # fmt: skip
    # The named backend or an error, as in a call: an unknown name must not become a skip.
    known = {backend.name: backend for backend in backends.table(op)}
    reason = known[name].refuses(inputs) if name in known else backends.resolve(op, name, inputs)
    if reason:
        pytest.skip(f"{op}: backend {name!r} {reason}")
