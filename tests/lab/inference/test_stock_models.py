"""What the protocols can do with stock architectures: the table of the documentation, made anew."""

import random
import re
from pathlib import Path

import pytest
import torch
import transformers

from diffattn.errors import DiffAttnError
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.scoring import Continuation
from diffattn.probes.attention_rows import attention_rows

_COMMON = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
           "max_position_embeddings": 512}  # fmt: skip
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_HYBRID = {"mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 2}
ARCHITECTURES = {
    "Llama": _COMMON | _HEADS,
    "Mistral": _COMMON | _HEADS | {"sliding_window": None},
    "Mistral, window": _COMMON | _HEADS | {"sliding_window": 16},
    "Mixtral": _COMMON | _HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2,
                                   "sliding_window": None},
    "Qwen2": _COMMON | _HEADS,
    "Qwen3": _COMMON | _HEADS | {"head_dim": 8},
    "Qwen3Next": _COMMON | _HEADS | {"num_hidden_layers": 4, "head_dim": 8, "num_experts": 2,
                                     "num_experts_per_tok": 1, "moe_intermediate_size": 16,
                                     "shared_expert_intermediate_size": 16,
                                     "linear_num_key_heads": 2, "linear_num_value_heads": 2,
                                     "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "Gemma": _COMMON | _HEADS | {"head_dim": 8},
    "Gemma2": _COMMON | _HEADS | {"head_dim": 8, "sliding_window": 16},
    "Gemma3": _COMMON | _HEADS | {"head_dim": 8, "sliding_window": 16, "num_hidden_layers": 6},
    "Phi": _COMMON | {"num_attention_heads": 4},
    "Phi3": _COMMON | _HEADS | {"pad_token_id": 0},
    "GPT2": {"n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "GPTNeoX": _COMMON | {"num_attention_heads": 4},
    "OPT": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 512, "word_embed_proj_dim": 32},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Falcon": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
               "max_position_embeddings": 512},
    "Olmo2": _COMMON | _HEADS,
    "Cohere": _COMMON | _HEADS,
    "Mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "Mamba2": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4,
               "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "Rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
             "context_length": 512},
    "RecurrentGemma": _COMMON | {"num_hidden_layers": 3, "num_attention_heads": 4,
                                 "lru_width": 32, "attention_window_size": 16},
    "Jamba": _COMMON | _HEADS | _HYBRID | {"num_hidden_layers": 4, "num_experts": 2,
                                           "attn_layer_period": 2, "attn_layer_offset": 1,
                                           "expert_layer_period": 2, "expert_layer_offset": 1,
                                           "use_mamba_kernels": False, "mamba_dt_rank": 4},
    "Bamba": _COMMON | _HEADS | {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16,
                                 "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_expand": 2,
                                 "mamba_chunk_size": 8},
    "FalconH1": _COMMON | _HEADS | {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64,
                                    "mamba_d_state": 4, "mamba_n_groups": 1,
                                    "mamba_chunk_size": 8},
}  # fmt: skip
"""Name of the class without ``ForCausalLM`` (after a comma: a variant), and its sizes."""
CLASSES = {"GPT2": "GPT2LMHeadModel", "Bamba": "BambaForCausalLM"}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
COLUMNS = ("scores", "shared prefix", "generation", "maps")


def network(name, vocab_size):
    """A random model, float64 where its experts allow, whose logits differ by a few units."""
    kind = name.partition(",")[0]
    config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(
        vocab_size=vocab_size, **ARCHITECTURES[name]
    )
    torch.manual_seed(0)
    made = getattr(transformers, CLASSES.get(kind, f"{kind}ForCausalLM"))(config)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    has_experts = any("experts" in part for part, _ in made.named_modules())
    return (made if has_experts else made.double()).eval()


def what_works(name, tokenizer):
    """One cell per column: ``yes``, ``from scratch``, or why not."""
    made = network(name, len(tokenizer))
    try:
        model = LanguageModel(made, tokenizer, label=name)
    except DiffAttnError as error:
        return dict.fromkeys(COLUMNS, f"refused: {str(error).partition(': ')[2]}")
    generator = random.Random(0)
    prefix = tuple(generator.choices(range(5, len(tokenizer)), k=160))
    asked = [
        Continuation(prefix + tuple(generator.choices(range(5, len(tokenizer)), k=n)), (7, 8, 9))
        for n in (1, 5, 9)
    ]
    apart = [Continuation(entry.context[i:], entry.target) for i, entry in enumerate(asked)]
    return {
        "scores": agrees(model.score(apart), made, apart),
        "shared prefix": agrees(model.score(asked), made, asked),
        "generation": generates(model, made, asked),
        "maps": shows_maps(model, list(asked[0].context[:12])),
    }


def agrees(scores, made, asked):
    """Whether log-probabilities equal those of one plain pass per sequence."""
    for results, entry in zip(scores, asked, strict=True):
        ids = torch.tensor([[*entry.context, *entry.target]])
        with torch.no_grad():
            logits = made(ids, use_cache=False).logits[0].log_softmax(-1)
        at = range(len(entry.context) - 1, ids.shape[1] - 1)
        expected = [float(logits[i, token]) for i, token in zip(at, entry.target, strict=True)]
        off = max(abs(a - b) for a, b in zip(results.token_logprobs, expected, strict=True))
        if off > (1e-9 if made.dtype == torch.float64 else 1e-4):
            return "differs"
    return "yes"


def generates(model, made, asked):
    """Whether greedy tokens are those of plain passes over everything so far."""
    prompts = [entry.context for entry in asked]
    for results, prompt in zip(model.generate(prompts, max_new_tokens=6), prompts, strict=True):
        ids = list(prompt)
        for token in results.ids:
            with torch.no_grad():
                likeliest = int(made(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            if token != likeliest:
                return "differs"
            ids.append(token)
    return "yes"


def shows_maps(model, ids):
    """Whether maps of the last token can be read after a cache, and their rows sum to 1."""
    try:
        rows = attention_rows(model.network, torch.tensor([ids[-1:]]), model.read(ids[:-1]).rows(1))
    except DiffAttnError as error:
        return f"refused: {str(error).partition(': ')[2]}"
    sums = torch.stack([row.signed.sum(-1) for row in rows])
    return "yes" if torch.allclose(sums, torch.ones_like(sums), atol=1e-5) else "differs"


PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "models.md"
_OFTEN = ("GPT2", "Mamba", "Rwkv")


def documented():
    """Cells of the page by architecture."""
    lists = re.findall(r"^- (Yes|Refused): (.+(?:\n  .+)*)", PAGE.read_text("utf-8"), re.MULTILINE)
    return {
        name: dict.fromkeys(COLUMNS, answer.lower())
        for answer, names in lists
        for name in re.findall(r"`([^`]+)`", names)
    }


def test_the_page_names_every_architecture():
    assert set(documented()) == set(ARCHITECTURES)


@pytest.mark.filterwarnings("ignore")  # of architectures that are not ours
@pytest.mark.parametrize(
    "name",
    [n if n in _OFTEN else pytest.param(n, marks=pytest.mark.scheduled) for n in ARCHITECTURES],
)
def test_what_works_is_what_the_page_says(name, tokenizer):
    results = {
        column: cell.partition(":")[0] for column, cell in what_works(name, tokenizer).items()
    }
    assert results == documented()[name]
