"""Where a forward pass does not look at values, and integers of any width.

What it refuses is tried in tests/trials/test_impossible_inputs.py.
"""

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.models.attention.masks import checked_ids

BAD_IDS = torch.tensor([[1, 70]])


def test_values_are_not_looked_at_under_a_transform():
    """vmap shows plain tensors that refuse to give their values."""

    def run(ids):
        checked_ids("input_ids", ids, below=61)
        return ids

    batched = BAD_IDS.expand(3, 1, 2)
    assert torch.equal(torch.vmap(run)(batched), batched)


def test_values_are_not_looked_at_on_other_devices():
    checked_ids("input_ids", BAD_IDS.to("meta"), below=61)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.uint16])
@pytest.mark.parametrize("chunk", [None, 3])
def test_integers_of_every_width_are_ids_labels_and_positions(
    make_config, build, ids, dtype, chunk
):
    model = build(make_config("diff_v2"))
    model.loss_chunk_tokens = chunk
    positions = torch.arange(ids.shape[1])[None]
    expected = model(ids, labels=ids, position_ids=positions)
    narrow = ids.to(dtype)
    actual = model(narrow, labels=narrow, position_ids=positions.to(dtype))
    assert torch.equal(actual.loss, expected.loss)
    shifted = model(narrow, labels=narrow, shift_labels=ids.roll(-1, 1).to(dtype)).loss
    assert torch.equal(shifted, model(ids, labels=ids, shift_labels=ids.roll(-1, 1)).loss)


def test_ignored_labels_may_be_narrow(make_config, build, ids):
    model = build(make_config("shared_diff"))
    labels = torch.where(ids % 3 == 0, -100, ids)
    assert torch.equal(model(ids, labels=labels.short()).loss, model(ids, labels=labels).loss)
    with pytest.raises(ShapeError, match="labels must be from 0 to 60, got -99"):
        model(ids, labels=labels.clamp(min=-99).int())
