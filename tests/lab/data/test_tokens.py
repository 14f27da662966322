"""Packed token files as training reads them: checked on opening, mapped, cut into windows."""

import pickle
import shutil

import pytest
import torch

from diffattn.errors import CheckpointError
from diffattn.lab.data.tokens import PackedTokens, TokenDataset
from record_files import read_record, write_record


@pytest.fixture
def copy(packed, tmp_path):
    """A packing that a test may damage."""
    return shutil.copytree(packed, tmp_path / "packed")


def test_names_of_another_size_are_refused_before_they_are_hashed(copy):
    with (copy / "train.names").open("r+b") as file:
        file.truncate(1 << 40)  # sparse; to hash it would take an hour
    with pytest.raises(CheckpointError, match=r"train\.names: must have the \d+ bytes"):
        PackedTokens(copy, "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, r"schema must be 3, got 1\."),
        ({"split": "validation"}, "split must be 'train', got 'validation'"),
        ({"num_tokens": 0}, "num_tokens must be at least 1"),
    ],
    ids=str,
)
def test_foreign_sidecar_is_refused(copy, change, message):
    path = copy / "train.json"
    write_record(path, read_record(path) | change)
    with pytest.raises(CheckpointError, match=message):
        PackedTokens(copy, "train")


def test_windows_follow_one_another_and_leave_out_the_rest(packed):
    part = PackedTokens(packed, "train")
    dataset = TokenDataset(part, 7)
    items = list(dataset)
    assert len(items) == len(dataset) == part.num_tokens // 7
    joined = torch.cat([item["input_ids"] for item in items])
    assert joined.tolist() == part.tokens[: len(joined)].tolist()
    for item in items:
        assert item["input_ids"].dtype == item["labels"].dtype == torch.int64
        assert torch.equal(item["input_ids"], item["labels"])
    assert torch.equal(dataset[-1]["input_ids"], items[-1]["input_ids"])
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_pickling_carries_the_path_and_not_the_tokens(packed):
    dataset = TokenDataset(PackedTokens(packed, "train"), 7)
    content = pickle.dumps(dataset)
    assert len(content) < 1_000
    assert torch.equal(pickle.loads(content)[3]["input_ids"], dataset[3]["input_ids"])


@pytest.mark.parametrize("seq_len", [1, 7, 64])
def test_documents_kept_apart_begin_at_position_0_and_nothing_predicts_their_first_token(
    packed, tokenizer, seq_len
):
    part = PackedTokens(packed, "train")
    before = tokenizer.eos_token_id
    for item in TokenDataset(part, seq_len, apart=True):
        position = 0
        for i, token in enumerate(item["input_ids"].tolist()):
            position = 0 if i == 0 or before == tokenizer.eos_token_id else position + 1
            assert item["position_ids"][i] == position
            assert item["labels"][i] == (token if position else -100)
            before = token
