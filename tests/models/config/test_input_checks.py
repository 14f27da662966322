"""What a forward pass refuses, and where it does not look at values."""

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.models.config.input_checks import check_embeds, checked_ids, checked_positions

BAD_IDS = torch.tensor([[1, 70]])


def test_messages():
    for call, message in (
        (lambda: checked_ids("input_ids", BAD_IDS, below=61), "must be from 0 to 60, got 70"),
        (lambda: checked_ids("labels", -BAD_IDS, below=99, ignored=True), "labels .* got -70"),
        (lambda: checked_ids("input_ids", BAD_IDS[0], below=99), r"\[B, T\], got \[2\] of int64"),
        (lambda: checked_ids("input_ids", BAD_IDS.bool(), below=99), "integer tensor .* of bool"),
        (lambda: checked_positions(-BAD_IDS, 1, 2), "position_ids must be 0 or more, got -70"),
        (lambda: checked_positions(BAD_IDS, 1, 3), r"tensor \[1 or 1, 3\], got \[1, 2\] of int64"),
        (lambda: check_embeds(torch.zeros(1, 2, 3), 4), r"must be \[B, T, 4\], got \[1, 2, 3\]"),
    ):
        with pytest.raises(ShapeError, match=f"DiffTransformer: .*{message}"):
            call()


def test_ignored_labels_and_no_tokens_are_sound():
    checked_ids("labels", torch.full((1, 3), -100), below=5, ignored=True)
    checked_ids("input_ids", torch.zeros(1, 0, dtype=torch.long), below=5)
    checked_ids("input_ids", None, below=5)
    checked_positions(None, 1, 3)


def test_values_are_not_looked_at_under_a_transform():
    """vmap shows plain tensors that refuse to give their values."""

    def run(ids):
        checked_ids("input_ids", ids, below=61)
        return ids

    batched = BAD_IDS.expand(3, 1, 2)
    assert torch.equal(torch.vmap(run)(batched), batched)


def test_values_are_not_looked_at_on_other_devices():
    checked_ids("input_ids", BAD_IDS.to("meta"), below=61)


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16]


@pytest.mark.parametrize("dtype", INTEGERS)
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
