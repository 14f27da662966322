"""Which items are paired, part by part, and over seeds."""

import math

import pytest

from diffattn.lab.evaluation.catalog import PRIMARY, PROTOCOLS
from diffattn.lab.evaluation.compare import compare_answers
from diffattn.lab.evaluation.judge.session import PROTOCOL as JUDGED
from diffattn.lab.evaluation.metrics import is_share, primary_score
from diffattn.lab.evaluation.protocol import prompt_facts
from diffattn.lab.evaluation.verdicts import partners, with_verdicts
from evaluation_folders import answers, paired


def rows(right, text="same", **more):
    return [
        {
            "id": str(i), "scores": {"recall": float(x), "logprob_per_token": -1.0 - i},
            "prompt": {"sha256": f"{text}{i}"}, "length": 8 * (1 + i % 2), "guess": 0.0, **more,
        }
        for i, x in enumerate(right)
    ]  # fmt: skip


def compared(*sides):
    by_label = {side.label: side for side in sides}
    return compare_answers({"key_values": by_label}, list(by_label), ["key_values"], {})


def test_the_primary_score_is_split_and_the_others_are_not():
    found = compared(answers("a", rows([0] * 20)), answers("b", rows([1, 0] * 10)))
    by_part = {(one.score, *one.where.values()): one for one in found.differences}
    assert list(by_part) == [
        ("logprob_per_token",), ("recall",), ("recall", 8), ("recall", 16),
    ]  # fmt: skip
    assert [one.primary for one in by_part.values()] == [False, True, False, False]
    whole, short, long = (by_part[key] for key in [("recall",), ("recall", 8), ("recall", 16)])
    assert (whole.difference, short.difference, long.difference) == (0.5, 1.0, 0.0)
    assert (whole.n, short.n, whole.value, whole.baseline_value) == (20, 10, 0.5, 0.0)
    assert (whole.verdict, whole.higher_is_better, whole.p_holm) == ("higher", True, whole.p_value)
    assert short.verdict == ""


def test_losses_below_one_are_tested_as_losses():
    """A loss of 0.9 per token that falls by 0.02 everywhere: shares would add pairs of 1 nat."""

    def losses(by):
        return [
            {"id": str(i), "scores": {"ar_hit_2_nll": 0.9 + 0.001 * (i % 7) - by * (1 + i % 3)}}
            for i in range(40)
        ]  # fmt: skip

    sides = [answers(name, losses(by), protocol="ar_hits") for name, by in (("a", 0), ("b", 0.01))]
    (one,) = compared(*sides).differences
    assert one.test == "Student t over clusters"
    assert one.difference == pytest.approx(-0.01 * (1 * 14 + 2 * 13 + 3 * 13) / 40)
    assert one.verdict == "lower"


def test_every_protocol_declares_its_primary_score_which_is_a_share_or_not():
    assert {*PROTOCOLS, JUDGED} == {*PRIMARY, "quantized_logits"}
    names = {name for scores in PRIMARY.values() for name in scores}
    assert {name for name in names if not is_share(name)} == {
        "answer_signed", "ar_hit_2_nll", "largest hidden state", "nll", "nll_per_word",
        "nll_window_{windows}",
    }  # fmt: skip


def test_other_texts_are_not_paired_and_named():
    a, b = rows([0] * 6), rows([1] * 6)
    b[4]["prompt"] = b[5]["prompt"] = {"sha256": "other"}
    found = compared(answers("a", a), answers("b", b, vocabulary="w"))
    whole = next(one for one in found.differences if one.primary)
    assert (whole.num_items, whole.num_other_text, whole.num_unpaired) == (4, 2, 0)
    assert found.notes[0] == (
        "key_values: 2 of 6 items of b hold another text than a's and are not paired, as its "
        "tokenizer has another vocabulary and lengths are counted in tokens."
    )
    assert found.notes[1].endswith("the paired items hold the same text.")
    assert not any(one.score == "logprob_per_token" for one in found.differences)


def test_texts_of_one_tokenizer_are_never_mixed():
    found = compared(answers("a", rows([0] * 3)), answers("b", rows([1] * 3, "other")))
    assert found.differences == []
    assert found.skipped == [
        "key_values: b was not compared: all 3 items hold another text than a's, though the "
        "tokenizers are alike: the files that they read have changed."
    ]


