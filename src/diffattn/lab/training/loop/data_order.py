"""The windows that every step of a run reads."""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from diffattn.lab.data.tokens import PackedTokens, TokenDataset, UpsampledTokens
from diffattn.lab.training.callbacks import OnMessage
from diffattn.lab.training.config import RunConfig, TrainConfig


def training_windows(
    split: PackedTokens, config: RunConfig, on_message: OnMessage = lambda line: None
) -> Subset[Any]:
    """The windows of every step of a run, in order: a function of its settings and data alone.

    With up-sampling, each pass draws documents anew and reads their windows in random order.
    """
    train, windows = config.train, config.windows
    if windows.upsample_longer_than is None:
        return training_order(TokenDataset(split, train.seq_len, apart=windows.apart), train)
    drawn = UpsampledTokens(
        split,
        longer_than=windows.upsample_longer_than,
        factor=windows.upsample_factor,
        num_tokens=train.num_steps * train.batch_tokens,
        seed=train.data_seed + 2**32,  # not the random numbers of the order below
    )
    on_message(drawn.summary)
    generator = torch.Generator().manual_seed(train.data_seed)
    ends = [end // train.seq_len for end in drawn.pass_ends]
    passes = itertools.pairwise([0, *ends])
    order: Any = torch.cat([a + torch.randperm(b - a, generator=generator) for a, b in passes])
    dataset = TokenDataset(drawn, train.seq_len, apart=windows.apart)
    return Subset(dataset, order[: train.num_steps * train.batch_sequences].numpy())


def training_order(dataset: Dataset[dict[str, Tensor]], config: TrainConfig) -> Subset[Any]:
    """The windows of every step, in order: a fresh permutation for each pass over the data.

    It depends on ``data_seed`` and the dataset alone, so every member of a comparison reads the
    same tokens at the same step.
    """
    size = len(dataset)  # type: ignore[arg-type]
    count = config.num_steps * config.batch_sequences
    generator = torch.Generator().manual_seed(config.data_seed)
    passes = [torch.randperm(size, generator=generator) for _ in range(-(-count // size))]
    order: Any = torch.cat(passes)[:count].numpy()  # as a list, 10^8 windows would take 4 GB
    return Subset(dataset, order)


def first_windows(dataset: TokenDataset, count: int) -> dict[str, Tensor]:
    """``input_ids`` of the first ``count`` windows, int64 ``[B, T]``, and their ``position_ids`` if
    documents are kept apart."""
    items = [dataset[index] for index in range(min(count, len(dataset)))]
    return {name: torch.stack([x[name] for x in items]) for name in items[0] if name != "labels"}


def curve_windows(dataset: TokenDataset, config: TrainConfig) -> Subset[Any]:
    """The windows of evaluations during training: ``evaluation_tokens``, spread evenly over the
    validation split, at least one window."""
    count = max(1, min(config.evaluation_tokens // config.seq_len, len(dataset)))
    return Subset(dataset, [i * len(dataset) // count for i in range(count)])
