"""The launch table is whole, and every kernel of the package is among the compile cases."""

import pytest
import torch

pytest.importorskip("triton")

from diffattn.ops.triton import backward, configs, decode, forward, launch
from tools import aot_cases
from tools.measures.candidates import CANDIDATES


@pytest.mark.parametrize(
    ("chip", "row"),
    [((7, 5), 80), ((8, 0), 80), ((8, 6), 86), ((8, 9), 86), ((9, 0), 90), ((10, 0), 100),
     ((10, 3), 100), ((11, 0), 100), ((12, 0), 120), ((12, 1), 120)],
)  # fmt: skip
def test_a_chip_takes_the_nearest_row_that_fits(chip, row):
    assert configs.capability_row(*chip) == row


@pytest.mark.parametrize("capability", configs.CAPABILITIES)
def test_compile_cases_name_every_argument(capability):
    cases = aot_cases.aot_cases(capability)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert {*case.signature, *case.constexprs} == set(case.kernel.arg_names), case.name
        assert not set(case.signature) & set(case.constexprs), case.name
    compiled = {id(case.kernel) for case in cases}
    for op in ("diff_attention", "softmax_attention"):
        assert {id(kernel) for kernel in aot_cases.kernels(op).values()} <= compiled


IN_ORDER = {"dkv", "dq"}


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize(
    ("capability", "in_order", "separate", "others"),
    [
        ((8, 0), False, {"bwd"}, {"bwd"}),
        ((8, 0), True, IN_ORDER, IN_ORDER),
        # Measured: atomics take longer than the products that they save.
        ((9, 0), False, {"dk", "dv", "dq"}, IN_ORDER),
        ((9, 0), True, {"dk", "dv", "dq"}, IN_ORDER),
    ],
)
def test_rows_are_chosen_by_dtype_chip_and_order(
    monkeypatch, capability, in_order, separate, others, warn_only
):
    """One order of sums is what deterministic algorithms ask for."""
    monkeypatch.setattr(configs, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    q = torch.empty(1, 1, 1, 2, 128, dtype=torch.bfloat16)
    by_map = capability == (9, 0)
    assert set(configs.forward_configs("", q, 256)) == {"fwd_by_map" if by_map else "fwd"}
    assert set(configs.forward_configs("", q, 128, shared_keys=True)) == {"fwd"}
    torch.use_deterministic_algorithms(in_order, warn_only=warn_only)  # ops/conftest.py undoes it
    assert set(configs.backward_configs("", q, 256)) == separate
    assert set(configs.backward_configs("", q, 128, shared_keys=True)) == others
    assert set(configs.backward_configs("softmax_", q, 128)) == others
    assert set(configs.backward_configs("", q.float(), 256)) == IN_ORDER


@pytest.mark.parametrize("capability", configs.CAPABILITIES)
@pytest.mark.parametrize("launch", CANDIDATES)
def test_a_tuner_would_try_every_seed(capability, launch):
    for head_dim in (32, 64, 128):
        for shared in (False, True):
            seed = configs.seed(launch, head_dim, head_dim, capability, shared)
            assert seed is None or seed in CANDIDATES[launch]
    wide = configs.seed(launch, 128, 256, capability)
    assert wide is None or wide in CANDIDATES[launch]


def test_a_tuner_has_candidates_for_every_launch():
    lines = {line for row in configs.CAPABILITIES for line in configs.SEEDS[row]}
    of_table = {line.removesuffix("_padding") for line in lines}
    assert of_table == set(CANDIDATES)


@pytest.mark.skipif(not configs.interpreted(), reason="launches are recorded in the interpreter")
def test_no_launch_leaves_the_rounding_to_a_default(launches):
    """Triton 3.10 no longer joins a product and a sum by default; an environment may not either."""
    q, k = torch.zeros(1, 3, 1, 2, 32), torch.zeros(1, 3, 1, 2, 32)
    v, lam, out = torch.zeros(1, 3, 1, 64), torch.zeros(1), torch.zeros(1, 3, 1, 64)
    mask, lse = launch.KeyMask(causal=True), torch.zeros(1, 1, 2, 3)
    forward.forward(q, k, v, lam, scale=1.0, mask=mask)
    backward.backward(out, q, k, v, lam, out, out, lse, scale=1.0, mask=mask)
    decode.decode(q, k, v, lam, scale=1.0)
    assert len({made.name for made in launches}) == 6
    assert all(made.options.get("enable_fp_fusion") is True for made in launches), launches
