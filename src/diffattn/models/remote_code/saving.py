"""Save a model or configuration together with the model's code and a model card."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffattn.models.checkpoint_folder import checkpoint_folder
from diffattn.models.twins import parameter_count

FILE_NAME = "modeling_diff_transformer.py"
CLASSES = {
    "AutoConfig": "DiffTransformerConfig",
    "AutoModel": "DiffTransformerModel",
    "AutoModelForCausalLM": "DiffTransformerForCausalLM",
    "AutoModelForSequenceClassification": "DiffTransformerForSequenceClassification",
}
"""Auto class of Hugging Face -> class of this package."""
AUTO_MAP = {auto: f"{FILE_NAME.removesuffix('.py')}.{name}" for auto, name in CLASSES.items()}
"""``auto_map`` of ``config.json``: Auto class of Hugging Face -> ``file.class`` of our code."""
MODEL_FILE = Path(__file__).with_name(FILE_NAME)
"""The file with the whole model's code, which is copied into saved folders."""
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

## What to add

Training data, evaluation, intended use and the licence of the weights are not known to the program
that wrote this page. The code in this folder is under Apache-2.0.
"""


class FromRunFolders:
    """Mixin: ``from_pretrained`` also takes a run directory of ``diffattn``."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Hugging Face; from a run directory it loads the run's model."""
        name = pretrained_model_name_or_path
        is_folder = name is not None and Path(name).is_dir()
        elsewhere = is_folder and Path(name, "adapter_config.json").exists()  # peft: by its name
        if is_folder and not elsewhere and not kwargs.keys() & {"config", "subfolder"}:
            name = checkpoint_folder(str(name))
        return super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]


class NamesItsCode(FromRunFolders):
    """Mixin of the configuration: ``save_pretrained`` can also write the model's code."""

    auto_map = AUTO_MAP
    """Read by libraries that expect it in every configuration. It is written to ``config.json``
    only together with the file that holds the code."""

    def save_pretrained(
        self, save_directory: Any, *args: Any, remote_code: bool | None = None, **kwargs: Any
    ) -> None:
        """As in Hugging Face. With ``remote_code``, by default if the configuration was read from a
        folder with code, the model's code and, unless there is one, a card are written too."""
        if remote_code is None:
            remote_code = "auto_map" in self.__dict__
        with _naming_code(self, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
            if "auto_map" in self.__dict__:
                shutil.copyfile(MODEL_FILE, Path(save_directory, FILE_NAME))
                card = Path(save_directory, "README.md")
                if not card.exists():
                    card.write_text(model_card(self), encoding="utf-8")


class SavesItsCode(FromRunFolders):
    """Mixin of the models: saved folders, but of controls, load without ``diffattn``."""

    config: Any

    def save_pretrained(
        self, save_directory: Any, *args: Any, remote_code: bool = True, **kwargs: Any
    ) -> None:
        """As in Hugging Face; code and card come too, unless switched off or for controls."""
        with _naming_code(self.config, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


@contextmanager
def _naming_code(config: Any, named: bool) -> Iterator[None]:
    before = config.__dict__.pop("auto_map", None)
    if named and not config.uses("control"):  # which the code does not run
        config.auto_map = dict(AUTO_MAP)
    try:
        yield
    finally:
        config.__dict__.pop("auto_map", None)
        if before is not None:
            config.auto_map = before


def model_card(config: Any) -> str:
    """The model card for a :class:`DiffTransformerConfig`, as Markdown."""
    types = list(dict.fromkeys(config.attention_by_layer))
    kind = " and ".join(_NAMES[facts.name] for facts in types)
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
        "Source of the method": ", ".join(dict.fromkeys(facts.source for facts in types)),
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in sizes.items())
    return _PAGE.format(
        task=_TASKS[auto], kind=kind, rows=rows, name=CLASSES[auto], file=FILE_NAME, auto=auto
    )
