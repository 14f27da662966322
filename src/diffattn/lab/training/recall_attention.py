"""Where the queries of a recall task look: shares of attention on the answer, pairs and noise."""

import torch
from torch import Tensor

from diffattn.lab.data.recall_tasks import LookupConfig, NoisyRecallConfig
from diffattn.lab.data.synthetic import RecallBatch
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

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
