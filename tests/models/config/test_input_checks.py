"""What a forward pass refuses, and where it does not look at values."""

import pytest
import torch

from diffattn.errors import ShapeError
from diffattn.models.config.input_checks import check_embeds, check_ids, check_positions

BAD_IDS = torch.tensor([[1, 70]])


def test_messages():
    for call, message in (
        (lambda: check_ids("input_ids", BAD_IDS, below=61), "must be from 0 to 60, got 70"),
        (lambda: check_ids("labels", -BAD_IDS, below=99, ignored=True), "labels .* got -70"),
        (lambda: check_ids("input_ids", BAD_IDS[0], below=99), r"\[B, T\], got \[2\] of int64"),
        (lambda: check_ids("input_ids", BAD_IDS.bool(), below=99), "integer tensor .* of bool"),
        (lambda: check_positions(-BAD_IDS, 1, 2), "position_ids must be 0 or more, got -70"),
        (lambda: check_positions(BAD_IDS, 1, 3), r"tensor \[1 or 1, 3\], got \[1, 2\] of int64"),
        (lambda: check_embeds(torch.zeros(1, 2, 3), 4), r"must be \[B, T, 4\], got \[1, 2, 3\]"),
    ):
        with pytest.raises(ShapeError, match=f"DiffTransformer: .*{message}"):
            call()


def test_ignored_labels_and_no_tokens_are_sound():
    check_ids("labels", torch.full((1, 3), -100), below=5, ignored=True)
    check_ids("input_ids", torch.zeros(1, 0, dtype=torch.long), below=5)
    check_ids("input_ids", None, below=5)
    check_positions(None, 1, 3)


def test_values_are_not_looked_at_under_a_transform():
    """vmap shows plain tensors that refuse to give their values."""

    def run(ids):
        check_ids("input_ids", ids, below=61)
        return ids

    batched = BAD_IDS.expand(3, 1, 2)
    assert torch.equal(torch.vmap(run)(batched), batched)


def test_values_are_not_looked_at_on_other_devices():
    check_ids("input_ids", BAD_IDS.to("meta"), below=61)
