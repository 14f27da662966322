"""Another protocol under rounded logits: paired, exact at 16 bits, whatever runs beside it."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from diffattn.errors import ConfigError, DiffAttnError
from diffattn.lab.evaluation.icl import demonstrations
from diffattn.lab.evaluation.lm_tasks.lm_tasks import LmTasks
from diffattn.lab.evaluation.quantized_logits import QuantizedLogits
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import STANDARD_LIMITS
from diffattn.lab.inference.scoring import Continuation
from diffattn.probes.quantized_logits import quantized_logits
from evaluation_folders import evaluated, values
from lm_documents import write_task

_ONE_PAIR = {"num_pairs": [1], "samples": 1, "questions": 1, "examples": 0}
KEY_VALUES = {"protocol": "key_values", "settings": _ONE_PAIR}


def run(model, out, **settings):
    return evaluated(model, QuantizedLogits(**settings), out)


def test_every_kind_of_model(model, corpus, tmp_path):
    before = model.network.config._attn_implementation
    result, rows = run(
        model, tmp_path / "out", **KEY_VALUES, bits=(16, 8, 4), text=corpus,
        num_windows=4, windows_per_document=2, window_tokens=32,
    )  # fmt: skip
    assert (result.num_items, result.num_failed) == (3 * (1 + 4), 0)
    assert values(result, "recall", "bits").keys() == {16, 8, 4}
    assert values(result, "perplexity", "bits").keys() == {16, 8, 4}
    changes = values(result, "change of text loss", "bits")
    assert 0 < abs(changes[8]) < abs(changes[4])
    losses = values(result, "text loss", "bits")
    assert changes[4] == pytest.approx(losses[4] - losses[16])
    assert values(result, "perplexity", "bits")[4] == pytest.approx(math.exp(losses[4]))
    assert model.network.config._attn_implementation == before
    assert not model.rows_alone
    texts = [row for row in rows if row["wrapped_id"].startswith("text-window")]
    assert {row["cluster"] for row in texts} == {"0.txt", "1.txt"}


def test_perplexity_equals_a_plain_pass(models, corpus, tmp_path, text):
    model = models["diff"]
    _, rows = run(
        model, tmp_path / "out", **KEY_VALUES, bits=(16, 6), text=corpus,
        num_windows=2, windows_per_document=2, window_tokens=40,
    )  # fmt: skip
    found = {row["id"]: row["scores"] for row in rows}
    ids = model.encode(text)
    for i in range(2):
        window = [model.bos, *ids[40 * i : 40 * (i + 1)]]
        for bits in (16, 6):
            with torch.no_grad(), quantized_logits(model.network, bits):
                logits = model.network(torch.tensor([window[:-1]])).logits
            expected = torch.nn.functional.cross_entropy(
                logits[0].float(), torch.tensor(window[1:])
            )
            loss = found[f"{bits}-bits-text-window-{i}"][f"text loss, {bits} bits"]
            assert loss == pytest.approx(float(expected), rel=1e-5)


def test_examples_are_read_once_for_each_number_of_bits(models, tmp_path, monkeypatch):
    """Each number of bits has a cache of its own, as if it were the only one."""
    reads, load = [], demonstrations.load_icl_data
    monkeypatch.setattr(demonstrations, "load_icl_data", lambda *x: reads.append(x) or load(*x))
    examples = {"data": "generated", "shots": [6, 12], "test_items": 4}
    settings = {"protocol": "many_shot", "settings": examples, "text": None}
    _, rows = run(models["diff"], tmp_path / "both", **settings, bits=(16, 4))
    assert len(reads) == 3  # once for the list of items
    for bits in (16, 4):
        _, alone = run(models["diff"], tmp_path / str(bits), **settings, bits=(bits,))
        assert [row["scores"] for row in rows if row["bits"] == bits] == [
            row["scores"] for row in alone
        ]


def test_16_bits_are_the_wrapped_protocol(models, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    write_task(tmp_path / "data", "hellaswag", 6)
    settings = {"tasks": ["hellaswag"], "data": str(tmp_path / "data")}
    model = models["diff_v2"]
    result, rows = run(model, tmp_path / "a", settings=settings, bits=(16, 4), text=None)
    plain = LmTasks(tasks=("hellaswag",), data=str(tmp_path / "data"))
    expected, plain_rows = evaluated(model, plain, tmp_path / "b")
    plain_rows = {row["id"]: row for row in plain_rows}
    for row in rows:
        if row["bits"] == 16:  # eager attention has its softmax in float32
            assert row["logprobs"] == pytest.approx(
                plain_rows[row["wrapped_id"]]["logprobs"], rel=1e-4
            )
    assert [m.value for m in expected.metrics] == [
        m.value for m in result.metrics if m.where.get("bits") == 16
    ]
    assert {tuple(m.where.items()) for m in result.metrics if m.headline} == {
        (("task", "hellaswag"), ("bits", 16)),
        (("task", "hellaswag"), ("bits", 4)),
    }


def test_weights_and_directions_are_the_wrapped_protocols(models, text, tmp_path):
    """A change of the loss per word weighs words, as the loss does; less of it is better."""
    (tmp_path / "texts").mkdir()
    for name, part in (("short", text[:200]), ("long", text[200:1_400])):
        (tmp_path / "texts" / f"{name}.txt").write_text(part)
    settings = {"texts": str(tmp_path / "texts"), "window": 64, "stride": 32}
    wrapping = {"protocol": "word_perplexity", "settings": settings, "bits": (16, 4), "text": None}
    result, rows = run(models["diff"], tmp_path / "out", **wrapping)
    losses = values(result, "nll_per_word", "bits")
    (change,) = [m for m in result.metrics if m.name == "change of nll_per_word"]
    assert change.value == pytest.approx(losses[4] - losses[16])
    assert (change.higher_is_better, change.method) == (
        False,
        "Student t over clusters (jackknife)",
    )
    by_id = {row["id"]: row["weights"] for row in rows}
    words = len(text[:200].split())
    assert by_id["4-bits-short.txt"]["nll_per_word, 4 bits"] == words


def test_results_do_not_depend_on_the_memory_that_is_left(models, corpus):
    """Little of it makes chunks shorter, and a chunk shares a scale."""
    protocol = QuantizedLogits(
        **KEY_VALUES, bits=(4,), text=corpus, num_windows=1, window_tokens=40
    )  # fmt: skip
    scarce = copy.copy(models["diff"])
    few = 8 * scarce.network.config.vocab_size
    scarce.limits = replace(STANDARD_LIMITS, chunk_logits=few)
    (item,) = protocol.batches(scarce)[-1]
    assert protocol.ask(scarce, [item]) == protocol.ask(models["diff"], [item])
    scarce.rows_alone = True
    window = item.payload.window
    with quantized_logits(scarce.network, 4):  # else it would show nothing
        (chunked,) = scarce.score([Continuation(window[:1], window[1:])])
    loss = protocol.ask(scarce, [item])[0]["scores"]["text loss, 4 bits"]
    assert -chunked.logprob / (len(window) - 1) != loss


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("needle", {"tasks": [[1, 1]], "lengths": [256], "depths": [0, 100], "samples": 1}),
        ("sliding_perplexity", {"windows": [64], "stride": 32, "tokens": 128, "documents": 1}),
    ],
)
def test_other_protocols_run_every_row_alone(models, corpus, name, settings):
    """No pass holds several rows, and no prefix serves several."""
    model, source = models["diff"], "haystack" if name == "needle" else "texts"
    wrapping = {"protocol": name, "settings": settings | {source: corpus}}
    protocol = QuantizedLogits(**wrapping, bits=(4,), text=None)
    rows = []
    hook = model.network.base_model.register_forward_pre_hook(
        lambda module, args: rows.append(len(args[0]))
    )
    try:
        batch = protocol.batches(model)[0]
        together = protocol.ask(model, batch)
        assert together == [protocol.ask(model, [item])[0] for item in batch]
    finally:
        hook.remove()
    assert set(rows) == {1}


def test_a_protocol_that_reads_attention_maps_is_refused(models, corpus, tmp_path):
    settings = {"length": 512, "num_needles": 3, "depths": (50,), "samples": 1, "haystack": corpus}
    with pytest.raises(DiffAttnError, match=r"must not be changed inside|attention maps need"):
        run(
            models["diff"], tmp_path / "out", protocol="attention_segments", settings=settings,
            bits=(4,), text=None,
        )  # fmt: skip


def test_the_record_names_the_wrapped_protocol_in_full():
    parameters = QuantizedLogits(**KEY_VALUES).parameters()
    unsaid = {"lengths": None, "seed": 1234}
    assert parameters["settings"] == _ONE_PAIR | {"num_pairs": (1,)} | unsaid
    assert parameters["wrapped_version"] == 4


def test_a_tokenizer_without_bos_and_eos(models, corpus):
    tokenizer = copy.deepcopy(models["softmax"].tokenizer)
    tokenizer.bos_token = tokenizer.eos_token = None
    model = LanguageModel(models["softmax"].network, tokenizer)
    with pytest.raises(ConfigError, match="needs a tokenizer with BOS or EOS"):
        QuantizedLogits(**KEY_VALUES, text=corpus).batches(model)
