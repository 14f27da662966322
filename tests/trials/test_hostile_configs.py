"""Model folders from strangers: refused in one line that names the file, or loaded and sound."""

import math
from functools import partial

import pytest

from children import in_child
from diffattn.models.config.settings import OPTIONS
from hostile_folders import damaged, edited, fault, try_folder, use, written
from tally import sample, trial
from trials.hostile_values import nested

HUGE = (10**9, 2**63, 10**40)
ODD = ("string", [], [1, 2], {})
NOT_FINITE = (math.nan, math.inf, -math.inf)
COUNTS = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
COUNTS += ["num_heads", "num_kv_heads", "head_dim", "shared_rank"]
FLAGS = ["head_norm", "head_norm_affine", "lambda_bias", "tie_word_embeddings", "use_cache"]
FLAGS += OPTIONS
LISTS = ([], [0.5], [0.5] * 10**5, [math.nan, 0.5], [101, 0], ["a", 0])
EPS = (0, -1, 2, 1e-320, 10**9, 10**40, *NOT_FINITE, *ODD, None)
IMPOSSIBLE = {
    **dict.fromkeys(COUNTS, (0, -1, 1.5, True, *HUGE, *NOT_FINITE, *ODD)),
    "max_position_embeddings": (0, -1, 1.5, *HUGE[1:], *NOT_FINITE, *ODD, None),
    **dict.fromkeys(("head_norm_eps", "rms_norm_eps"), EPS),
    "initializer_range": (-1, -1e-9, 1e30, *HUGE, *NOT_FINITE, *ODD, None),
    "lambda_init": (101, -101, 1e30, *HUGE, *NOT_FINITE, "string", {}, True, *LISTS),
    **dict.fromkeys(FLAGS, ("true", 2, 0.5, *ODD[1:], math.nan)),
    "pad_token_id": (-1, 320, 1.5, *HUGE, *NOT_FINITE, "string", {}),
    "bos_token_id": (-1, 320, 1.5, *HUGE, *NOT_FINITE, "string", {}),
    "eos_token_id": (-1, 320, 1.5, math.nan, "string", {}, [], [-1], [1, 10**9], ["a"], [1.5]),
    "attention_type": ("dif", "", "soft max", 1, None, [], {}, math.nan),
    "attention_backend": ("nonsense", "triton ", 1, [], "os.system"),
    **dict.fromkeys(("dtype", "torch_dtype"), ("nonsense", "nn", "load", "torch.load", 1, [], {})),
    "rope_parameters": ("yarn", 1, [], ["rope_theta"]),
    "rope_scaling": ("string", 1, [1]),
    "return_dict": (False, "true"),
    "output_attentions": (True, "yes"),
    "is_encoder_decoder": (True, 1),
    "chunk_size_feed_forward": (-1, 7, 10**9),
    "num_labels": (-1, 10**9, 2**63, "many", math.nan),
    "quantization_config": ({}, "gptq", 1, []),
    "layer_types": (["sliding_attention"], "x"),
    "per_layer_config": ({"0": {"hidden_size": 10**9}}, [1]),
    "attn_implementation": ("kernels-community/flash-attn", "someone/else:function"),
    "_attn_implementation": ("kernels-community/flash-attn", "eager"),
    "id2label": ("string", {"a": "b"}, [1]),
    "sliding_window": (-1, 2, 10**18, "os.system", {"a": 1}),
    "transformers_weights": ("../x.safetensors", 1),
    "to_dict": (None,),
    "num_attention_heads": (4, 10**9),
    "__class__": ("x",),
    "count": (10**40,),
    "number": (*NOT_FINITE, {"__float__": "NaN"}),
}
"""Fields of ``config.json`` and values that no model can have."""


def refused_settings():
    """``(field, settings)`` of ``config.json`` that no model can have."""
    for name, values in IMPOSSIBLE.items():
        for value in values:
            yield name, {name: value}
    yield "nested 64 deep", {"nested 64 deep": nested(70)}
    for value in (0, -1, 0.5, 1e30, 10**40, *NOT_FINITE, "string", [], {}):
        yield "rope_theta", {"rope_parameters": {"rope_type": "default", "rope_theta": value}}
    for kind in ("", "os.system", "YARN", "proportional", "axial", 1, None):
        yield "rope_type", {"rope_parameters": {"rope_type": kind, "factor": 2.0}}
    for value in (0, 0.5, -1, math.nan, "string"):
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": value}
        yield "partial_rotary_factor", {"rope_parameters": rope}
    for kind, good in ROPE.items():
        for name in good:
            for value in (0, -1, 1e30, *NOT_FINITE, "string", [], {}, [math.nan] * 4):
                yield name, {"rope_parameters": {"rope_type": kind, **good, name: value}}
            if (kind, name) not in FILLED_IN and name not in OPTIONAL:
                less = {key: value for key, value in good.items() if key != name}
                yield name, {"rope_parameters": {"rope_type": kind, **less}}
        yield "rope_parameters", {"rope_parameters": {"rope_type": kind, **good, "surprise": 1}}


