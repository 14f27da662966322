"""The launch table is whole, and every kernel of the package is among the compile cases."""

import pytest
import torch

pytest.importorskip("triton")

from diffattn.ops.diff_attention.triton import configs


@pytest.mark.parametrize("capability", configs.CAPABILITIES)
@pytest.mark.parametrize(("head_dim", "value_dim"), [(32, 64), (64, 64), (96, 192), (128, 128)])
def test_every_launch_has_a_row(capability, head_dim, value_dim):
    """dK and dV come together, or each by itself; never both ways."""
    found = {
        launch
        for op in ("diff_attention", "softmax_attention")
        for launch in configs.kernels(op)
        if configs.seed(launch, head_dim, value_dim, capability)
    }
    softmax = {f"softmax_{kernel}" for kernel in ("fwd", "preprocess", "dkv", "dq")}
    whole = softmax | {"fwd", "preprocess", "dkv", "dq"}
    assert found in (whole, whole - {"dkv"} | {"dk", "dv"})


@pytest.mark.parametrize(
    ("chip", "row"),
    [((7, 5), 80), ((8, 0), 80), ((8, 6), 86), ((8, 9), 86), ((9, 0), 90), ((10, 0), 100),
     ((10, 3), 100), ((12, 0), 86)],
)  # fmt: skip
def test_a_chip_takes_the_nearest_row_that_fits(chip, row):
    assert configs.capability_row(*chip) == row


@pytest.mark.parametrize("capability", configs.CAPABILITIES)
def test_compile_cases_name_every_argument(capability):
    cases = configs.aot_cases(capability)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert {*case.signature, *case.constexprs} == set(case.kernel.arg_names), case.name
        assert not set(case.signature) & set(case.constexprs), case.name
    compiled = {id(case.kernel) for case in cases}
    for op in ("diff_attention", "softmax_attention"):
        assert {id(kernel) for kernel in configs.kernels(op).values()} <= compiled


def test_rows_are_chosen_by_dtype_and_chip(monkeypatch):
    monkeypatch.setattr(configs, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    q = torch.empty(1, 1, 1, 2, 128, dtype=torch.bfloat16)
    assert set(configs.launch_configs("dkv", q, 256)) == {"dk", "dv"}
    assert set(configs.launch_configs("dkv", q, 128)) == {"dkv"}
    assert set(configs.launch_configs("dkv", q.float(), 256)) == {"dkv"}
    assert configs.launch_configs("fwd", q, 256)["fwd"] in configs.CANDIDATES["fwd"]