def test_models_of_one_seed_are_partners():
    labels = ["softmax-seed0", "softmax-seed1", "diff-seed0", "diff-seed1", "diff-seed7", "other"]
    assert partners(labels) == [
        ("diff-seed0", "softmax-seed0"), ("diff-seed1", "softmax-seed1"),
        ("diff-seed7", "softmax-seed0"), ("other", "softmax-seed0"),
    ]  # fmt: skip
    assert partners(["a", "diff-seed0"]) == [("diff-seed0", "a")]


def test_seeds_are_a_sample_of_their_own():
    sides = []
    for seed, wins in enumerate((5, 6, 7)):
        sides.append(answers(f"softmax-seed{seed}", rows([0] * 10)))
        sides.append(answers(f"diff-seed{seed}", rows([1] * wins + [0] * (10 - wins))))
    found = compared(*sides).differences
    (seeds,) = [one for one in found if one.over == "seeds"]
    assert (seeds.model, seeds.baseline, seeds.n, seeds.num_items) == ("diff", "softmax", 3, 30)
    assert seeds.difference == pytest.approx(0.6)
    # Student: 4.3027 * 0.1 / sqrt(3) on either side.
    assert (seeds.low, seeds.high) == pytest.approx((0.351586, 0.848414), abs=1e-5)
    assert seeds.verdict == "higher"
    assert seeds.p_holm == seeds.p_value


def test_seeds_are_uninformative_if_each_is():
    """Three seeds of half right: their number is not what tells them from guessing."""
    found = {}
    for wins in (0, 20):
        sides = []
        for seed in (0, 1, 2):
            sides.append(answers(f"softmax-seed{seed}", rows([0] * 40)))
            sides.append(
                answers(f"diff-seed{seed}", rows([1] * (wins and wins + seed) + [0] * 40)[:40])
            )
        (found[wins],) = [one for one in compared(*sides).differences if one.over == "seeds"]
    assert found[0].verdict == "uninformative: neither is above guessing where one can guess"
    assert found[20].verdict == "higher"
    two = compared(*sides[:4]).differences
    assert [one.verdict for one in two if one.over == "seeds"] == [
        "inconclusive: 2 of the 3 seeds that it takes"
    ]


def test_holm_adjusts_the_primary_scores_alone():
    ends = {"difference": -0.1, "low": -0.2, "high": 0.0}
    given = [
        paired(variant=str(i), p_value=p, primary=i < 3, **ends)
        for i, p in enumerate((0.01, 0.03, 0.02, 1e-9))
    ]
    judged = with_verdicts(given)
    assert [one.p_holm for one in judged] == pytest.approx([0.03, 0.04, 0.04, None])
    assert [one.verdict for one in judged] == ["lower"] * 3 + [""]


@pytest.mark.parametrize(
    ("right", "other", "words"),
    [
        ([1] * 50, [1] * 50, "uninformative: both have everything right"),
        ([1] * 99 + [0], [0] + [1] * 99, "uninformative: both have everything right"),
        ([0] * 50, [1] * 50, "higher"),  # one of them alone has
        ([1] * 50, [0] * 50, "lower"),
        ([1] * 38 + [0] * 2, [0] * 2 + [1] * 38, "inconclusive"),
        ([0] * 50, [0] * 49 + [1], "uninformative: neither is above guessing where one can guess"),
    ],
)
def test_verdicts(right, other, words):
    found = compared(answers("a", rows(right)), answers("b", rows(other)))
    assert next(one for one in found.differences if one.primary).verdict == words


def test_the_primary_score_of_a_wrapped_protocol_is_at_the_fewest_bits():
    parameters, names = (
        {"bits": [16, 4], "protocol": "lm_tasks"},
        ["average, 16 bits", "average, 4 bits"],
    )
    assert primary_score("quantized_logits", parameters, names) == ("average, 4 bits", True)
    assert primary_score("unheard_of", {}, ["x"]) is None
    windows = {"windows": [512, 1024]}
    names = ["nll_window_512", "nll_window_1024"]
    assert primary_score("sliding_perplexity", windows, names) == ("nll_window_1024", False)


