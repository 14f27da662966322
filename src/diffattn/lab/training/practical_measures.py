"""Measures of a trained small model: attention, retrieval, unsupported answers, shots, order."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations

import numpy as np
import torch
from torch import Tensor

from diffattn.lab.data.recall_tasks import LookupConfig, ManyShotConfig, NoisyRecallConfig
from diffattn.lab.data.synthetic import HELD_OUT_SEED, RecallBatch, Shots, generate, many_shots
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.quantized_logits import quantized_logits

GROUPS = ("answer", "pairs", "noise", "queries")
"""Groups of attention keys; each token is in one group. They are the asked-for value, all other
pairs of the context, its noise, and the queries. A lookup task adds a fifth group, ``"bos"``."""


def key_groups(task: NoisyRecallConfig | LookupConfig, batch: RecallBatch) -> Tensor:
    """The group of every key as seen from every query: int64 ``[B, Q, T]``, index of the group."""
    ids = batch.input_ids
    answers = batch.labels.gather(1, batch.queries)
    in_context = torch.arange(ids.shape[1]) < batch.queries[0, 0]
    is_noise = ids > task.num_keys + task.num_values
    groups = torch.where(is_noise, GROUPS.index("noise"), GROUPS.index("pairs"))
    groups = torch.where(in_context, groups, GROUPS.index("queries"))
    groups = groups[:, None].repeat(1, batch.queries.shape[1], 1)
    is_answer = (ids[:, None] == answers[:, :, None]) & in_context
    groups = groups.masked_fill(is_answer, GROUPS.index("answer"))
    if isinstance(task, LookupConfig):
        groups[:, :, 0] = len(GROUPS)
    return groups


@torch.no_grad()
def attention_shares(
    model: DiffTransformerForCausalLM, task: NoisyRecallConfig | LookupConfig, batch: RecallBatch
) -> dict[str, dict[str, float]]:
    r"""The last layer's attention on groups of keys, mean over heads and queries.

    .. math:: s_k = \frac{1}{H Q} \sum_{h, q} \sum_{j \in k} a_{hqj},\quad
        a = A_1 - \lambda A_2

    Source: arXiv:2410.05258v2, Table 3, which divides by the sum of all groups. That sum is 1 − λ,
    which may be near 0, so nothing is divided here.

    Returns:
        Kind of weight -> group -> share. ``"net"`` sums a, where weights of opposite sign cancel.
        ``"size"`` sums |a| and divides by the total. ``"map_1"`` and, in differential models,
        ``"map_2"`` sum the softmax maps.
    """
    model.eval()
    output = model(
        input_ids=batch.input_ids.to(model.device),
        use_cache=False,
        output_attentions=True,
        output_attention_maps=True,
    )
    maps = output.attention_maps[-1]  # [B, H, maps, T, T]
    net = output.attentions[-1]
    weights = {"net": net, "size": net.abs(), "map_1": maps[:, :, 0]}
    if maps.shape[2] == 2:
        weights["map_2"] = maps[:, :, 1]
    groups = key_groups(task, batch)
    names = (*GROUPS, "bos") if isinstance(task, LookupConfig) else GROUPS
    shares = {}
    for name, values in weights.items():
        rows = values.float().mean(1).cpu().take_along_dim(batch.queries[:, :, None], 1)
        sums = torch.zeros(len(rows), rows.shape[1], len(names)).scatter_add_(2, groups, rows)
        mean = sums.double().mean((0, 1))
        if name == "size":
            mean /= mean.sum()
        shares[name] = dict(zip(names, mean.tolist(), strict=True))
    return shares


PAIRS = (1, 2, 4, 6)
"""Pairs hidden in a context, as the paper hides needles."""
LENGTHS = (1, 2, 4)
"""Lengths of the context, as multiples of the training context."""
BITS = (16, 8, 6, 4, 3)
SHOTS = (0, 1, 2, 4, 8, 16, 23, 47)
"""Numbers of examples before the item to classify. Training has at most 23."""
NUM_ORDERS = 8
_ORDERED_SHOTS = 16
_SEQUENCES = 128
_ORDERED_SETS = 16
# Indices of held-out sets; 0 and 1 are validation and test.
_MEASURES, _ORDERS = 2, 3


def practical_measures(
    model: DiffTransformerForCausalLM, task: LookupConfig | ManyShotConfig
) -> dict[str, float]:
    """Measure a trained model on sequences that training and validation do not hold.

    Returns:
        Name -> value. A lookup task has values for P pairs in L times the training context.
        ``found_P_xL``: share of questions about keys in the context that are answered correctly.
        ``unsupported_P_xL``: share of questions about absent keys that get an answer.
        ``bits_B``: share found at the training size, with attention logits of B bits and one
        scale per layer. ``attention_KIND_GROUP``: from :func:`attention_shares`.
        A many-shot task has ``shots_N``: accuracy after N examples in noisy sequences; ``vote_N``:
        from :func:`vote_accuracy`; ``order_range``: best less worst accuracy over orders of the
        same examples; ``order_changes``: share of answers that differ between two orders.
    """
    return _lookup(model, task) if isinstance(task, LookupConfig) else _many_shot(model, task)


@torch.no_grad()
def query_logits(model: DiffTransformerForCausalLM, batch: RecallBatch, rows: int) -> Tensor:
    """Logits at every query: float32 ``[B, Q, vocab]`` on the CPU, ``rows`` sequences at once."""
    was_training = model.training
    model.eval()
    logits = [
        model(input_ids=ids.to(model.device), use_cache=False)
        .logits.take_along_dim(queries[:, :, None].to(model.device), dim=1)
        .float()
        .cpu()
        for ids, queries in zip(batch.input_ids.split(rows), batch.queries.split(rows), strict=True)
    ]
    model.train(was_training)
    return torch.cat(logits)


def answers(
    model: DiffTransformerForCausalLM, batch: RecallBatch, *, rows: int = _SEQUENCES
) -> Tensor:
    """The most likely token at every query: int64 ``[B, Q]``."""
    return query_logits(model, batch, rows).argmax(-1)


def _lookup(model: DiffTransformerForCausalLM, task: LookupConfig) -> dict[str, float]:
    measures = {}
    for factor in LENGTHS:
        for pairs in (count for count in PAIRS if count < task.num_keys):
            sized = replace(
                task, num_pairs=pairs, context_len=factor * task.context_len, absent=0.5
            )
            batch = generate(sized, _SEQUENCES, seed=HELD_OUT_SEED, index=_MEASURES)
            chosen, labels = answers(model, batch), batch.labels.gather(1, batch.queries)
            is_absent = labels == task.not_there
            hits = chosen == labels
            measures[f"found_{pairs}_x{factor}"] = _share(hits[~is_absent])
            measures[f"unsupported_{pairs}_x{factor}"] = _share(~hits[is_absent])
    present = generate(replace(task, absent=0.0), _SEQUENCES, seed=HELD_OUT_SEED, index=_MEASURES)
    labels = present.labels.gather(1, present.queries)
    for bits in BITS:
        with quantized_logits(model, bits):
            measures[f"bits_{bits}"] = _share(answers(model, present) == labels)
    for kind, groups in attention_shares(model, task, present).items():
        measures |= {f"attention_{kind}_{group}": share for group, share in groups.items()}
    return measures


def _many_shot(model: DiffTransformerForCausalLM, task: ManyShotConfig) -> dict[str, float]:
    noisy = replace(task, noisy=1.0, num_shots=max(SHOTS) + 1)
    shots = many_shots(noisy, 4 * _SEQUENCES, seed=HELD_OUT_SEED, index=_MEASURES)
    hits = torch.from_numpy(shots.answers) == answers(model, shots.batch())
    votes = vote_accuracy(task, shots)
    measures = {f"shots_{count}": _share(hits[:, count]) for count in SHOTS}
    measures |= {f"vote_{count}": float(votes[count]) for count in SHOTS}
    chosen, right = order_answers(model, noisy)
    accuracy = (chosen == right).double().mean(-1)  # [sets, orders]
    measures["order_range"] = float((accuracy.amax(1) - accuracy.amin(1)).mean())
    alike = (chosen[:, :, None] == chosen[:, None]).double().mean((1, 2))  # [sets, queries]
    measures["order_changes"] = float((1 - alike).mean()) * NUM_ORDERS / (NUM_ORDERS - 1)
    return measures


def vote_accuracy(task: ManyShotConfig, shots: Shots) -> list[Fraction]:
    """Accuracy of the label that the examples so far show most often for an item's class.

    A tie counts as a random choice among its labels, a class without examples as a random label.
    Index n of the result is the accuracy after n examples.
    """
    rights, guess = [Fraction(0)] * shots.items.shape[1], Fraction(1, task.num_labels)
    for items, shown, right in zip(shots.items, shots.shown, shots.answers, strict=True):
        counts: dict[int, Counter[int]] = {}
        for place, (item, label) in enumerate(zip(items.tolist(), shown.tolist(), strict=True)):
            group = (item - 1) // task.items_per_class
            seen = counts.setdefault(group, Counter())
            leading = [value for value, count in seen.items() if count == max(seen.values())]
            chance = Fraction(int(right[place]) in leading, len(leading)) if leading else guess
            rights[place] += chance
            seen[label] += 1
    return [total / len(shots.items) for total in rights]


@cache
def best_accuracy(task: ManyShotConfig, num_sequences: int = 4 * _SEQUENCES) -> dict[str, float]:
    """``shots_N``: expected accuracy, after N examples, of a reader that weighs every labelling of
    the classes by Bayes' rule. It knows how sequences and wrong labels are drawn: no reader has a
    higher expected accuracy."""
    noisy = replace(task, noisy=1.0, num_shots=max(SHOTS) + 1)
    shots = many_shots(noisy, num_sequences, seed=HELD_OUT_SEED, index=_MEASURES)
    labels = range(task.first_label, task.vocab_size)
    known = range(task.known_classes)
    labellings = [
        [dict(zip(classes, names, strict=True)).get(group, 0) for group in known]
        for classes in combinations(known, task.num_classes)
        for names in permutations(labels, task.num_classes)
    ]
    label_of = np.array(labellings)  # [labellings, classes], 0 where a class takes no part
    holds = np.stack([(label_of == label).any(1) for label in labels])
    weights = np.full((len(shots.items), len(label_of)), 1 / len(label_of))
    best = []
    for items, shown in zip(shots.items.T, shots.shown.T, strict=True):
        named = label_of[:, (items - 1) // task.items_per_class].T  # [B, labellings]
        weights *= named > 0
        weights /= weights.sum(1, keepdims=True)
        posterior = [(weights * (named == label)).sum(1) for label in labels]
        best.append(float(np.max(posterior, axis=0).mean()))
        wrong = holds[shown - task.first_label] * task.wrong / (task.num_classes - 1)
        weights *= np.where(named == shown[:, None], 1 - task.wrong, wrong)
    return {f"shots_{count}": best[count] for count in SHOTS}


def order_answers(model: DiffTransformerForCausalLM, task: ManyShotConfig) -> tuple[Tensor, Tensor]:
    """Answers after the same examples in several orders ``[S, orders, Q]``, and the correct ones
    ``[S, 1, Q]``. Each of a set's Q queries follows all examples, without the other queries."""
    sized = replace(task, num_shots=2 * _ORDERED_SHOTS)  # the second half are the queries
    drawn = many_shots(sized, _ORDERED_SETS, seed=HELD_OUT_SEED, index=_ORDERS)
    rng = np.random.default_rng([HELD_OUT_SEED, _ORDERS + 1])
    shape = (_ORDERED_SETS, NUM_ORDERS, _ORDERED_SHOTS)
    orders = rng.permuted(np.tile(np.arange(_ORDERED_SHOTS), (*shape[:2], 1)), axis=-1)
    queries, right = drawn.items[:, None, _ORDERED_SHOTS:], drawn.answers[:, None, _ORDERED_SHOTS:]

    def laid_out(values: np.ndarray, last: np.ndarray) -> np.ndarray:
        examples = np.take_along_axis(values[:, None, :_ORDERED_SHOTS], orders, axis=2)
        examples = np.broadcast_to(examples[:, :, None], (*shape, _ORDERED_SHOTS))
        whole = np.concatenate([examples, np.broadcast_to(last, shape)[..., None]], axis=-1)
        return whole.reshape(-1, _ORDERED_SHOTS + 1)

    shots = Shots(
        laid_out(drawn.items, queries), laid_out(drawn.shown, right), laid_out(drawn.answers, right)
    )
    chosen = answers(model, shots.batch(), rows=4 * _SEQUENCES)[:, -1].reshape(shape)
    return chosen, torch.from_numpy(right.copy())


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
