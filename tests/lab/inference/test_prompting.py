"""Completions and scores that share their reading equal those that read everything anew."""

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.inference.decoding import prompt_text
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation
from language_models import byte_pairs, of_tokenizer
from scripted_model import LoggedModel, alone, with_limits


def definition(model, prompts, answers):
    """Every prompt read from scratch, on its own, twice."""
    ids = [model.encode_prompt(prompt) for prompt in prompts]
    outputs = alone(model).generate(ids, max_new_tokens=5)
    pairs = [model.encode_pair(p, f" {a}") for p, a in zip(prompts, answers, strict=True)]
    scores = alone(model).score([Continuation(tuple(c), tuple(t)) for c, t in pairs])
    return [
        (entry.text, len(own), value.logprob / len(value.token_logprobs))
        for entry, own, value in zip(outputs, ids, scores, strict=True)
    ]


@pytest.mark.parametrize("case", ["common text", "nothing in common", "one prompt"])
@pytest.mark.parametrize("rows_alone", [False, True])
def test_shared_reading_changes_nothing(model, text, case, rows_alone):
    model = alone(model) if rows_alone else model
    prompts = {
        "common text": [f"{text[:900]} {question}" for question in ("who is", "what was the")],
        "nothing in common": [text[i : i + 100 + 9 * i].strip() for i in (0, 7, 23)],
        "one prompt": [text[:200].strip()],
    }[case]
    answers = ["the city of river", "7", "old"][: len(prompts)]
    results = model.complete(prompts, answers, max_new_tokens=5)
    for entry, (output, tokens, logprob) in zip(
        results, definition(model, prompts, answers), strict=True
    ):
        assert (entry.text, entry.prompt_tokens) == (output, tokens)
        # float64: 1e-13 per operation, some thousand of them.
        assert entry.logprob_per_token == pytest.approx(logprob, rel=1e-9)


def test_prompts_that_run_alone_are_read_once(models, text):
    model = LoggedModel(with_limits(models["softmax"], batch_tokens=300))
    prompts = [text[:900].strip(), text[400:1500].strip()]
    model.complete(prompts, ["the", "a"], max_new_tokens=2)
    tokens = sum(len(model.encode_prompt(prompt)) for prompt in prompts)
    assert tokens - 4 <= sum(model.reads) <= tokens


def test_prompts_that_do_not_fit_are_refused_before_they_are_read(build, text):
    model = LoggedModel(build("diff", max_length=64))
    for prompts in ([text], [text + "a", text + "b"]):
        with pytest.raises(ItemError, match="prompt and continuation must fit the model's 64 tok"):
            model.complete(prompts, ["x"] * len(prompts), max_new_tokens=4)
    long = model.encode(text)
    with pytest.raises(
        ItemError, match=f"a prompt must fit the model's 64 tokens, got {len(long)}"
    ):
        list(model.read_prompts([long[:5], long]))
    assert model.reads == []
    assert list(model.read_prompts([])) == []


def test_an_answer_longer_than_the_model_counts_as_far_as_it_reaches(build, text):
    """Without an answer there is no score."""
    model = build("diff", max_length=64)
    (scored,) = model.complete(["the city"], [text[:400]], max_new_tokens=3)
    (unscored,) = model.complete(["the city"], None, max_new_tokens=3)
    assert scored.logprob_per_token < 0
    assert unscored.logprob_per_token is None


@pytest.mark.parametrize(("context", "answer"), [("Is it red", "or blue"), ("A:", "12")])
def test_an_answer_that_one_token_swallows_is_scored_alone(context, answer):
    tokenizer = byte_pairs(f"{context} {answer} " * 30, superwords=True)
    model = of_tokenizer(tokenizer)
    assert len(model.encode(f"{context} {answer}")) <= len(model.encode(context))
    pair = model.encode_pair(context, f" {answer}")
    assert pair == (model.encode_prompt(context), model.encode(f" {answer}"))
    (entry,) = model.complete([context], [answer], max_new_tokens=3)
    (alone,) = model.score([Continuation(*map(tuple, pair))])
    assert entry.text
    assert entry.logprob_per_token == pytest.approx(alone.logprob / len(pair[1]), rel=1e-4)
    assert model.encode_after(context, f" {answer}") == pair[1]


def test_a_prompt_has_no_space_at_its_end(models):
    text = prompt_text(models["diff"], "Who?", " Answer: ", chat=False)
    assert text == "Who? Answer:"
    with pytest.raises(ConfigError, match="chat needs a tokenizer with a chat template, got none"):
        prompt_text(models["diff"], "Who?", "", chat=True)
