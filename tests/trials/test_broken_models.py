"""A model that gives NaN: every protocol and ``generate`` say so, and nothing is scored."""

import contextlib
import copy
import dataclasses
import json
import math
import random
import re

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from diffattn.errors import DiffAttnError
from diffattn.files.io import read_jsonl
from diffattn.lab.cli.app import app
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.lm_tasks.documents import TASKS
from diffattn.lab.evaluation.protocol import parts, protocol_class
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.models.attention.kernels import AttentionMapRecorder
from language_models import save
from lm_documents import write_task
from tally import sample, trial

NAN, INF = math.nan, math.inf
REASON = re.compile(r"must be finite|lam must not be NaN")
"""Of the check of logits and maps, or of the operator, which meets λ before them."""
TOKENS = 200
"""After so many tokens a model breaks that is sound at first."""


def fill(value, *where):
    """Change logits ``[B, T, V]`` at an index."""

    def change(logits, cached):
        logits[where] = value

    return change


def in_first_row(logits, cached):
    if len(logits) > 1:
        logits[0] = NAN


def late(logits, cached):
    if cached > TOKENS:
        logits[:] = NAN


def now_and_then(logits, cached):
    if random.Random(logits.shape[1] * 7 + cached).random() < 0.3:
        logits[-1, -1] = NAN


# Changes of the logits, and whether every item is hit by them.
ALL = slice(None)
LOGITS = {
    "NaN everywhere": (fill(NAN, ALL), True),
    "NaN in the first row of several": (in_first_row, False),
    "NaN after many tokens": (late, False),
    "NaN now and then": (now_and_then, False),
    "+inf in one entry": (fill(INF, ALL, ALL, 3), True),
    "-inf after the last token": (fill(-INF, ALL, -1), False),
}
# Weights by the end of their names, and what is written to them: all items are hit.
WEIGHTS = {
    "NaN in a key": ("layers.1.self_attn.k_proj.weight", NAN),
    "NaN in a feed-forward": ("layers.1.mlp.down_proj.weight", NAN),
    "NaN in lambda": ("layers.0.self_attn.lambda_", NAN),
    "lambda overflows": ("layers.1.self_attn.lambda_", 1e4),
    "-inf in a norm": ("layers.0.input_layernorm.weight", -INF),
}
MAPS = {f"maps of {value}": value for value in (NAN, INF, -INF)}
READ_MAPS = ("attention_segments", "hallucination")


def changed_logits(network, change):
    """``with`` it, the same network has changed logits."""

    def hook(module, args, output):
        cache = output.past_key_values
        change(output.logits, 0 if cache is None else cache.get_seq_length())

    return network.register_forward_hook(hook)


def changed_maps(network, value):
    """``with`` it, attention maps alone are changed: answers stay as they are."""

    def hook(module, args):
        signed, raw = args
        return signed.new_full(signed.shape, value), raw

    recorders = [m for m in network.modules() if isinstance(m, AttentionMapRecorder)]
    assert recorders
    changes = contextlib.ExitStack()
    for recorder in recorders:
        changes.enter_context(recorder.register_forward_pre_hook(hook))
    return changes


