"""Attention to answer and noise: the figure's rule, against whole maps."""

from itertools import pairwise

import pytest
import torch

from diffattn.lab.evaluation.long_context.attention_segments import SEGMENTS, AttentionSegments
from diffattn.lab.evaluation.long_context.haystack import span_within
from diffattn.lab.evaluation.long_context.needle import needle
from evaluation_folders import evaluated
from language_models import byte_pairs, whole_maps

# Hugging Face's eager softmax is float32 in any model: weights up to 1 + |λ| of up to 600 keys.
ROUNDING = 600 * torch.finfo(torch.float32).eps


@pytest.fixture(scope="module")
def protocol(haystack):
    return AttentionSegments(
        haystack=haystack, length=420, num_needles=3, depths=(0, 50, 100), samples=1, per_head=True
    )


def test_five_segments_equal_those_of_whole_maps(model, protocol):
    """They sum to 1, noise is before and after, and every share follows from the whole map."""
    (batch,) = protocol.batches(model)
    rows = protocol.ask(model, batch)
    prompts = protocol.build_prompts(model, protocol.depths, **protocol.settings(0))
    for row, prompt in zip(rows, prompts, strict=True):
        bounds = [0, prompt.context[0], *prompt.spans[0], prompt.context[1], len(prompt.ids)]
        assert [row["spans"][s] for s in SEGMENTS] == list(pairwise(bounds))
        assert model.decode(prompt.ids[slice(*row["spans"]["number"])]).strip() == row["number"]
        maps = whole_maps(model, prompt.ids)
        first, signed = (  # [layers, H, S]
            torch.stack([layer[i][:, -1].double() for layer in maps]) for i in (0, 1)
        )
        assert ("map_2" in row["shares"]["row"]) == (not torch.equal(first, signed))
        for weights, changed in (
            ("signed", signed), ("clipped", signed.clamp(min=0)), ("absolute", signed.abs()),
            ("map_1", first),
        ):  # fmt: skip
            sums = [changed[..., a:b].sum(-1) for a, b in pairwise(bounds)]
            sums = torch.stack(sums, dim=-1)
            assert sums.sum(-1).abs().min() > 0.05
            by_row = (sums / sums.sum(-1, keepdim=True)).mean((0, 1))
            together = sums.mean((0, 1)) / sums.mean((0, 1)).sum()
            for name, expected in (("global", together), ("row", by_row)):
                shares = row["shares"][name][weights]
                found = torch.tensor([shares[s] for s in SEGMENTS], dtype=torch.float64)
                # Dividing by a sum magnifies what rounding did to it, here by less than 20.
                torch.testing.assert_close(found, expected, rtol=0, atol=20 * ROUNDING)
                assert sum(shares[s] for s in SEGMENTS) == pytest.approx(1)
                assert shares["noise"] == shares["before"] + shares["after"]
                if weights == "absolute":
                    assert 0 <= shares["number"] <= shares["answer"]
        uniform = row["shares"]["row"]["uniform"]
        assert uniform == row["shares"]["global"]["uniform"]
        assert uniform["query"] == pytest.approx((bounds[5] - bounds[4]) / 420)
        assert row["one_minus_lambda"] == pytest.approx(
            signed.sum(-1).mean(-1).tolist(), abs=ROUNDING
        )


def test_records_and_tables(model, protocol, tmp_path):
    result, rows = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (3, 0)
    headline = [(m.name, m.where["depth"]) for m in result.headline()]
    assert headline == [(part, d) for d in (0, 50, 100) for part in ("answer", "noise")]
    own = rows[1]["shares"]["row"]["absolute"]
    table = [
        one for one in result.tables["segments"]
        if (one["depth"], one["normalised"], one["weights"]) == (50, "row", "absolute")
    ]  # fmt: skip
    assert {one["part"]: one["mean"] for one in table} == pytest.approx(own)
    heads = result.tables["heads"]["50"]
    sums = torch.tensor(heads["signed"])  # [layers, H, spans]
    assert heads["spans"] == [*SEGMENTS, "number"]
    assert sums[..., :5].sum(-1).mean(-1).tolist() == pytest.approx(
        rows[1]["one_minus_lambda"], abs=1e-4
    )


@pytest.mark.parametrize("split", [False, True])
def test_the_last_token_predicts_the_first_digit(build, protocol, monkeypatch, text, split):
    """Also where the tokenizer, as Llama's, makes a token of the space before the digits."""
    model = build("diff")
    numbers = " ".join(map(str, range(1_000, 10_000, 5)))
    tokenizer = byte_pairs(f"{text}\n{numbers}", digits=split, vocab_size=600)
    monkeypatch.setattr(model, "tokenizer", tokenizer)
    for prompt in protocol.build_prompts(model, protocol.depths, **protocol.settings(0)):
        given = " ".join(model.decode(prompt.ids).split())
        assert given.endswith(f"Answer: The special magic {prompt.cities[0]} number is:")
        whole = model.encode(f"x is: {prompt.numbers[0]}")
        last = next(i for i, token in enumerate(whole) if model.decode([token]).strip().isdigit())
        assert prompt.ids[-1] == whole[last - 1]
        assert (model.decode([whole[last - 1]]) == " ") == split
        assert len(prompt.ids) == protocol.length
        first, last = span_within(
            model, needle(prompt.cities[0], prompt.numbers[0]), prompt.numbers[0]
        )
        digits = model.decode(prompt.ids[prompt.spans[0][0] :][first:last])
        assert digits == (prompt.numbers[0] if split else f" {prompt.numbers[0]}")


def test_without_bos_the_prompt_begins_with_eos(build, tokenizer, protocol):
    model = build("diff", add_bos=False)
    (batch,) = protocol.batches(model)
    rows = protocol.ask(model, batch[:1])
    assert rows[0]["spans"]["bos"] == (0, 1)
    prompt = protocol.build_prompts(model, protocol.depths, **protocol.settings(0))[0]
    assert prompt.ids[0] == tokenizer.eos_token_id
