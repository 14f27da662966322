"""Settings that cannot be are refused in one line, and presets have the papers' sizes."""

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.catalog import PRESETS
from diffattn.lab.evaluation.hallucination.tasks import TASKS
from diffattn.lab.evaluation.registry import parts, protocol_class

WRONG = [
    ("ar_hits", {"n": (1,)}, "n must be different numbers from 2 on"),
    ("ar_hits", {"n": (2, 2)}, "n must be different numbers from 2 on"),
    ("ar_hits", {"length": 3}, "length must be 4 or more, got 3"),
    ("ar_hits", {"threshold": -1}, "threshold must be 0 or more"),
    ("ar_hits", {"validation_fraction": 1.0}, "validation_fraction must lie between 0 and 1"),
    ("attention_segments", {"num_needles": 0}, "num_needles must be from 1 to"),
    ("attention_segments", {"num_needles": 1000}, "num_needles must be from 1 to 141 cities"),
    ("attention_segments", {"depths": ()}, "depths must be from 0 to 100"),
    ("attention_segments", {"length": 0}, "lengths must be different numbers"),
    ("babilong", {"tasks": ("qa6",)}, r"tasks must be in .*, got 'qa6'\. Did you mean 'qa\d'"),
    ("babilong", {"lengths": (0, 0)}, "lengths must be different numbers of tokens from 0 on"),
    ("babilong", {"lengths": (-1,)}, "lengths must be different numbers of tokens from 0 on"),
    ("hidden_needle", {"depths": 1}, "depths must be 2 or more"),
    ("hidden_needle", {"needles": 99}, "needles must be at most 10, got 99"),
    ("hidden_needle", {"max_new_tokens": 0}, "max_new_tokens must be 1 or more"),
    ("key_values", {"lengths": (4096,), "num_pairs": (50,)}, "lengths and num_pairs must be null"),
    ("key_values", {"num_pairs": (6,)}, r"from questions \+ examples = 7 on, got \(6,\)"),
    ("key_values", {"num_pairs": ()}, "num_pairs must be different numbers"),
    ("key_values", {"num_pairs": (9, 9)}, "num_pairs must be different numbers"),
    ("key_values", {"samples": 7}, "samples must be a multiple of questions=5, got 7"),
    ("lm_tasks", {"tasks": ("arc_eazy",)}, r"got 'arc_eazy'\. Did you mean 'arc_easy'\?"),
    ("lm_tasks", {"tasks": ()}, "must list one name or more, each once"),
    ("lm_tasks", {"tasks": "piqa"}, "must list one name or more, each once"),
    ("lm_tasks", {"tasks": ("piqa", "piqa")}, "must list one name or more, each once"),
    ("lm_tasks", {"num_fewshot": -1}, "num_fewshot must be 0 or more"),
    ("lm_tasks", {"limit": 2.5}, "limit must be whole numbers, got 2.5"),
    ("lm_tasks", {"seed": "x"}, "seed must be a whole number"),
    ("many_shot", {"dataset": "trek"}, "Did you mean 'trec'"),
    ("many_shot", {"decoding": "greedy"}, "decoding must be in"),
    ("many_shot", {"shots": ()}, "shots must be 1 or more"),
    ("needle", {"tasks": ((2, 3),)}, "1 <= R <= N"),
    ("needle", {"tasks": ((500, 1),)}, "1 <= R <= N <= 141 cities"),
    ("needle", {"tasks": ()}, "1 <= R <= N"),
    ("needle", {"lengths": (600, 600)}, "lengths must be different numbers"),
    ("needle", {"depths": (0, 120)}, "depths must be from 0 to 100"),
    ("needle", {"samples": 0}, "samples must be 1 or more"),
    ("needle", {"prompt": "poem"}, "prompt must be in {completion, lwm}"),
    ("quantized_logits", {"protocol": "quantized_logits"}, "protocol must be in"),
    ("quantized_logits", {"settings": {"taks": ["piqa"]}}, "Did you mean 'lm_tasks.tasks'"),
    ("quantized_logits", {"bits": (16, 16)}, "each once"),
    ("quantized_logits", {"bits": (3.5,)}, "from 2 to 16"),
    ("quantized_logits", {"bits": ()}, "must list widths"),
    ("quantized_logits", {"granularity": "column"}, "granularity must be in"),
    ("ruler", {"tasks": ("niah_singel_1",)}, r"got 'niah_singel_1'\. Did you mean 'niah_single_"),
    ("ruler", {"tasks": ("qa_1",)}, "'qa_1' needs a file, got none. Name it: --set ruler.squad="),
    ("ruler", {"lengths": ()}, "lengths must be different numbers"),
    ("sliding_perplexity", {"windows": (256,), "stride": 256}, "below every window"),
    ("sliding_perplexity", {"windows": (2048,), "tokens": 1024}, "tokens must be 2048 or more"),
    ("word_perplexity", {"stride": 0}, "stride must be 1 or more, got 0"),
]


@pytest.mark.parametrize(("name", "settings", "message"), WRONG)
def test_wrong_settings(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        protocol_class(name)(**settings)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_build(preset):
    assert [part.variant for part in parts([preset])] == list(PRESETS[preset])


@pytest.mark.parametrize(
    ("preset", "name"),
    [("table2", "needle"), ("table3", "attention_segments"), ("table6", "ar_hits")],
)
def test_some_presets_are_the_defaults(preset, name):
    (part,) = parts([preset])
    assert part.protocol == protocol_class(name)()


def test_presets_have_the_sizes_of_the_papers():
    names = ("fig1", "fig4", "fig5", "fig8", "table8")
    chosen = {part.variant: part.protocol for part in parts(names)}
    assert chosen["fig1"].depths == (50,)
    assert chosen["nll_by_position"].length == 65_536
    assert chosen["fig5"].tasks == ((8, 1),)
    assert chosen["fig5"].lengths == tuple(range(8_192, 65_537, 8_192))
    assert chosen["quantized_logits"].bits == (16, 8, 6, 4)
    assert chosen["quantized_logits"].parameters()["settings"]["tasks"] == ("hellaswag",)
    assert (chosen["lm_tasks_0shot"].num_fewshot, chosen["lm_tasks_5shot"].num_fewshot) == (0, 5)
    single = protocol_class("single_needle")()
    assert (len(single.lengths), single.lengths[0], single.lengths[-1]) == (15, 1024, 16384)
    assert (len(single.depths), single.depths[0], single.depths[-1]) == (15, 0, 100)
    quick = parts(["table4"], ["hallucination.samples=2"], quick=True)
    assert [part.protocol.dataset for part in quick] == list(TASKS)
    assert {(part.protocol.samples, part.protocol.data) for part in quick} == {(2, "generated")}


@pytest.mark.parametrize(
    ("dataset", "count", "last"),
    [("trec", 42, 3_540), ("trec_fine", 33, 3_200), ("banking77", 34, 2_618),
     ("clinic150", 21, 3_150)],
)  # fmt: skip
def test_the_numbers_of_demonstrations_are_those_of_the_figure(dataset, count, last):
    grid = protocol_class("many_shot")(dataset=dataset).grid
    assert (len(grid), grid[-1]) == (count, last)