def with_weights(model, name, value):
    """A copy of a model with some weights set."""
    network = copy.deepcopy(model.network)
    weights = [weight for key, weight in network.named_parameters() if name in key]
    assert weights, name
    with torch.no_grad():
        for weight in weights:
            weight.view(-1)[: max(1, weight.numel() // 4)] = value
    return LanguageModel(network, model.tokenizer, label=model.label)


@pytest.fixture(scope="module")
def chosen(text, tmp_path_factory):
    """Every protocol at reduced size, on generated data."""
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    folder = tmp_path_factory.mktemp("data")
    (folder / "texts").mkdir()
    sentences = text.split(". ")
    texts, tasks = folder / "texts", folder / "tasks"
    for i in range(3):
        long = ". ".join(random.Random(i).choices(sentences, k=1_000))
        (texts / f"{i}.txt").write_text(long, encoding="utf-8")
    for task in TASKS:
        write_task(tasks, task, 4)
    quantized = {"tasks": ["hellaswag"], "data": str(tasks), "limit": 2}
    settings = {
        "lm_tasks.data": tasks, "lm_tasks.limit": 2, "ar_hits.data": texts, "ar_hits.sequences": 4,
        "quantized_logits.settings": json.dumps(quantized), "word_perplexity.documents": 1,
        "babilong.samples": 1, "needle.samples": 1,
        "hidden_needle.needles": 1, "hallucination.samples": 2, "many_shot.test_items": 3,
        "order_robustness.test_items": 3, "remapped_labels.test_items": 3,
        "attention_segments.samples": 1,
    }  # fmt: skip
    for name in PROTOCOLS:
        named = {field.name for field in dataclasses.fields(protocol_class(name))}
        for field in named & {"haystack", "text", "texts"}:
            settings[f"{name}.{field}"] = texts
    made = parts(["all"], [f"{key}={value}" for key, value in settings.items()], quick=True)
    assert {part.protocol.name for part in made} == set(PROTOCOLS)
    return made


@pytest.fixture(scope="module")
def sound(build):
    return build("diff", max_length=4_096)


@pytest.fixture(scope="module")
def expected(build, chosen, tmp_path_factory):
    """``expected(part)``: the rows of the same model by id, without any change."""
    folder, rows, sound = tmp_path_factory.mktemp("expected"), {}, build("diff", max_length=4_096)

    def of(part):
        if part.variant not in rows:
            evaluate(sound, part, folder / part.variant)
            items = read_jsonl(folder / part.variant / "items.jsonl")
            rows[part.variant] = {row["id"]: row for row in items}
        return rows[part.variant]

    return of


def fault_of(model, part, folder, expected, *, all_hit):
    """What is wrong with the evaluation of a broken model, or ``None``."""
    try:
        evaluate(model, part, folder)
        failed = False
    except DiffAttnError as error:
        failed = True
        if not REASON.search(str(error)) or "\n" in str(error):
            return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    path = folder / "items.jsonl"
    rows = read_jsonl(path) if path.exists() else []
    if not failed and not rows:
        return "no items and no error"
    for row in rows:
        if "error" in row:
            if not REASON.search(row["error"]):
                return f"{row['id']} failed for another reason: {row['error']}"
        elif all_hit:
            return f"{row['id']} was scored: {row.get('scores')}"
        elif not close(row, expected(part)[row["id"]]):
            return f"{row['id']} was scored otherwise: {row.get('scores')}"
    if all_hit and not failed:
        return "the evaluation ended well"
    return "a result was written" if failed and (folder / "result.json").exists() else None


def close(a, b):
    """Equal but for rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3)
    return a == b


def run_all(tally, model, name, chosen, expected, folder, hit):
    """Try all protocols; those that are named in ``hit`` must fail at every item."""
    for part in chosen:
        where, all_hit = folder / part.variant, part.protocol.name in hit
        wrong = fault_of(model, part, where, expected, all_hit=all_hit)
        tally.check(f"{part.variant}: {name}", wrong)


@pytest.mark.scheduled
@pytest.mark.parametrize("name", [*LOGITS, *WEIGHTS, *MAPS])
def test_broken_models(sound, chosen, expected, tmp_path, name):
    """Protocols that read no maps do not notice when maps alone are broken, and need not."""
    model, change, hit = sound, contextlib.nullcontext(), PROTOCOLS
    if name in WEIGHTS:
        model = with_weights(sound, *WEIGHTS[name])
    elif name in MAPS:
        change, hit = changed_maps(sound.network, MAPS[name]), READ_MAPS
    else:
        logits, all_hit = LOGITS[name]
        change, hit = changed_logits(sound.network, logits), PROTOCOLS if all_hit else ()
    with trial(f"broken models: {name}", minimum=17) as tally, torch.no_grad(), change:
        run_all(tally, model, name, chosen, expected, tmp_path, hit)


def test_broken_models_in_short(sound, chosen, expected, tmp_path):
    change, hit = LOGITS["NaN everywhere"][0], ("key_values", "attention_segments")
    parts_of_few = [part for part in chosen if part.protocol.name in hit]
    with (
        trial("broken models, in short", minimum=2) as tally,
        changed_logits(sound.network, change),
    ):
        run_all(tally, sound, "NaN", parts_of_few, expected, tmp_path, hit)


KINDS = ("softmax", "diff", "diff_v2", "shared_diff", "llama", "diffllama")
BROKEN_FOLDERS = {
    "NaN in one layer": ("layers.1.self_attn.o_proj.weight", NAN),
    "+inf in the output head": ("lm_head.weight", INF),
}
FEW = ("diff: NaN in one layer: 0.0", "llama: +inf in the output head: 0.7")


def generate_fault(folder, temperature):
    """What is wrong with ``diffattn generate`` on a broken folder, or ``None``."""
    done = CliRunner().invoke(
        app,
        ["generate", str(folder), "--prompt", "the city", "--max-new-tokens", "12",
         "--temperature", str(temperature)],
    )  # fmt: skip
    if done.exit_code == 0:
        return f"wrote {done.output!r}"
    error = done.exception
    text = str(error) if not isinstance(error, SystemExit) else done.output
    if isinstance(error, SystemExit | DiffAttnError):
        return None if REASON.search(text) and "\n" not in text.strip() else text[-300:]
    return f"{type(error).__name__}: {text[:200]}"


@pytest.mark.parametrize("few", [pytest.param(False, marks=pytest.mark.scheduled), True])
def test_generate_says_that_a_model_is_broken(build, tmp_path, few):
    with trial(f"broken models: generate{sample(few)}", minimum=2 if few else 24) as tally:
        for kind in KINDS:
            for name, (weight, value) in BROKEN_FOLDERS.items():
                cases = {t: f"{kind}: {name}: {t}" for t in (0.0, 0.7)}
                wanted = [t for t, case in cases.items() if not few or case in FEW]
                if not wanted:
                    continue
                folder = tmp_path / kind / name.replace(" ", "-")
                save(with_weights(untied(build(kind)), weight, value), folder)
                for temperature in wanted:
                    tally.check(cases[temperature], generate_fault(folder, temperature))


def untied(model):
    """A copy whose output head is a matrix of its own."""
    network = copy.deepcopy(model.network)
    network.config.tie_word_embeddings = False
    network.lm_head.weight = nn.Parameter(network.lm_head.weight.detach().clone())
    return LanguageModel(network, model.tokenizer, label=model.label)


def test_a_suppressed_token_is_no_fault(sound, text):
    """Some models give a token −inf so that it is never written."""
    last = sound.network.config.vocab_size - 1
    prompt = sound.encode_prompt(text[:60])
    before = sound.generate([prompt], max_new_tokens=4)
    with changed_logits(sound.network, fill(-INF, ALL, ALL, last)):
        assert sound.generate([prompt], max_new_tokens=4) == before
