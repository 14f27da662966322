"""A causal language model as the protocols see it: what is asked of it, as methods."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from diffattn.errors import ConfigError
from diffattn.inference import (
    decoding,
    label_trie,
    prompting,
    read_prompts,
    scoring,
    token_losses,
)
from diffattn.inference.network_reader import NetworkReader
from diffattn.layers.saved_names import saved_name
from diffattn.models.loading import load_model, usable_device


class LanguageModel(NetworkReader):
    """A causal language model that writes, scores and reads; protocols call nothing else.

    Its methods are the functions of this folder, which take it as their first argument.
    A subclass that overrides these methods answers in its place: a test scripts them. Built from
    a network and a tokenizer, see :class:`~diffattn.inference.network_reader.NetworkReader`, or by
    :meth:`load`.
    """

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        label: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        max_length: int | None = None,
        add_bos: bool | None = None,
        verify: bool = True,
    ) -> "LanguageModel":
        """Open a run directory, a model folder or a hub name.

        Args:
            name_or_path: See :func:`diffattn.models.loading.load_model`.
            label: Default: the last part of the path.
            device: Default: CUDA if there is any, else CPU.
            dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
            max_length: In tokens. Default: the model's.
            add_bos: Default: if the tokenizer has a BOS token.
            verify: See :func:`diffattn.models.loading.load_model`.

        Raises:
            CheckpointError: Nothing is there, or it is damaged.
            ConfigError: A bad option.
        """
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"dtype must be in {{float32, bfloat16, float16}}, got {dtype!r}.")
        where = usable_device(device)
        network, tokenizer = load_model(name_or_path, verify=verify)
        network.to(where, getattr(torch, dtype))
        return cls(
            network,
            tokenizer,
            label=label or Path(name_or_path).name,
            path=name_or_path,
            max_length=max_length,
            add_bos=add_bos,
        )

    score = scoring.score
    generate = decoding.generate
    complete = prompting.complete
    read_prompts = read_prompts.read_prompts
    read_labels = label_trie.read_labels
    prefix_losses = token_losses.prefix_losses
    sliding_losses = token_losses.sliding_losses

    def facts(self) -> dict[str, Any]:
        """What a record says of the model; equal facts mean equal results."""
        config = self.network.config
        vocabulary = json.dumps(self.tokenizer.get_vocab(), sort_keys=True).encode()
        return {
            "label": self.label,
            "path": self.path,
            "type": config.model_type,
            "attention_type": getattr(config, "attention_type", None),
            "parameters": sum(p.numel() for p in self.network.parameters()),
            "weights": self._weights_hash,
            "commit": getattr(config, "_commit_hash", None),
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "device": self.device.type,
            "max_length": self.max_length,
            **({} if self.made_for is None else {"made_for": self.made_for}),
            "bos": self.bos,
            "tokenizer": type(self.tokenizer).__name__,
            "vocabulary": hashlib.sha256(vocabulary).hexdigest()[:16],
        }

    @cached_property
    def _weights_hash(self) -> str:
        """First 16 hex digits of the SHA-256 over all weights, in order of their names."""
        digest = hashlib.sha256()
        weights = {saved_name(name): x for name, x in self.network.state_dict().items()}
        for name, tensor in sorted(weights.items()):
            digest.update(name.encode())
            digest.update(
                tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
            )
        return digest.hexdigest()[:16]