ROPE = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {
        "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    "longrope": {
        "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 2.0,
        "original_max_position_embeddings": 64, "attention_factor": 1.0,
    },
    "llama3": {
        "factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}  # fmt: skip
FILLED_IN = {
    *((kind, "original_max_position_embeddings") for kind in ROPE), ("longrope", "factor"),
}  # fmt: skip
OPTIONAL = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}


POSSIBLE = {
    "rope_parameters": [{"rope_type": kind, **good} for kind, good in ROPE.items()],
    "auto_map": ({"AutoModelForCausalLM": "evil.Model"}, True, -1, 2, "os.system", None),
    "max_position_embeddings": (10**9, 2**31 - 1, 1),
    "attn_implementation": ("eager", "sdpa", "diffattn", "nonsense", 1),
    "transformers_version": ("999.0", 5),
    "architectures": ("x", ["OsSystem"], None),
    "lambda_init": (-1.0, 2, [0, 1]),
    "layer_types": (["full_attention"] * 10**5,),
    "quantization_config": ({"quant_method": "bitsandbytes"},),
    "model_type": ("llama", "gpt2", "mamba", "t5", "../x", None, 1, []),
    "problem_type": ("anything", 1),
    "note": ("x",), "trust_remote_code": (True,), "initializer_range": (0,),
    "pad_token_id": (None,), "base_model_tp_plan": ({"a": "b"},), "_name_or_path": ("/etc/passwd",),
    "top_k": (10**9,), "max_length": (20,), "id2label": ({"0": "x"},), "label2id": ({"x": 0},),
    "pruned_heads": ({"0": [0]},),
}  # fmt: skip
"""Strange, but a model can have them, or ignore them."""


def changed(settings, file="config.json"):
    return edited(file, lambda content: content.update(settings))


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.scheduled), 101])
def test_impossible_settings(whole, tmp_path, step):
    cases = [(name, settings, True) for name, settings in refused_settings()]
    cases += [(name, {name: x}, False) for name, values in POSSIBLE.items() for x in values]
    with trial(f"hostile config.json{sample(step > 1)}", minimum=400 // step) as tally:
        for name, settings, must_fail in cases[::step]:
            kind = "diff" if name != "shared_rank" else "shared_diff"
            wanted = {"names": ["config.json", name] if must_fail else [], "must_fail": must_fail}
            folder, change = whole(kind), changed(settings)
            try_folder(tally, f"{name}: {settings}", folder, tmp_path, change, **wanted)


SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads")
FOREIGN = {
    **dict.fromkeys(SIZES, (0, -1, *HUGE)),
    **dict.fromkeys(["intermediate_size", "num_hidden_layers", "head_dim"], (-1, *HUGE)),
    "max_position_embeddings": (-1, 10**40, math.nan),
    "rms_norm_eps": (*NOT_FINITE, "x", []),
    "rope_theta": NOT_FINITE,
    "rope_parameters": ("x", {"rope_type": "x"}, {"rope_theta": math.nan}),
    "layer_types": (["full_attention"] * 10**6,),
    "model_type": ("nothing", 1, "t5"),
    "quantization_config": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "x"),
    "torch_dtype": ("load", 1),
    "hidden_act": ("os.system", 1),
}
"""Fields of other models' configurations and impossible values."""


@pytest.mark.scheduled
def test_other_models_impossible_settings(whole, tmp_path):
    with trial("hostile config.json of other models", minimum=70) as tally:
        for kind in ("llama", "diffllama"):
            for name, values in FOREIGN.items():
                for value in values:
                    case, change = f"{kind}: {name}: {value}", changed({name: value})
                    wanted = {"must_fail": True, "names": ["case"]}  # the folder
                    try_folder(tally, case, whole(kind), tmp_path, change, **wanted)


