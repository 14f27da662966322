"""The model card of a saved folder: facts of the model, and how to load it."""

from typing import Any

from diffattn.models.accounting import parameter_count

CARD_NAME = "README.md"
FILE_NAME = "modeling_diff_transformer.py"
CLASSES = {
    "AutoConfig": "DiffTransformerConfig",
    "AutoModel": "DiffTransformerModel",
    "AutoModelForCausalLM": "DiffTransformerForCausalLM",
    "AutoModelForSequenceClassification": "DiffTransformerForSequenceClassification",
}
"""Auto class of Hugging Face -> class of this package."""

_NAMES = {
    "softmax": "softmax attention (a Transformer)",
    "diff": "differential attention (DIFF Transformer, V1)",
    "diff_v2": "differential attention V2",
    "grouped_diff": "grouped differential attention",
    "shared_diff": "differential attention with shared projections (Shared DIFF Transformer)",
    "gated_head": "gated softmax attention, one gate per head",
    "gated_element": "gated softmax attention, one gate per channel",
    "dex": "softmax attention with a differential extension (DEX)",
}
_TASKS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModel": "feature-extraction",
}


_PAGE = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- diff_transformer
- differential-attention
- custom_code
---

# A language model with {kind}

| | |
| --- | --- |
{rows}

## Loading it

With the package `diffattn`, which has faster kernels and reads no code from this folder:

```python
from diffattn import {name}
from transformers import AutoTokenizer

model = {name}.from_pretrained(FOLDER_OR_REPOSITORY)
tokenizer = AutoTokenizer.from_pretrained(FOLDER_OR_REPOSITORY)
```

Without it, by the code in `{file}`, which needs torch and transformers alone. Read that file
before you trust it, as any code from elsewhere:

```python
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained(FOLDER_OR_REPOSITORY, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(FOLDER_OR_REPOSITORY)
```

Both give the same results to rounding.

## What to add

Training data, evaluation, intended use and the licence of the weights are not known to the program
that wrote this page. The code in this folder is under Apache-2.0.

Papers: [DIFF Transformer](https://arxiv.org/abs/2410.05258),
[Shared DIFF Transformer](https://arxiv.org/abs/2501.17900).
"""


def model_card(config: Any) -> str:
    """The model card for a :class:`DiffTransformerConfig`, as Markdown."""
    types = list(dict.fromkeys(config.attention_by_layer))
    kind = " and ".join(
        _NAMES.get(x.name) or f"a control of differential attention: {x.control}" for x in types
    )
    saved = (config.architectures or [CLASSES["AutoModelForCausalLM"]])[0]
    auto = next((name for name in _TASKS if CLASSES[name] == saved), "AutoModelForCausalLM")
    sizes = {
        "Attention": f"`{config.attention_type}`: {kind}",
        "Parameters": f"{parameter_count(config):,}, embeddings included",
        "Layers": config.num_hidden_layers,
        "Width": f"{config.hidden_size}, {config.intermediate_size} inside the feed-forward layers",
        "Heads": f"{config.num_heads} of width {config.head_dim}, "
        f"{config.num_kv_heads} for keys and values",
        "Vocabulary": f"{config.vocab_size:,} tokens",
        "Context": f"{config.max_position_embeddings:,} tokens",
        "λ": _lambda_facts(config),
        "Source of the method": ", ".join(dict.fromkeys(facts.source for facts in types)),
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in sizes.items())
    return _PAGE.format(
        task=_TASKS[auto], kind=kind, rows=rows, name=CLASSES[auto], file=FILE_NAME, auto=auto
    )


def _lambda_facts(config: Any) -> str:
    of_token = [x for x in config.attention_by_layer if x.lambda_projection]
    if config.uses("lambda_vectors"):
        depths = range(config.num_hidden_layers)
        initial = [f"{config.layer_lambda_init(layer):.3g}" for layer in depths]
        return (
            "one learned number per layer, exp(λq1·λk1) − exp(λq2·λk2) + λ_init; λ_init is "
            f"{', '.join(initial)} from the first layer to the last"
        )
    if of_token:
        owner = "channel of a head" if of_token[0].lambda_per_channel else "head"
        return f"one number per token and {owner}, projected from the token"
    return "none learned"
