"""Tiny models of other layouts, with weights far from their start."""

import math
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    logging,
)

from diffattn.models.conversion.convert import convert
from diffattn.models.loading import quiet

VOCAB, HIDDEN, INNER, LAYERS = 61, 48, 40, 2
HUGGING_FACE = {
    "vocab_size": VOCAB,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "head_dim": 8,
}


@pytest.fixture(scope="session", autouse=True)
def _no_bars():
    logging.disable_progress_bar()


def randomize(model):
    """Norms near 1, λ and biases far from their start, attention far from uniform."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(value_for(name, parameter, generator))
    return model


def value_for(name, like, generator):
    noise = torch.randn(like.shape, generator=generator)
    if ("lambda_" in name and like.ndim == 1) or name.endswith(".bias"):
        return 0.5 * noise
    if like.ndim == 1:
        return 1 + 0.2 * noise
    return 1.4 * like.shape[-1] ** -0.5 * noise


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """``llama(kv_heads, dtype, model, **config)``: folder of a Llama of 4 heads."""

    def make(kv_heads=2, dtype=torch.float32, model=LlamaForCausalLM, **changes):
        folder = tmp_path_factory.mktemp("source") / "model"
        sizes = HUGGING_FACE | {"num_attention_heads": 4, "num_key_value_heads": kv_heads}
        config = model.config_class(**sizes | changes)
        randomize(model(config)).to(dtype).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def diffllama(llama):
    """``diffllama(kv_heads, dtype, **config)``: folder of a DiffLlama of 8 heads, 4 of ours."""
    heads = {"num_attention_heads": 8, "rms_norm_eps": 1e-4}
    return lambda kv_heads=4, dtype=torch.float32, **changes: llama(
        kv_heads, dtype, DiffLlamaForCausalLM, **heads | changes
    )


FAMILIES = {
    "llama": LlamaForCausalLM, "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM, "qwen3": Qwen3ForCausalLM,
}  # fmt: skip


@pytest.fixture(scope="session")
def source(llama):
    """``source(family, **config)``: folder of 4 heads, made once; wider than its heads."""
    return cache(lambda family, **changes: llama(model=FAMILIES[family], **changes))


@pytest.fixture(scope="session")
def start(source, converted):
    """``start(family, target, **changes)``: the differential model it becomes, made once."""
    return cache(
        lambda family, target="diff_v2", **changes: converted(
            source(family), target, changes=changes
        )
    )


@pytest.fixture(scope="session")
def trained_step():
    """``trained_step(model, ids)``: the loss, and gradients of one step of AdamW.

    The gradients are those of attention, by name in a layer, one list for all layers.
    """

    def step(model, ids):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        loss = model(ids, labels=ids).loss
        loss.backward()
        layers = [layer.self_attn for layer in model.model.layers]
        gradients = {
            name: [layer.get_parameter(name).grad.clone() for layer in layers]
            for name, _ in layers[0].named_parameters()
        }
        optimizer.step()
        optimizer.zero_grad()
        return loss.item(), gradients

    return step


@pytest.fixture(scope="session")
def weights_of():
    """``weights_of(folder)``: all tensors by name."""

    def read(folder):
        return {
            name: tensor
            for file in sorted(folder.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }

    return read


@pytest.fixture(scope="session")
def network():
    """``network(folder)``: the model alone, in evaluation mode."""

    def load(folder, **options):
        with quiet():
            return AutoModelForCausalLM.from_pretrained(folder, **options).eval()

    return load


@pytest.fixture
def ids():
    return torch.randint(1, VOCAB, (2, 13), generator=torch.Generator().manual_seed(1))


ROLES = ("embed", "norm", "head", "at", "before", "after", "attention", "gate", "up", "down")
NAMES = (
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.{}.",
    "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
)  # fmt: skip
BARE_NAMES = (
    "tok_embeddings.weight", "norm.weight", "output.weight", "layers.{}.",
    "attention_norm.weight", "ffn_norm.weight", "attention.",
    "feed_forward.w1.weight", "feed_forward.w3.weight", "feed_forward.w2.weight",
)  # fmt: skip


class Original:
    """A model as the original code would hold it, and its formula evaluated head by head.

    Written out here, apart from the package: q and k heads 2i and 2i + 1 are the maps of head i
    (V2: they share a key), rotary positions turn channels 2c and 2c + 1, λ_init follows from the
    0-based depth.
    """

    def __init__(self, *, version=1, kv_heads=4, affine=True, tied=False, bare=False, ratio=1):
        self.version, self.heads, self.kv_heads, self.width = version, 4, kv_heads, 6
        self.ratio = ratio  # heads whose last map is the same
        self.affine, self.tied, self.bare = affine, tied, bare
        self.eps, self.theta, self.depth = 1e-6, 500.0, 0
        self.rotation = "interleaved"
        self.out = "out_proj" if version == 1 else "o_proj"
        self.state = self._state(torch.Generator().manual_seed(3))

    def shapes(self):
        wide = 2 if self.version == 1 else 1
        q = (self.heads + self.heads // self.ratio) * self.width
        kv = wide * self.kv_heads * self.width
        attention = {
            "q_proj.weight": (q, HIDDEN),
            "k_proj.weight": (kv, HIDDEN),
            "v_proj.weight": (kv, HIDDEN),
            f"{self.out}.weight": (HIDDEN, wide * self.heads * self.width),
        }
        if self.version == 2:
            return attention | {"lambda_proj.weight": (self.heads, HIDDEN)}
        attention |= {f"lambda_{x}{i}": (self.width,) for i in (1, 2) for x in "qk"}
        return attention | ({"subln.weight": (2 * self.width,)} if self.affine else {})

    def _state(self, generator):
        n = self.names = dict(zip(ROLES, BARE_NAMES if self.bare else NAMES, strict=True))
        shapes = {n["embed"]: (VOCAB, HIDDEN), n["norm"]: (HIDDEN,)}
        if not self.tied:
            shapes[n["head"]] = (VOCAB, HIDDEN)
        inner = {n["before"]: (HIDDEN,), n["after"]: (HIDDEN,), n["down"]: (HIDDEN, INNER)}
        inner |= {n["gate"]: (INNER, HIDDEN), n["up"]: (INNER, HIDDEN)}
        inner |= {f"{n['attention']}{name}": x for name, x in self.shapes().items()}
        for layer in range(LAYERS):
            shapes |= {n["at"].format(layer) + name: shape for name, shape in inner.items()}
        return {
            name: value_for(name, torch.empty(shape), generator) for name, shape in shapes.items()
        }

    def save(self, folder):
        folder.mkdir()
        save_file(self.state, folder / "model.safetensors")
        return folder

    def logits(self, ids):
        w = {name: tensor.double() for name, tensor in self.state.items()}
        x = w[self.names["embed"]][ids]
        for layer in range(LAYERS):
            at = self.names["at"].format(layer)
            inner = {name.removeprefix(at): tensor for name, tensor in w.items()}
            y = self.rms(x, inner[self.names["before"]])
            x = x + self.attention(y, inner, self.names["attention"], layer + self.depth)
            y = self.rms(x, inner[self.names["after"]])
            gate, up, down = (inner[self.names[n]] for n in ("gate", "up", "down"))
            gated = y @ gate.T
            x = x + (gated * torch.sigmoid(gated) * (y @ up.T)) @ down.T
        head = w[self.names["embed" if self.tied else "head"]]
        return self.rms(x, w[self.names["norm"]]) @ head.T

    def rms(self, x, weight=None, eps=None):
        x = x / (x.pow(2).mean(-1, keepdim=True) + (eps or self.eps)).sqrt()
        return x if weight is None else x * weight

    def turn(self, x):
        """Rotate one head ``[B, T, width]`` by its positions, pair of channels by pair."""
        out = x.clone()
        half = self.width // 2
        for c in range(half):
            a, b = (2 * c, 2 * c + 1) if self.rotation == "interleaved" else (c, c + half)
            angle = torch.arange(x.shape[1], dtype=torch.float64) * self.theta ** (-c / half)
            cos, sin = angle.cos(), angle.sin()
            out[..., a] = x[..., a] * cos - x[..., b] * sin
            out[..., b] = x[..., a] * sin + x[..., b] * cos
        return out

    def attention(self, x, w, at, depth):
        def rows(name, index):
            return x @ w[f"{at}{name}"][index * self.width : (index + 1) * self.width].T

        length, out = x.shape[1], []
        future = torch.full((length, length), -math.inf).triu(1)
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            maps = []
            for number in (0, 1):
                shared, place = divmod(head, self.ratio)
                place = self.ratio if number else place
                q = self.turn(rows("q_proj.weight", shared * (self.ratio + 1) + place))
                index = 2 * group + number if self.version == 1 else group
                k = self.turn(rows("k_proj.weight", index))
                maps.append((q @ k.mT / self.width**0.5 + future).softmax(-1))
            if self.version == 2:
                lam = (x @ w[f"{at}lambda_proj.weight"][head]).sigmoid()[..., None]
                value = rows("v_proj.weight", group)
                out.append((maps[0] - lam * maps[1]) @ value)
                continue
            value = torch.cat([rows("v_proj.weight", 2 * group + n) for n in (0, 1)], -1)
            q1, k1, q2, k2 = (w[f"{at}lambda_{n}"] for n in ("q1", "k1", "q2", "k2"))
            start = 0.8 - 0.6 * math.exp(-0.3 * depth)
            lam = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + start
            signed = (maps[0] - lam * maps[1]) @ value
            out.append(self.rms(signed, w.get(f"{at}subln.weight"), 1e-5) * (1 - start))
        return torch.cat(out, -1) @ w[f"{at}{self.out}.weight"].T


@pytest.fixture(scope="session")
def original():
    """``original(version=, kv_heads=, affine=, tied=, bare=, ratio=)``: see :class:`Original`."""
    return Original


@pytest.fixture(scope="session")
def missing_settings():
    """Settings that the weights of the original code do not tell."""
    return {"rope_theta": 500.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 64}


@pytest.fixture(scope="session")
def converted(tmp_path_factory):
    """``converted(source, target, **options)``: the new folder."""

    def run(source, target, **options):
        out = tmp_path_factory.mktemp("converted") / "model"
        done = convert(str(source), target, out, **options)
        assert done.preserved or target in ("diff", "shared_diff")
        return out

    return run


@pytest.fixture(scope="session")
def assert_close():
    """float64 logits equal up to float32's rounding of rotary angles and a few norms."""

    def check(actual, exact, tolerance=2e-5):
        error = float((actual.double() - exact).abs().max() / exact.abs().max())
        assert error < tolerance, error

    return check
