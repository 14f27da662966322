"""Memory that shows when it is read unwritten, and attention written out in loops."""

import math
import zlib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from diffattn.ops.inputs import backends


@pytest.hookimpl(tryfirst=True)  # before marks are chosen
def pytest_collection_modifyitems(items):
    """Leave most of FlexAttention to the scheduled tier: half a second a case on a CPU.

    A push runs its own tests (test_flex.py), and every case against the reference in one dtype.
    """
    for item in items:
        if not (item.path.is_relative_to(Path(__file__).parent) and hasattr(item, "callspec")):
            continue
        params = item.callspec.params
        in_every_push = (
            item.originalname == "test_backend_matches_reference"
            and params.get("dtype") is torch.float32
        )
        if params.get("backend", params.get("name")) == "flex" and not in_every_push:
            item.add_marker(pytest.mark.scheduled)
    _leave_most_kernels_to_the_scheduled_tier(items)


def _leave_most_kernels_to_the_scheduled_tier(items):
    """Half a second of the interpreter a case, and ``triton/`` has the tests of the kernels alone.

    Of each property one case a kernel runs at every push, chosen by a hash of its name, as the
    first would hold one value of every option.
    """
    cases = defaultdict(list)
    for item in items:
        if item.path.parent == Path(__file__).parent and hasattr(item, "callspec"):
            backend = item.callspec.params.get("backend")
            if backend in ("triton", "triton_decode") and "device" in item.callspec.params:
                cases[item.path.stem, item.originalname, backend].append(item)
    for (module, test, _), group in cases.items():
        group.sort(key=lambda item: zlib.crc32(item.name.encode()))
        for i, item in enumerate(group):
            if i == 0 and (module == "test_properties" or test == "test_empty_batch_or_length"):
                # Instead of the share that a test names for its other backends.
                item.add_marker(pytest.mark.sampled(one_of=1), append=False)
            else:
                item.add_marker(pytest.mark.scheduled)


@pytest.fixture(autouse=True)
def _nan_filled_memory():
    """``torch.empty`` gives NaN, so that reading what nobody wrote cannot go unseen."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _no_gradient_where_there_is_none(request):
    """A backend that has no gradient on a device is tested there under ``torch.no_grad``."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    rows = {row.name: row for row in backends.table("diff_attention")}
    row = rows.get(params.get("backend", params.get("name")))
    missing = row is not None and params.get("device", "cpu") in row.no_gradient_on
    with torch.set_grad_enabled(not missing):
        yield


@pytest.fixture
def naive_attention():
    """Eq. (1) in Python floats: ``(q, k, v, lam, **options)`` to output, A1, A2."""
    return _naive_attention


def _naive_attention(q, k, v, lam, **options):
    num_queries, num_keys = q.shape[1], k.shape[1]
    batch, _, num_heads, _, head_dim = q.shape
    group = num_heads // k.shape[2]
    scale = options.pop("scale", 1 / math.sqrt(head_dim))
    shared_keys = k.ndim == 4
    lam = lam.expand(batch, num_queries, num_heads).tolist()
    q, k, v = q.tolist(), k.tolist(), v.tolist()
    maps = torch.zeros(2, batch, num_heads, num_queries, num_keys, dtype=torch.float64)
    out = torch.zeros(batch, num_queries, num_heads, len(v[0][0][0]), dtype=torch.float64)
    for b in range(batch):
        for i in range(num_queries):
            seen = [j for j in range(num_keys) if _sees(b, i, j, num_queries, num_keys, **options)]
            if not seen:
                continue
            for h in range(num_heads):
                kv_head = h // group  # pair first, then repeat
                for m in range(2):
                    keys = [k[b][j][kv_head] if shared_keys else k[b][j][kv_head][m] for j in seen]
                    scores = [scale * _dot(q[b][i][h][m], key) for key in keys]
                    for j, weight in zip(seen, _softmax(scores), strict=True):
                        maps[m, b, h, i, j] = weight
                for c in range(out.shape[-1]):
                    out[b, i, h, c] = math.fsum(
                        (maps[0, b, h, i, j].item() - lam[b][i][h] * maps[1, b, h, i, j].item())
                        * v[b][j][kv_head][c]
                        for j in seen
                    )
    return out, maps[0], maps[1]


def _sees(
    row,
    query,
    key,
    num_queries,
    num_keys,
    *,
    causal=True,
    window=None,
    key_padding_mask=None,
    kv_lengths=None,
    cu_seqlens=None,
):
    length = num_keys if kv_lengths is None else int(kv_lengths[row])
    position = query + length - num_queries
    if key >= length:
        return False
    if causal and key > position:
        return False
    if window is not None and not 0 <= position - key < window:
        return False
    if key_padding_mask is not None and not key_padding_mask[row, key]:
        return False
    if cu_seqlens is not None:
        documents = [range(start, end) for start, end in pairwise(cu_seqlens.tolist())]
        return any(query in document and key in document for document in documents)
    return True


def _dot(x, y):
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def _softmax(scores):
    largest = max(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    total = math.fsum(exponentials)
    return [x / total for x in exponentials]