def files():
    """``(file, name, content)``: what a folder's JSON may be instead."""
    for file in (
        "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
        "special_tokens_map.json", "added_tokens.json",
    ):  # fmt: skip
        yield file, "empty", b""
        yield file, "half", b'{"model_type": "diff_tra'
        yield file, "list", b"[1, 2]"
        yield file, "NaN", b'{"x": NaN}'
        yield file, "1e999", b'{"x": 1e999}'
        yield file, "deep", b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        yield file, "65 deep", b'{"x": ' + b"[" * 65 + b"]" * 65 + b"}"
        yield file, "long integer", b'{"x": ' + b"9" * 5_000 + b"}"
        yield file, "latin-1", '{"x": "é"}'.encode("latin-1")
        yield file, "zeros", bytes(1000)


TOKENIZER_CHANGES = {
    "added id": lambda t: t["added_tokens"][0].update(id=2**31),
    "added id below 0": lambda t: t["added_tokens"][0].update(id=-1),
    "vocab id": lambda t: t["model"]["vocab"].update(zebra=2**31),
    "vocab id below 0": lambda t: t["model"]["vocab"].update(zebra=-5),
    "no model": lambda t: t.pop("model"),
    "model type": lambda t: t["model"].update(type="Pickle"),
    "merges": lambda t: t["model"].update(merges=[["nowhere", "else"]]),
    "normalizer": lambda t: t.update(normalizer={"type": "Shell", "command": "id"}),
    "pattern": lambda t: t.update(
        pre_tokenizer={
            "type": "Split", "pattern": {"Regex": "((("}, "behavior": "Isolated", "invert": False,
        }
    ),
}  # fmt: skip
"""Changes of ``tokenizer.json`` that must be refused."""
TOKENIZER_SETTINGS = {
    "vocab_file": "/etc/passwd", "tokenizer_file": "../../secret.json", "merges_file": "a/b",
    "added_tokens_decoder": {"99999999999": {"content": "x", "special": True}},
    "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
    "tokenizer_class": "OsSystem",
    "model_max_length": math.nan,
    "chat_template": math.inf,
}  # fmt: skip


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.scheduled), 50])
def test_files_of_settings_and_tokenizer(whole, tmp_path, step):
    with trial(f"hostile JSON of a model folder{sample(step > 1)}", minimum=60 // step) as tally:
        for file, name, content in list(files())[::step]:
            change = partial(written, file, content)
            wanted = {"names": [file], "must_fail": True}
            try_folder(tally, f"{file}: {name}", whole("diff"), tmp_path, change, **wanted)
        for name, update in list(TOKENIZER_CHANGES.items())[::step]:
            case, change = f"tokenizer.json: {name}", edited("tokenizer.json", update)
            try_folder(tally, case, whole("diff"), tmp_path, change, must_fail=True)
        for name, value in list(TOKENIZER_SETTINGS.items())[::step]:
            case = f"tokenizer_config.json: {name}"
            change = changed({name: value}, "tokenizer_config.json")
            must_fail = name not in ("tokenizer_class", "auto_map")
            try_folder(tally, case, whole("diff"), tmp_path, change, must_fail=must_fail)


GENERATION = {
    "temperature": math.inf, "repetition_penalty": 1e30, "num_beams": 10**9, "max_length": -1,
    "max_new_tokens": 10**18, "suppress_tokens": [10**9], "cache_implementation": "nothing",
    "custom_generate": "evil/code", "do_sample": "yes", "eos_token_id": 10**9, "stop_strings": 7,
    "prompt_lookup_num_tokens": 10**9, "watermarking_config": {"a": 1}, "compile_config": "x",
}  # fmt: skip


@pytest.mark.scheduled
def test_settings_of_generation_change_nothing(whole, tmp_path):
    """What a folder says of decoding is the caller's to say."""
    from typer.testing import CliRunner

    from diffattn.lab.cli.app import app

    def write(folder):
        done = CliRunner().invoke(
            app, ["generate", str(folder), "--prompt", "the city", "--max-new-tokens", "5"]
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    _, expected = in_child(lambda: write(whole("diff")))
    with trial("hostile generation_config.json", minimum=14) as tally:
        for name, value in GENERATION.items():
            change = changed({name: value}, "generation_config.json")
            outcome = in_child(partial(write, damaged(whole("diff"), tmp_path, change)))
            wrong = fault(outcome)
            if wrong is None and outcome[0] == "done" and outcome[1] != expected:
                wrong = f"wrote {outcome[1]!r}"
            tally.check(f"generation_config.json: {name}: {value}", wrong)


@pytest.mark.parametrize("kind", ["diff", "llama"])
def test_a_sound_folder_is_used(whole, kind):
    assert in_child(lambda: use(whole(kind)))[0] == "done"
