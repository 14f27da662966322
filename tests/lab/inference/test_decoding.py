"""Greedy decoding equals Hugging Face's generate, in batches and on shared prefixes."""

import copy
import random

import pytest
import torch

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from language_models import byte_pairs, of_tokenizer, write_after
from scripted_model import with_limits


def prompts(model, seed=0):
    generator = random.Random(seed)
    vocab = len(model.tokenizer)
    long = [generator.randrange(1, vocab) for _ in range(260)]
    results = [long + [generator.randrange(1, vocab) for _ in range(n)] for n in (1, 5, 2, 9)]
    return [*results, [5], [generator.randrange(1, vocab) for _ in range(30)]]


def assert_equals_hugging_face(model, asked):
    for prompt, results in zip(asked, model.generate(asked, max_new_tokens=6), strict=True):
        with torch.no_grad():
            ids = model.network.generate(
                torch.tensor([prompt]), max_new_tokens=6, do_sample=False,
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                eos_token_id=model.end_tokens, pad_token_id=0,
            )  # fmt: skip
        wanted = ids[0, len(prompt) :].tolist()
        ended = wanted[-1] in model.end_tokens
        assert list(results.ids) == (wanted[:-1] if ended else wanted)
        assert (results.finished == "eos") == ended


@pytest.mark.parametrize("copied_tokens", [0, 10**9])
def test_equals_hugging_face(model, copied_tokens):
    assert_equals_hugging_face(with_limits(model, copied_tokens=copied_tokens), prompts(model))


def test_layers_with_a_window_equal_hugging_face(build_windowed):
    """Padding in a cache that keeps eight tokens would push real ones out."""
    model = build_windowed(8)
    asked = [*prompts(model), [5, 6], [7, 8], [11] * 5, [12] * 20]
    assert_equals_hugging_face(model, asked)


@pytest.mark.parametrize("place", ["tokenizer", "config", "generation_config"])
def test_any_end_token_ends_a_row(build, place):
    model = build("llama")
    free = model.generate([[5, 6, 7]], max_new_tokens=4)[0]
    last = next(i for i, token in enumerate(free.ids) if token not in free.ids[:i] and i)
    tokenizer = copy.deepcopy(model.tokenizer)
    if place == "tokenizer":
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(free.ids[last])
    else:
        of = getattr(model.network, place)
        of.eos_token_id = free.ids[last] if place == "config" else [1, free.ids[last]]
    again = LanguageModel(model.network, tokenizer)
    (results,) = again.generate([[5, 6, 7]], max_new_tokens=4)
    assert (results.ids, results.finished) == (free.ids[:last], "eos")


def test_stop_strings_cut_the_text(models):
    model = models["diff"]
    asked = prompts(model)
    free = model.generate(asked, max_new_tokens=10)
    stop = free[0].text[3:5]
    for results, whole in zip(
        model.generate(asked, max_new_tokens=10, stop=(stop,)), free, strict=True
    ):
        assert results.text == whole.text.split(stop)[0]
        assert (results.finished == "stop") == (stop in whole.text)


END, THINK = "<|turn_end|>", "<think>"


@pytest.mark.parametrize(
    ("written", "stop", "text"),
    [
        (["the road", END, " again"], [END], "the road"),
        (["the road", END, "\n", " again"], [f"{END}\n"], "the road"),
        (["the road", END, " again"], [f"road{END}"], "the "),
        ([THINK, "the road", END, " again"], ["never", END], "the road"),
        ([END, "the road"], [END], ""),
        (["the ", THINK, "road", " again"], ["oad"], "the r"),
        (["the road", THINK, " again"], [END, ""], "the road again"),
    ],
)
def test_a_special_token_stops_and_is_no_part_of_the_text(written, stop, text):
    model = of_tokenizer(byte_pairs("the road again " * 20, special=(END, THINK)))
    ids = [token for part in written for token in model.encode(part, special=True)]
    prompt = model.encode_prompt("go")
    write_after(model, len(prompt), [*ids, model.tokenizer.eos_token_id])
    (results,) = model.generate([prompt], max_new_tokens=len(ids) + 1, stop=stop)
    assert results.text == text
    assert results.finished == ("eos" if text.endswith("again") else "stop")


@pytest.mark.parametrize("prompt", [[], [1] * 1020])
def test_what_does_not_fit(models, prompt):
    with pytest.raises(ItemError, match=r"a token or more|must fit the model's 1024 tokens"):
        models["diff"].generate([prompt], max_new_tokens=5)


def test_what_was_read_before_counts(model):
    long, *rows = [3, 5, 8] * 90, [7], [9, 2, 4], [11] * 6
    wanted = model.generate([long + row for row in rows], max_new_tokens=8)
    assert model.generate(rows, max_new_tokens=8, before=model.read(long)) == wanted
    with pytest.raises(ItemError, match="got 1028"):
        model.generate([[1] * 750], max_new_tokens=8, before=model.read(long))
