"""Several documents in one row do not see each other."""

from itertools import pairwise

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffattn.errors import ConfigError
from diffattn.probes.passes import window_inputs

BORDERS = [0, 4, 5, 11]  # documents of 4, 1 and 6 tokens
RESTARTS = torch.tensor([[0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5]])
BATCH = torch.cat([RESTARTS, torch.tensor([[0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]])])
BATCH_BORDERS = [BORDERS, [0, 2, 11]]
CU_SEQLENS = torch.tensor(BORDERS, dtype=torch.int32)
MARKS = {
    "restarts": {"position_ids": RESTARTS},
    "restarts-no-cache": {"position_ids": RESTARTS, "use_cache": False},
    "cu_seqlens": {"cu_seq_lens_q": CU_SEQLENS},
    "both": {"position_ids": RESTARTS, "cu_seq_lens_q": CU_SEQLENS},
    "two rows": {"position_ids": BATCH},
}


def by_documents(ids, borders):
    """A ``compute`` for ``assert_only_rounding``: logits of each document by itself."""

    @torch.no_grad()
    def compute(model):
        rows = [
            torch.cat([model(row[None, a:b]).logits for a, b in pairwise(ends)], dim=1)
            for row, ends in zip(ids, borders, strict=True)
        ]
        return [torch.cat(rows)]

    return compute


@pytest.fixture
def row(ids):
    return ids[:1]


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize("name", ["diffattn", "sdpa", "eager"])
@pytest.mark.parametrize("marks", MARKS)
def test_packed_documents_equal_separate_ones(
    model, ids, implementation, assert_only_rounding, name, marks
):
    rows = 2 if marks == "two rows" else 1
    with implementation(model, name), torch.no_grad():
        packed = model(ids[:rows], **MARKS[marks]).logits
    assert_only_rounding([packed], model, by_documents(ids[:rows], BATCH_BORDERS[:rows]))


def test_nothing_flows_between_documents(model, row):
    embeds = model.model.embed_tokens(row).detach().requires_grad_()
    model(inputs_embeds=embeds, position_ids=RESTARTS).logits[:, 5:].square().sum().backward()
    assert (embeds.grad[:, 5:] != 0).any()
    assert (embeds.grad[:, :5] == 0).all()


def test_training_on_a_packed_row_equals_training_on_its_documents(
    make_config, build, row, assert_only_rounding
):
    """The usual setting: restarting positions and labels, with the cache left at its default."""
    model = build(make_config("diff"))
    labels = row.clone()
    labels[0, [0, 4, 5]] = -100  # the first token of a document is nobody's next token

    def packed(m):
        m.zero_grad()
        m(row, position_ids=RESTARTS, labels=labels).loss.backward()
        return [m.model.layers[0].self_attn.q_proj.weight.grad]

    def separate(m):
        m.zero_grad()
        for a, b in ((0, 4), (5, 11)):
            (m(row[:, a:b], labels=row[:, a:b]).loss * (b - a - 1) / 8).backward()
        return [m.model.layers[0].self_attn.q_proj.weight.grad]

    assert_only_rounding(packed(model), model, separate)


@pytest.mark.parametrize("name", ["diffattn", "eager"])
def test_maps_of_packed_rows(model, ids, implementation, name):
    with implementation(model, name), torch.no_grad():
        out = model(ids, position_ids=BATCH, output_attentions=True, output_attention_maps=True)
    for layer_idx, (signed, raw) in enumerate(zip(out.attentions, out.attention_maps, strict=True)):
        heads = model.config.of_layer(layer_idx).num_heads
        assert signed.shape == (2, heads, 11, 11)
        assert raw.shape == (2, heads, raw.shape[2], 11, 11)
        sums = torch.ones(())
        torch.testing.assert_close(raw.sum(-1), sums.expand(raw.shape[:-1]))
        for row, borders in enumerate(([4, 5], [2])):
            for border in borders:
                assert (raw[row, :, :, border:, :border] == 0).all()


def test_windows_with_documents_apart_are_one_packed_row(
    make_config, build, ids, assert_only_rounding
):
    """Two windows, the first of three documents."""
    model = build(make_config("diff"))
    packed = window_inputs(ids, torch.cat([RESTARTS, torch.arange(11)[None]]))
    assert packed["cu_seq_lens_q"].tolist() == [*BORDERS, 22]
    assert packed["cu_seq_lens_q"].dtype == torch.int32
    with torch.no_grad():
        logits = model(**packed).logits.view(2, 11, -1)
    assert_only_rounding([logits], model, by_documents(ids, [BORDERS, [0, 11]]))


