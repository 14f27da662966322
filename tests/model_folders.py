"""Small model folders, and changes of what a folder says or holds."""

import json

import torch
from safetensors.torch import load_file, save_file

from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

WEIGHTS = "model.safetensors"


def tiny_folder(path, kind, text, **settings):
    """An untrained model of one layer, with a tokenizer of a text."""
    tokenizer = train_tokenizer([Document(name="a", text=text)], vocab_size=300)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2, "head_dim": 8}
    sizes |= {"vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    config = DiffTransformerConfig(attention_type=kind, **sizes | settings)
    DiffTransformerForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def edit_config(folder, **changes):
    """Set fields of ``config.json``; ``None`` takes a field out."""
    path = folder / "config.json"
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: x for k, x in settings.items() if x is not None}))


def edit_weights(folder, change):
    """Call ``change`` with the tensors by name, and write what it leaves."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
