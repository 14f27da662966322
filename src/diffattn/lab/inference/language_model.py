"""The causal language model that the evaluation protocols use."""

import hashlib
import json
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import align_module_device

from diffattn.errors import ConfigError
from diffattn.lab.data.tokenizer import tokenizer_hash
from diffattn.lab.inference import decoding, scoring, shared_prefixes
from diffattn.lab.inference.network_reader import NetworkReader, limits_on
from diffattn.layers.saved_names import saved_name
from diffattn.models.loading import load_model, usable_device

DTYPES = ("auto", "float32", "bfloat16", "float16")
_NOT_HASHED = (
    "_name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype",
    "architectures", "auto_map",
)  # fmt: skip
"""Settings that are not hashed: they name the folder or the writer, or are recorded as facts."""


class LanguageModel(NetworkReader):
    """A causal language model that generates, scores and reads prompts. The methods are functions
    of this folder, which take the model as their first argument."""

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        label: str | None = None,
        device: str | None = None,
        dtype: str = "auto",
        max_length: int | None = None,
        add_bos: bool | None = None,
        verify: bool = True,
        revision: str | None = None,
        trust_remote_code: bool = False,
        device_map: str | None = None,
    ) -> "LanguageModel":
        """Load a model from a run directory, a model folder or the hub.

        Defaults: ``label`` is the last part of the path, ``device`` CUDA if there is any, else CPU.
        ``dtype`` ``"auto"`` is the checkpoint's. For the other options see
        :func:`diffattn.models.loading.load_model` and :class:`NetworkReader`.
        """
        if dtype not in DTYPES:
            raise ConfigError(f"dtype must be in {{{', '.join(DTYPES)}}}, got {dtype!r}.")
        if device is not None and device_map is not None:
            raise ConfigError(
                f"device must be left out where a device_map is given, got {device!r}."
            )
        where = usable_device(device)
        network, tokenizer = load_model(
            name_or_path,
            verify=verify,
            revision=revision,
            trust_remote_code=trust_remote_code,
            device_map=device_map,
            dtype=None if dtype == "auto" else getattr(torch, dtype),
        )
        if device_map is None:
            network.to(where)
        return cls(
            network,
            tokenizer,
            label=label or Path(name_or_path).name,
            path=name_or_path,
            max_length=max_length,
            add_bos=add_bos,
            limits=limits_on(torch.device(network.device)),
        )

    score = scoring.score
    generate = decoding.generate
    complete = decoding.complete
    read_prompts = shared_prefixes.read_prompts
    read_labels = scoring.read_labels
    prefix_losses = scoring.prefix_losses
    sliding_losses = scoring.sliding_losses

    def facts(self) -> dict[str, Any]:
        """Label, path, and all that decides results; contents as hashes."""
        config = self.network.config
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
            "bos": self.bos,
            "end_tokens": self.end_tokens,
            "config": _hash(_settings(config.to_diff_dict())),
            **self.tokenizer_facts(),
        }

    def tokenizer_facts(self) -> dict[str, Any]:
        """The tokenizer's class, and hashes of its vocabulary, of all that decides the tokens of a
        text (``None`` for a slow tokenizer), and of its chat template (``None`` without one)."""
        template = getattr(self.tokenizer, "chat_template", None)
        is_fast = getattr(self.tokenizer, "backend_tokenizer", None) is not None
        return {
            "tokenizer": type(self.tokenizer).__name__,
            "vocabulary": _hash(self.tokenizer.get_vocab()),
            "tokenizer_hash": tokenizer_hash(self.tokenizer)[:16] if is_fast else None,
            "chat_template": None if template is None else _hash(template),
        }

    @cached_property
    def _weights_hash(self) -> str:
        """First 16 hex digits of the SHA-256 over all weights, in order of their names."""
        digest = hashlib.sha256()
        weights = {saved_name(name): (name, x) for name, x in self.network.state_dict().items()}
        for saved, (name, tensor) in sorted(weights.items()):
            digest.update(saved.encode())
            here = _fetch_tensor(self.network, name) if tensor.is_meta else tensor.detach().cpu()
            digest.update(here.flatten().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def _fetch_tensor(network: Any, name: str) -> torch.Tensor:
    """A tensor that accelerate keeps on CPU or disk until its module runs, as a copy on the CPU."""
    parts = name.split(".")
    for split in range(len(parts) - 1, -1, -1):  # the hook may belong to an outer module
        module = network.get_submodule(".".join(parts[:split]))
        with align_module_device(module):
            tensor: torch.Tensor = attrgetter(".".join(parts[split:]))(module).detach()
            if not tensor.is_meta:
                return tensor.cpu().clone()
    raise ConfigError(f"{name}: must hold weights, got a shape alone (a meta tensor).")


def _settings(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {str(key): _settings(x) for key, x in value.items() if key not in _NOT_HASHED}


def _hash(value: Any) -> str:
    content = json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(content).hexdigest()[:16]
