"""Settings that cannot be are refused in one line, and presets have the papers' sizes."""

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.catalog import PRESETS
from diffattn.lab.evaluation.hallucination.data import TASKS
from diffattn.lab.evaluation.protocol import parts, protocol_class

WRONG = [
    ("ar_hits", {"n": (1,)}, "n must be 2 or more"),
    ("ar_hits", {"length": 3}, "length must be 4 or more, .* got 3"),
    ("ar_hits", {"validation_fraction": 1.0}, "validation_fraction must lie between 0 and 1"),
    ("attention_segments", {"num_needles": 1000}, "must be 1 or more and at most 141"),
    ("block_perplexity", {"layout": "wiki"}, "layout must be in {documents, wikitext}"),
    ("block_perplexity", {"split": "train"}, "split must be left out .* got 'train' for 'stdlib'"),
    ("babilong", {"tasks": ("qa6",)}, r"tasks must be in .*, got 'qa6'\. Did you mean 'qa\d'"),
    ("hallucination", {"dataset": "xsumm"}, "dataset must be in {xsum, cnn_dm"),
    ("key_values", {"lengths": (4096,), "num_pairs": (50,)}, "lengths and num_pairs must be null"),
    ("key_values", {"num_pairs": (6,)}, r"num_pairs must be 7 or more, .* got \(6,\)"),
    ("key_values", {"samples": 7}, "samples must be a multiple of questions=5, got 7"),
    ("lm_tasks", {"tasks": ("piqa", "piqa")}, "must list one name or more, each once"),
    ("lm_tasks", {"limit": 2.5}, "limit must be 1 or more, as a whole number .*, got 2.5"),
    ("many_shot", {"dataset": "trek"}, "Did you mean 'trec'"),
    ("needle", {"tasks": ((2, 3),)}, "1 <= R <= N"),
    ("needle", {"depths": (0, 120)}, "depths must be from 0 to 100"),
    ("quantized_logits", {"protocol": "quantized_logits"}, "protocol must be in"),
    ("quantized_logits", {"settings": {"taks": ["piqa"]}}, "Did you mean 'lm_tasks.tasks'"),
    ("quantized_logits", {"bits": (3.5,)}, "2 or more and at most 16"),
    ("ruler", {"tasks": ("qa_1",)}, "'qa_1' needs a file, got none. Name it: --set ruler.squad="),
    *(("ruler", {"lengths": x}, "lengths must be 1 or more") for x in ((), (0,), (5, 5), (1.5,))),
    ("sliding_perplexity", {"windows": (256,), "stride": 256}, "windows must be 257 or more"),
    ("sliding_perplexity", {"windows": (512, 512)}, "windows must be"),
    ("needle", {"tasks": ((1, 1), (1, 1))}, "each once"),
    *(
        (name, {"columns": {x: "a"}, "data": "generated"}, "columns must be left out")
        for name, x in (("many_shot", "text"), ("lm_tasks", "question"))
    ),
    ("sliding_perplexity", {"windows": (2048,), "tokens": 1024}, "tokens must be 2048 or more"),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_wrong_settings(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        protocol_class(name)(**settings)


BOOK = "A book of many words, and none of them of any use. " * 400
ONE_PAIR = {"num_pairs": [1], "samples": 1, "questions": 1, "examples": 0}
KEY_VALUES = {"protocol": "key_values", "settings": ONE_PAIR}
CHAT = "needs a tokenizer with a chat template"
REFUSED = [
    # Of a model of 1,024 tokens. Texts of one file are given as they are.
    ("ar_hits", {}, "length must be at most the 1024 tokens of diff, got 2048"),
    ("attention_segments", {"length": 100}, "Choose a greater length"),
    ("babilong", {"lengths": (0, 200), "samples": 2}, "a length of 200 tokens is too short"),
    ("babilong", {"haystack": "Too little. " * 50, "lengths": (1_000,), "tasks": ("qa1",)},
     "^babilong: the haystack '.*' must hold 1000 tokens"),
    ("babilong", {"chat": True}, CHAT),
    ("block_perplexity", {"texts": "the old king"}, "must hold a block of 1024 tokens, got"),
    ("hallucination", {"data": None}, "data must name a file or a folder with xsum.jsonl"),
    ("hallucination", {"data": "generated", "prompt_tokens": 2_033, "max_new_tokens": 6},
     r"must fit the 1024 tokens of diff, got 2033 \+ 6"),
    ("hallucination", {"data": "generated", "prompt_tokens": 5}, "hold the instruction of xsum"),
    ("hidden_needle", {"lengths": (50, 250)}, r"must be \d+ tokens or more, twice the longest"),
    ("hidden_needle", {"lengths": (1_000,)},
     r"of diff without the \d+ of prompt and answer, got 1000"),
    ("key_values", {"lengths": (400,)}, r"a length of 400 tokens is too short for 7 pairs; .* at "
     r"least \d+ tokens, got 400"),
    ("key_values", {"num_pairs": (99,)}, r"diff is too short for 99 pairs; .* got 1024"),
    ("needle", {"lengths": (1_000,), "haystack": "Too short. To hide in."},
     r"must hold \d+ tokens of diff's tokenizer, got 21"),
    ("nll_by_position", {"length": 500, "texts": "Too short."},
     r"must have 500 tokens.*'text.txt', has \d+"),
    ("outliers", {"texts": "One.", "window_tokens": 1_000}, "must hold a document of 999 tokens"),
    ("quantized_logits", KEY_VALUES | {"window_tokens": 1_025}, "at most the 1024 tokens of diff"),
    ("quantized_logits", KEY_VALUES | {"text": "Too short.", "window_tokens": 64},
     "must hold a document of 64 tokens"),
    ("ruler", {"lengths": (1_024,), "tasks": ("niah_single_2",), "haystack": "Too little. " * 40},
     "^ruler: the haystack '.*text.txt' must hold 1024 tokens"),
    ("ruler", {"lengths": (1_024,), "tasks": ("niah_single_2",), "haystack": None},
     "data source: must be"),
    ("word_perplexity", {"texts": "", "window": 512, "stride": 9}, "UTF-8 text, got none"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_what_cannot_run_is_refused_before_the_first_item(name, settings, message, build, tmp_path):
    kind = protocol_class(name)
    (source,) = {"haystack", "texts", "text"} & set(dir(kind)) or {None}
    if source is not None:
        text, path = settings.get(source, BOOK), tmp_path / "text.txt"
        if text is not None:  # else there is no such file
            path.write_text(text)
        settings = settings | {source: str(path)}
    protocol = kind(**settings)
    with pytest.raises(ConfigError, match=message) as caught:
        protocol.batches(build("diff"))
    assert "\n" not in str(caught.value)


def test_a_model_too_short_for_the_prompt_alone_is_refused(build):
    with pytest.raises(ConfigError, match="a length of 300 tokens is too short"):
        protocol_class("babilong")(samples=2).batches(build("diff", max_length=300))


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_build(preset):
    assert [part.variant for part in parts([preset])] == list(PRESETS[preset])


def test_settings_of_a_preset_come_before_its_reduced_sizes():
    quick = parts(["table4"], ["hallucination.samples=2"], quick=True)
    assert [part.protocol.dataset for part in quick] == list(TASKS)
    assert {(part.protocol.samples, part.protocol.data) for part in quick} == {(2, "generated")}