@pytest.fixture
def like_flash(monkeypatch):
    """An implementation with flash kernels' mask, which tells documents apart as theirs does."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module, q, k, v, mask, position_ids=None, **kwargs):
        if mask is None and len(q) == 1 and position_ids is not None:
            document = (position_ids[0] == 0).cumsum(0)
            mask = (document[:, None] == document).tril()[None, None]
        elif mask is not None:  # [B, S], of padding
            mask = mask[:, None, None].expand(-1, 1, mask.shape[1], -1).tril()
        return sdpa(module, q, k, v, mask, **kwargs)

    name = "documents_by_positions"
    flash_mask = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, attention)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, flash_mask)
    return name


@pytest.mark.parametrize("kind", ["diff", "diff_v2"])
@pytest.mark.parametrize("marks", ["restarts", "cu_seqlens"])
def test_kernels_without_a_mask_get_the_positions(
    kind, make_config, build, row, like_flash, assert_only_rounding, marks
):
    model = build(make_config(kind))
    model.set_attn_implementation(like_flash)
    with torch.no_grad():
        packed = model(row, **MARKS[marks]).logits
    assert_only_rounding([packed], model, by_documents(row, [BORDERS]))


def test_kernels_without_a_mask_take_one_packed_row(make_config, build, ids, like_flash):
    """transformers looks for restarts in one row alone."""
    model = build(make_config("diff"))
    model.set_attn_implementation(like_flash)
    with pytest.raises(ConfigError, match=f"'{like_flash}' keeps .* needs B = 1, got B = 2"):
        model(ids, position_ids=BATCH)
    with pytest.raises(ConfigError, match="Lay the rows end to end, or use 'diffattn'"):
        model(ids, position_ids=RESTARTS)
    counted = torch.arange(11)[None]
    with torch.no_grad():
        assert torch.equal(model(ids, position_ids=counted).logits, model(ids).logits)
        padding = (torch.arange(11) >= torch.tensor([[0], [4]])).long()
        positions = (padding.cumsum(1) - 1).clamp(min=0)  # 0 again and again, which marks nothing
        model(ids, attention_mask=padding, position_ids=positions)


@pytest.mark.parametrize("positions", [[3, 4, 5, 0, 1, 2], [7, 8, 9, 0, 3, 4]])
def test_kernels_without_a_mask_are_told_where_documents_begin(
    make_config, build, ids, like_flash, assert_only_rounding, positions
):
    """transformers looks for the least position, which is not where the first document begins."""
    model = build(make_config("diff"))
    row, positions = ids[:1, :6], torch.tensor([positions])

    def separate(m):
        with torch.no_grad():
            parts = (slice(3), slice(3, None))
            out = [m(row[:, x], position_ids=positions[:, x], attention_mask=torch.ones(1, 3))
                   for x in parts]  # fmt: skip
        return [torch.cat([x.logits for x in out], dim=1)]

    model.set_attn_implementation(like_flash)
    with torch.no_grad():
        packed = model(row, position_ids=positions).logits
    model.set_attn_implementation("diffattn")
    assert_only_rounding([packed], model, separate)


UNBROKEN = {
    "jump by one token left out": [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11],
    "jump back": [0, 1, 2, 30, 31, 32, 3, 4, 5, 6, 7],
    "in threes": [i // 3 for i in range(11)],
    "an image of equal positions": [0, 1, 2, 2, 2, 2, 2, 3, 4, 5, 6],
    "all equal": [0] * 11,
    "from elsewhere": [7, 8, 9, 7, 8, 9, 7, 8, 9, 10, 11],
}


@pytest.mark.sampled(one_of=6)
@pytest.mark.parametrize("name", ["diffattn", "sdpa", "eager", "like flash"])
@pytest.mark.parametrize("positions", UNBROKEN.values(), ids=UNBROKEN)
def test_positions_that_jump_or_repeat_are_one_document(
    attention_type, make_config, build, ids, implementation, like_flash, name, positions
):
    model = build(make_config(attention_type))
    positions = torch.tensor([positions])
    with implementation(model, like_flash if name == "like flash" else name), torch.no_grad():
        for rows in (ids[:1], ids):
            plain = model(rows, position_ids=positions, use_cache=False).logits
            masked = model(rows, position_ids=positions, attention_mask=torch.ones_like(rows))
            assert torch.equal(plain, masked.logits)


def test_masks_that_are_not_0_and_1_are_refused(make_config, build, ids, implementation):
    model = build(make_config("diff_v2"))
    for name in ("diffattn", "sdpa"):
        with implementation(model, name):
            for numbers, got in (([[1, 1, 2, 2, 2]], "got 1 to 2. Mark documents by position_ids"),
                                 ([[-10000.0, 0, 0, 0, 0]], "got -10000 to 0"),
                                 ([[0.5, 1, 1, 2, 2]], "got 0.5 to 2")):  # fmt: skip
                with pytest.raises(ConfigError, match=got):
                    model(ids[:1, :5], attention_mask=torch.tensor(numbers))


@pytest.fixture
def compiled(make_config, build):
    """A model, and a function that compiles it."""
    model = build(make_config("diff", num_hidden_layers=1))
    torch._dynamo.reset()
    return model, lambda name: torch.compile(model.forward, fullgraph=True, backend=name)


def test_compiled_code_keeps_the_same_documents_apart(compiled, ids):
    """One graph, made without a look at positions, serves those that restart, jump or repeat."""
    model, make_step = compiled
    step, counted = make_step("eager"), torch.arange(11).repeat(2, 1)
    others = [torch.tensor(positions).repeat(2, 1) for positions in UNBROKEN.values()]
    with torch.no_grad():
        step(ids, position_ids=counted, use_cache=False)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for positions in (counted, BATCH, *others):
                logits = step(ids, position_ids=positions, use_cache=False).logits
                plain = model(ids, position_ids=positions, use_cache=False).logits
                torch.testing.assert_close(logits, plain)


def test_compiled_code_refuses_masks_that_are_not_0_and_1(compiled, ids):
    """It cannot look before it computes."""
    step, mask = compiled[1]("aot_eager"), torch.ones_like(ids)
    step(ids, attention_mask=mask, use_cache=False)
    with pytest.raises(RuntimeError, match="must be 0 and 1 in compiled code"):
        step(ids, attention_mask=mask * 2, use_cache=False)
