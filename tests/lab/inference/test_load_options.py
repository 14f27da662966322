"""How a model is opened: its dtype, its revision, its own code, and what a pass may hold."""

import json

import pytest
import torch
from transformers import GenerationConfig

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.cli.generate import generate
from diffattn.lab.inference import network_reader
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import STANDARD_LIMITS, limits_on
from diffattn.lab.inference.scoring import Continuation
from diffattn.models.loading import load_model
from language_models import save, tiny_llama

GIB = 2**30
CONTINUATION = Continuation((1, 2, 3), (4, 5))
CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own_llama"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture(scope="module")
def bfloat16_folder(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(tokenizer).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.bfloat16),
        ({"dtype": "auto", "device": "cpu"}, torch.bfloat16),
        ({"dtype": "float32"}, torch.float32),
        ({"dtype": "float16", "device_map": "cpu"}, torch.float16),
    ],
)
def test_the_dtype_is_the_checkpoints_unless_named(bfloat16_folder, options, dtype):
    model = LanguageModel.load(str(bfloat16_folder), **options)
    assert {x.dtype for x in model.network.parameters()} == {dtype}
    assert model.facts()["dtype"] == str(dtype).removeprefix("torch.")
    (scored,) = model.score([CONTINUATION]) if dtype != torch.float16 else [None]
    assert scored is None or scored.logprob < 0


@pytest.fixture
def two_ends(tokenizer, tmp_path):
    """A folder whose ``generation_config.json`` alone names 9 as an end, and wants a sampled text.

    Every token but the first is followed by 9.
    """
    network = tiny_llama(tokenizer, eos_token_id=2)
    with torch.no_grad():
        for parameter in network.model.layers.parameters():
            parameter.zero_()  # the stream is the embedding
        network.model.embed_tokens.weight.fill_(1)
        network.lm_head.weight.zero_()
        network.lm_head.weight[9] = 1
    network.generation_config.update(
        eos_token_id=[2, 9], do_sample=True, temperature=0.5, max_length=7
    )
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_where_a_folder_ends_a_text_is_kept_and_how_it_samples_is_not(two_ends):
    network, _ = load_model(str(two_ends))
    assert network.generation_config == GenerationConfig(eos_token_id=[2, 9])
    model = LanguageModel.load(str(two_ends), device="cpu")
    assert model.end_tokens == [0, 2, 9]
    (results,) = model.generate([[5, 6]], max_new_tokens=8)
    assert (results.ids, results.finished) == ((), "eos")


@pytest.mark.parametrize("value", ["no", [1.5], {}, True])
def test_ends_that_are_no_ids_are_refused(two_ends, value):
    path = two_ends / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": value}))
    with pytest.raises(
        (ConfigError, CheckpointError), match=r"GenerationConfig: eos_token_id must be an id, a li"
    ):
        load_model(str(two_ends))


def test_the_command_ends_where_the_model_does(two_ends, capsys):
    generate(str(two_ends), prompt="the city", max_new_tokens=8, temperature=0.0, seed=0)
    end = LanguageModel.load(str(two_ends), device="cpu").decode([9])
    assert capsys.readouterr().out == f"the city{end}\n"  # not eight of them


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float64"}, "dtype must be in {auto, float32, bfloat16, float16}, got"),
        ({"revision": "main"}, "revision must be of a hub name, got 'main'"),
        ({"device": "cpu", "device_map": "auto"}, "device must be left out where a device_map is"),
    ],
)
def test_options_that_cannot_be(bfloat16_folder, options, message):
    with pytest.raises(ConfigError, match=message):
        LanguageModel.load(str(bfloat16_folder), **options)


def test_code_of_a_model_runs_on_request_only(bfloat16_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    monkeypatch.syspath_prepend(str(tmp_path / "m"))
    folder = tmp_path / "own"
    model = LanguageModel.load(str(bfloat16_folder))
    save(model, folder)
    values = json.loads((folder / "config.json").read_text()) | {
        "model_type": "own_llama", "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "own.py").write_text(CODE)
    with pytest.raises(CheckpointError):
        LanguageModel.load(str(folder))
    trusted = LanguageModel.load(str(folder), trust_remote_code=True)
    assert type(trusted.network).__name__ == "OwnForCausalLM"
    assert trusted.score([CONTINUATION]) == model.score([CONTINUATION])


@pytest.mark.parametrize(
    ("device", "free", "cache"),
    [
        ("cpu", 64 * GIB, GIB // 2),  # a CPU keeps the standard
        ("cpu", GIB, GIB // 4),
        ("cuda", 3 * GIB, GIB // 2),
        ("cuda", 20 * GIB, 4 * GIB),
        ("cpu", None, GIB // 2),
    ],
)
def test_a_pass_holds_what_the_memory_allows(monkeypatch, device, free, cache):
    monkeypatch.setattr(network_reader, "available_bytes", lambda: free)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    limits = limits_on(torch.device(device))
    assert limits.cache_bytes == cache
    assert limits.batch_tokens == STANDARD_LIMITS.batch_tokens * max(1, 2 * cache // GIB)
    assert limits.chunk_logits <= STANDARD_LIMITS.chunk_logits
    assert limits.chunk_tokens == STANDARD_LIMITS.chunk_tokens