def test_a_wrapped_protocol_has_its_floor_and_its_weights():
    """Fig. 8: HellaSwag with everything at the same position is not above guessing."""

    def asked(right):
        return [
            {
                "id": f"{bits}-bits-{i}", "task": "hellaswag", "gold": i % 4, "logprobs": [0.0] * 4,
                "scores": {f"hellaswag acc_norm, {bits} bits": float(right(i))}, "bits": bits,
                "weights": {f"hellaswag acc_norm, {bits} bits": 1.0 + i % 2},
            }
            for bits in (16, 4) for i in range(40)
        ]  # fmt: skip

    parameters = {
        "bits": [16, 4], "protocol": "lm_tasks", "settings": {"tasks": ["hellaswag"]},
    }  # fmt: skip
    sides = [
        answers(name, asked(right), protocol="quantized_logits", parameters=parameters)
        for name, right in (("a", lambda i: i % 4 == 0), ("b", lambda i: i % 4 == 1))
    ]
    (whole,) = [one for one in compared(*sides).differences if one.primary]
    assert whole.score == "hellaswag acc_norm, 4 bits"
    assert (whole.chance, whole.guess_ceiling) == (0.25, 0.25)
    assert whole.verdict == "uninformative: neither is above guessing where one can guess"
    assert (whole.baseline_value, whole.value) == pytest.approx((1 / 6, 1 / 3))  # weighed 1 and 2


def test_what_one_has_not_scored_is_left_out():
    failed = {"id": "1", "error": "ItemError: bad"}
    a = [
        {"id": str(i), "cluster": str(i // 2), "scores": {"right": float(i % 2 == 0)}}
        for i in (0, 2, 3, 4, 5)
    ]
    b = [row | {"scores": {"right": 1.0}} for row in a if row["id"] != "4"]
    sides = {"a": answers("a", [*a, failed]), "b": answers("b", [*b, failed])}
    sides["b"].result.model["max_length"] = 512
    comparison = compare_answers({"part": sides}, ["a", "b", "c"], ["part"], {})
    (only,) = comparison.differences
    assert (only.value, only.baseline_value, only.difference) == pytest.approx((1.0, 0.5, 0.5))
    assert (only.num_items, only.n, only.num_unpaired) == (4, 3, 1)
    assert only.test == "Student t over clusters, adjusted"
    assert only.p_value > 0.05
    assert only.low < 0 < only.high
    assert comparison.skipped == ["part: c was not compared: c has no result of part."]
    assert comparison.notes == ["part: b ran with max_length 512 where a has 8."]


def test_weighted_scores_compare_over_equal_items():
    """Losses 2 -> 1 over 3 tokens, 1 -> 2 over 1; another text; no such tokens at all."""
    sides = []
    for label, losses, tokens in (("a", [2, 1, 5], [3, 1, 4]), ("b", [1, 2, 5], [3, 1, 9])):
        scored = [
            {"id": str(i), "scores": {"loss": loss}, "weights": {"loss": weight}}
            for i, (loss, weight) in enumerate(zip(losses, tokens, strict=True))
        ]
        sides.append(answers(label, [*scored, {"id": "3", "scores": {}}]))
    (only,) = compared(*sides).differences
    assert (only.num_items, only.n, only.num_unpaired) == (2, 2, 1)
    assert only.difference == pytest.approx((-3 + 1) / 4)
    assert only.test == "Student t over clusters"  # without one: 1; without the other: -1
    assert only.p_value == pytest.approx(1 - 2 / math.pi * math.atan(0.2**0.5))


def test_losses_per_token_of_two_vocabularies_are_not_compared():
    per_token = ("ar_hit_nll", "logprob_per_token", "nll", "nll_to_128", "text loss, 4 bits")
    anyway = ("accuracy", "bits_per_byte", "expected_logprob", "nll_per_word")
    scored = [{"id": str(i), "scores": dict.fromkeys(per_token + anyway, i)} for i in (0, 1)]
    alike = compared(answers("a", scored), answers("b", scored))
    assert (len(alike.differences), alike.skipped) == (9, [])
    other = compared(answers("a", scored), answers("b", scored, vocabulary="w"))
    assert [entry.score for entry in other.differences] == list(anyway)
    assert other.skipped == [
        f"key_values: {', '.join(per_token)} of b was not compared: its tokenizer has another "
        "vocabulary, and these count per token."
    ]


def test_a_row_says_what_text_its_item_held():
    short, long = prompt_facts("a question"), prompt_facts("x" * 900 + "y" * 1_000)
    assert (short["characters"], short["begins"], "ends" in short) == (10, "a question", False)
    assert (long["characters"], long["begins"]) == (1_900, "x" * 400)
    assert long["ends"] == "x" * 200 + "y" * 1_000
    assert long["sha256"] != prompt_facts("x" * 901 + "y" * 999)["sha256"]
    assert prompt_facts("half of a pair: \ud83d")["characters"] == 17
