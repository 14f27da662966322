"""Weights of the original code, against the formula written out in ``conftest.py``."""

import json

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.conversion.convert import convert

CASES = {
    "v1-gqa": {"kv_heads": 2},
    "v1-mha-plain-norm": {"affine": False},
    "v2-gqa": {"version": 2, "kv_heads": 2},
    "v1-mha": {},
    "v1-gqa-plain-norm": {"kv_heads": 2, "affine": False, "tied": True},
    "v1-mqa-unilm-names": {"kv_heads": 1, "bare": True},
    "v2-mha": {"version": 2},
    "v2-unilm-names": {"version": 2, "kv_heads": 2, "bare": True, "tied": True},
}
PUSHED = ("v1-gqa", "v2-gqa")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in PUSHED else pytest.mark.scheduled) for c in CASES]
)
def test_logits_are_those_of_the_formula(
    case, original, converted, network, missing_settings, ids, assert_close, tmp_path
):
    """transformers has no code for these layouts, so that ``convert`` compares no logits."""
    reference = original(**CASES[case])
    options = {} if case.startswith("v1") or "bare" in CASES[case] else {"layout": "original_v2"}
    folder = converted(
        reference.save(tmp_path / "given"), "diffattn", changes=missing_settings, **options
    )
    assert json.loads((folder / "conversion.json").read_text())["verification"] is None
    result = network(folder).double()
    with torch.no_grad():
        assert_close(result(ids).logits, reference.logits(ids))


@pytest.mark.scheduled
def test_a_wrong_pairing_would_be_seen(
    original, missing_settings, ids, converted, network, tmp_path
):
    """The control: halves rotated where channels are interleaved give other logits."""
    reference = original(kv_heads=2)
    folder = converted(reference.save(tmp_path / "given"), "diffattn", changes=missing_settings)
    reference.rotation = "halves"
    with torch.no_grad():
        logits, wrong = network(folder).double()(ids).logits, reference.logits(ids)
    assert (logits - wrong).abs().max() > 0.05 * wrong.abs().max()


@pytest.mark.scheduled
@pytest.mark.parametrize("case", CASES)
def test_there_and_back_is_bitwise_identical(
    case, original, converted, missing_settings, tmp_path, weights_of
):
    reference = original(**CASES[case])
    options = {"layout": "original_v2"} if reference.version == 2 else {}
    result = converted(
        reference.save(tmp_path / "given"), "diffattn", changes=missing_settings, **options
    )
    back = converted(result, "original")
    before, after = reference.state, weights_of(back)
    if reference.bare:  # written under the other outer names
        assert len(before) == len(after)
        assert all(any(torch.equal(a, b) for b in after.values()) for a in before.values())
        return
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    again = converted(back, "diffattn")  # by its own config.json now
    assert all(torch.equal(weights_of(again)[n], x) for n, x in weights_of(result).items())


def test_settings_that_weights_do_not_show_must_be_given(original, tmp_path):
    folder = original().save(tmp_path / "given")
    with pytest.raises(ConfigError, match="rms_norm_eps, max_position_embeddings must be given"):
        convert(str(folder), "diffattn", tmp_path / "out", changes={"rope_theta": 1e4})
