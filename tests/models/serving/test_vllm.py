"""vLLM generates what ``generate`` does. It needs its own environment, see docs/guides/serving.md.

``DIFFATTN_VLLM_PYTHON`` is a Python with vLLM and an installed diffattn.
"""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

PYTHON = os.environ.get("DIFFATTN_VLLM_PYTHON")
pytestmark = [
    pytest.mark.scheduled,
    pytest.mark.skipif(not PYTHON, reason="DIFFATTN_VLLM_PYTHON names no Python with vLLM"),
]
MODES = {
    "plugin": {"enforce_eager": True},
    "plugin-compiled": {},
    "plugin-two-processes": {"enforce_eager": True, "tensor_parallel_size": 2},
    "plugin-chunked": {"enforce_eager": True, "max_num_batched_tokens": 8},
    "remote-code": {"enforce_eager": True, "trust_remote_code": True},
}
"""How vLLM is asked to load and run the folder."""


def run_vllm(folder, options, prompts, cache):
    answer = cache.with_suffix(".json")
    arguments = [str(folder), json.dumps(options), json.dumps(prompts), str(answer)]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each process asks for a NUMA node
        "HF_HOME": str(cache),
        "VLLM_CACHE_ROOT": str(cache),
    }
    if "trust_remote_code" in options:
        environment["VLLM_PLUGINS"] = ""
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("in_vllm.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(answer.read_text())


def small_model(attention_type, **changes):
    config = DiffTransformerConfig(
        attention_type=attention_type, vocab_size=256, hidden_size=128, intermediate_size=256,
        num_hidden_layers=3, num_heads=4, num_kv_heads=2, head_dim=32,
        max_position_embeddings=256, initializer_range=0.2, eos_token_id=None, **changes,
    )  # fmt: skip
    return DiffTransformerForCausalLM(config).eval()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_greedy_tokens_are_those_of_generate(attention_type, mode, tmp_path):
    if mode == "plugin-two-processes" and attention_type == "shared_diff":
        pytest.skip("vLLM splits linear layers alone, not the low-rank updates: fold to V1 first")
    model = small_model(attention_type)
    config = model.config
    model.save_pretrained(tmp_path / "model")
    prompts = torch.randint(256, (3, 20))
    expected = model.generate(prompts, max_new_tokens=24, do_sample=False)[:, 20:]
    actual = run_vllm(tmp_path / "model", MODES[mode], prompts.tolist(), tmp_path / "cache")
    assert actual["tokens"] == expected.tolist()
    if mode != "remote-code":  # which holds V1 twice
        processes = MODES[mode].get("tensor_parallel_size", 1)
        numbers = 2 * math.prod(config.cached_kv_shape) * config.num_hidden_layers / processes
        assert actual["cache_tokens"] == pytest.approx(2**30 / (4 * numbers), rel=0.01)


def save_int8(model, folder):
    """Linear layers as compressed-tensors keeps them; the model gets their rounded weights."""
    model.save_pretrained(folder)
    left = ["lm_head", "lambda_proj", "self_attn.q_down_proj", "self_attn.k_down_proj"]
    tensors = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith(tuple(left)):
            weight = module.weight.data
            scale = weight.abs().amax(1, keepdim=True) / 127
            rounded = (weight / scale).round()
            tensors |= {f"{name}.weight": rounded.char(), f"{name}.weight_scale": scale}
            weight.copy_(rounded * scale)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": numbers | {"strategy": "channel", "dynamic": False},
        "input_activations": numbers | {"strategy": "token", "dynamic": True},
    }
    written = folder / "config.json"
    settings = json.loads(written.read_text())
    settings["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": [f"re:.*{name}" for name in left],
        "config_groups": {"group_0": group},
    }
    written.write_text(json.dumps(settings))


def prompt_logprobs(model, prompts):
    with torch.no_grad():
        logprobs = model(prompts).logits.log_softmax(-1)
    return logprobs[:, :-1].gather(-1, prompts[:, 1:, None])[..., 0]


@pytest.mark.parametrize("attention_type", ["softmax", "diff", "diff_v2", "shared_diff"])
def test_int8_is_as_close_as_rounding_explains(attention_type, tmp_path):
    """Activations of 8 bits add about as much error as weights of 8 bits: √2 times in all."""
    model = small_model(attention_type, tie_word_embeddings=False)
    prompts = torch.randint(256, (3, 64))
    exact = prompt_logprobs(model, prompts)
    save_int8(model, tmp_path / "model")
    by_weights = (prompt_logprobs(model, prompts) - exact).abs().mean()
    options = {"enforce_eager": True}
    actual = run_vllm(tmp_path / "model", options, prompts.tolist(), tmp_path / "cache")
    assert (torch.tensor(actual["logprobs"]) - exact).abs().mean() < 2 * by_weights
