"""The loss of every token of a text: given all tokens before it, or by sliding windows."""

from collections.abc import Iterator

import numpy as np
import torch

from diffattn.lab.inference.network_reader import ItemError, NetworkReader
from diffattn.lab.inference.scoring import Continuation, score


def prefix_losses(
    model: NetworkReader, rows: list[np.ndarray], given: list[int]
) -> list[np.ndarray]:
    """Losses of the tokens of rows in nats, given all tokens before; long rows run in chunks.

    ``given`` holds token ids, such as BOS, before each row. If it is empty, the first token of a
    row is not predicted, and the result has one loss less.
    """
    asked = []
    for row in rows:
        ids = [*given, *row.tolist()]
        first = max(1, len(given))
        asked.append(Continuation(tuple(ids[:first]), tuple(ids[first:])))
    return [-np.array(row.token_logprobs) for row in score(model, asked)]


def sliding_losses(
    model: NetworkReader, tokens: np.ndarray, *, window: int, stride: int, given: list[int]
) -> np.ndarray:
    """Loss of every token of a text in nats, by windows that advance by ``stride`` tokens.

    The first window predicts all its tokens. Each later window predicts the ``stride`` tokens that
    are new, at the end fewer, from ``window - stride`` tokens or more. ``given`` holds ids, such as
    BOS, before every window. If it is empty, the first token of the text is not predicted.

    Raises:
        ItemError: An id is unknown, ``stride`` is out of range, or a window does not fit the model.
    """
    longest = window if given else window - 1
    if not 1 <= stride <= longest:
        raise ItemError(f"sliding_losses: stride must be from 1 to {longest}, got {stride}.")
    model.require_ids(tokens.tolist())
    first, *rest = windows(len(tokens), window, stride)
    losses = [prefix_losses(model, [tokens[: first[2]]], given)[0]]
    row, size = window + len(given), 1  # windows that run in one pass
    if row <= model.limits.chunk_tokens and not model.rows_alone:
        logits = model.limits.chunk_logits // (stride * model.text_config.vocab_size)
        size = max(1, min(model.limits.batch_tokens // row, logits))
    full = [whole for whole in rest if whole[2] - whole[0] == window]
    groups = [full[i : i + size] for i in range(0, len(full), size)]
    groups += [[shorter] for shorter in rest[len(full) :]]  # the last window may be shorter
    for group in groups:
        losses += _window_losses(model, tokens, group, given)
    return np.concatenate(losses)


def windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """``(begin, first predicted token, end)`` of each window over a text of ``length`` tokens."""
    begin, predicted = 0, 0
    while True:
        end = min(begin + window, length)
        yield begin, predicted, end
        if end == length:
            return
        begin, predicted = begin + stride, end


def _window_losses(
    model: NetworkReader, tokens: np.ndarray, group: list[tuple[int, int, int]], given: list[int]
) -> list[np.ndarray]:
    """Losses of the predicted tokens of windows of equal length."""
    inputs = [[*given, *tokens[begin : end - 1].tolist()] for begin, _, end in group]
    wanted = [tokens[predicted:end] for _, predicted, end in group]
    length, last = len(inputs[0]), len(wanted[0])
    if length > model.limits.chunk_tokens:
        asked = [
            Continuation(tuple(row[: length - last + 1]), tuple(target.tolist()))
            for row, target in zip(inputs, wanted, strict=True)
        ]
        return [-np.array(row.token_logprobs) for row in score(model, asked)]
    kept = torch.arange(length - last, length)
    logits, _ = model.forward_rows(model.read([]), inputs, keep=kept)
    losses = []
    for row, target in zip(logits, wanted, strict=True):
        index = torch.from_numpy(target).to(row.device)[:, None]
        losses.append(-row.log_softmax(-1).gather(-1, index)[:, 0].double().cpu().numpy())
    return losses
