"""Check an untrusted model folder before transformers builds the model.

JSON files are read within limits of size and depth. The sizes in ``config.json`` are compared with
the headers of the weights, and the weights with the free memory. A wrong size would otherwise make
transformers allocate memory or loop without end.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from diffattn.errors import CheckpointError, first_line, short
from diffattn.models.accounting import parameter_count
from diffattn.models.configuration_diff_transformer import OTHER_NAMES, DiffTransformerConfig
from diffattn.models.memory import available_bytes
from diffattn.models.weight_files import Find, Weights, weights_of
from diffattn.ops.inputs.numbers import LARGEST_COUNT

_SETTINGS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "processor_config.json", "chat_template.json",
)  # fmt: skip
_VOCABULARIES = ("tokenizer.json", "vocab.json")
_MOST_BYTES = 2**22
_MOST_VOCABULARY_BYTES = 2**29
_MOST_DEPTH = 64
_MOST_INTEGER = 2**63 - 1
_MODULES = 1_024
"""Counts of layers up to this number are allowed for any weights: a module takes a millisecond."""
_SMALL = 2**22
"""Models of this many parameters are built in any case: transformers' own error names weights."""
_SIZE_ENDINGS = ("hidden_size", "intermediate_size", "vocab_size", "head_dim", "_heads", "_rank")
"""Endings of settings that are an axis of some weight."""
_COUNT_WORDS = ("layer", "block", "expert", "depth")
"""Words in the names of settings that count modules to build."""
_FIXED_SETTINGS: dict[str, Any] = {
    "return_dict": True,
    "output_hidden_states": False,
    "output_attentions": False,
    "chunk_size_feed_forward": 0,
    "is_encoder_decoder": False,
}
"""Field -> its only allowed value; other values change the results of a forward pass."""
_FLOATS = ("auto", "float16", "float32", "float64", "bfloat16")


def check_folder(
    name: str, folder: str, find: Find, *, in_memory: bool = True, revision: str | None = None
) -> None:
    """Raise a CheckpointError if a folder cannot hold a model.

    Time and memory are bounded by the sizes of its files. ``name`` is the user's, ``folder`` the
    path or hub name for transformers. If ``in_memory``, all weights must fit the free main memory.
    """
    settings: dict[str, Any] = {}
    for file in (*_SETTINGS, *_VOCABULARIES):
        path = find(file)
        if path is not None:
            content = read_object(f"{name}/{file}", path, vocabulary=file in _VOCABULARIES)
            if file == "config.json":
                settings = content
            elif file.startswith("tokenizer") or file == "added_tokens.json":
                _check_tokenizer(f"{name}/{file}", content)
    where = f"{name}/config.json"
    _check_settings(where, settings)
    weights = weights_of(name, find)
    if weights is None:
        return  # transformers says what is missing
    _check_counts(where, settings, weights)
    try:
        config = AutoConfig.from_pretrained(folder, revision=revision, trust_remote_code=False)
        if settings.get("quantization_config") is not None:
            return  # quantised: several weights in one number, so counts cannot be compared
        needed, held = parameter_count(config), 0
        if not isinstance(config, DiffTransformerConfig):
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            needed = sum(parameter.numel() for parameter in model.parameters())
            held = sum(buffer.nbytes for buffer in model.buffers())
    except Exception as error:  # the code of any model type may raise any error
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise CheckpointError(f"{where}: must be a configuration, got: {reason}.") from error
    if needed > max(weights.numbers, _SMALL):
        raise CheckpointError(
            f"{where}: sizes must fit the weights, {weights.numbers:,} numbers, got {needed:,} "
            f"parameters; the largest is {_largest_size(settings)}."
        )
    left = available_bytes() if in_memory else None
    if left is not None and weights.size + held > left:
        raise CheckpointError(
            f"{name}: weights must fit the memory that is left, {left:,} bytes, "
            f"got {weights.size + held:,}."
        )


def read_object(where: str, path: Path, *, vocabulary: bool = False) -> dict[str, Any]:
    """The object in a JSON file. Size and depth are limited, and all numbers must be finite.

    ``where`` begins the message of a CheckpointError; a ``vocabulary`` may have more bytes.
    """
    most = _MOST_VOCABULARY_BYTES if vocabulary else _MOST_BYTES
    if not path.is_file() or (size := path.stat().st_size) > most:
        got = f"{size:,} bytes" if path.is_file() else "no regular file"
        raise CheckpointError(f"{where}: must be a file of {most:,} bytes at most, got {got}.")
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except RecursionError as error:
        raise CheckpointError(
            f"{where}: must be nested {_MOST_DEPTH} deep at most, got more."
        ) from error
    except ValueError as error:  # no JSON, no UTF-8, or an integer of thousands of digits
        raise CheckpointError(f"{where}: must be JSON, got: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{where}: must hold an object, got {short(content)}.")
    for field, value, depth in _leaves(content):
        if depth > _MOST_DEPTH:
            raise CheckpointError(f"{where}: must be nested {_MOST_DEPTH} deep at most, got more.")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{where}: {field} must be finite, got {value}.")
        if field.endswith("__float__"):  # transformers' spelling of NaN and infinity
            raise CheckpointError(f"{where}: {field} must be a number, got {short(value)}.")
    return content


def _leaves(content: Any) -> Iterator[tuple[str, Any, int]]:
    stack = [("", content, 0)]
    while stack:
        name, value, depth = stack.pop()
        if depth > _MOST_DEPTH or not isinstance(value, dict | list) or not value:
            yield name, value, depth
            continue
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        stack += [(f"{name}.{key}".lstrip(".")[-200:], inner, depth + 1) for key, inner in pairs]


def _check_settings(where: str, settings: dict[str, Any]) -> None:
    """Raise for values that no model's configuration may hold."""
    is_diff_transformer = settings.get("model_type") == DiffTransformerConfig.model_type
    for field, value, _ in _leaves(settings):
        if isinstance(value, int) and abs(value) > _MOST_INTEGER:
            raise CheckpointError(f"{where}: {field} must be below 2**63, got {short(value)}.")
        last = field.rpartition(".")[2]
        if "_implementation" in last and "/" in str(value):  # code from the hub
            raise CheckpointError(f"{where}: {field} must name no repository, got {value!r}.")
        if last == "num_labels" and not (type(value) is int and 0 <= value <= 2**16):
            raise CheckpointError(f"{where}: {field} must be from 0 to 65536, got {value!r}.")
        if last in ("dtype", "torch_dtype") and value is not None:
            kind = str(value).removeprefix("torch.")
            if kind not in _FLOATS and not (kind.startswith("float8") and not is_diff_transformer):
                raise CheckpointError(
                    f"{where}: {field} must be in {{{', '.join(_FLOATS)}}}, got {short(value)}."
                )
    for field, wanted in _FIXED_SETTINGS.items():
        got = settings.get(field, wanted)
        if got is not None and (got != wanted or type(got) is not type(wanted)):
            raise CheckpointError(f"{where}: {field} must be {wanted}, got {short(got)}.")
    quantized = settings.get("quantization_config")
    if quantized is not None and not (isinstance(quantized, dict) and quantized):
        must = "quantization_config must be an object that says how weights are stored"
        raise CheckpointError(f"{where}: {must}, got {short(quantized)}.")
    labels = settings.get("id2label")
    if labels is not None and not (isinstance(labels, dict) and all(map(str.isdecimal, labels))):
        raise CheckpointError(f"{where}: id2label must name labels by number, got {short(labels)}.")
    if is_diff_transformer:
        _check_our_settings(where, settings)


def _check_our_settings(where: str, settings: dict[str, Any]) -> None:
    """Raise for names that would replace a method or property: transformers sets any name.

    The configuration itself refuses misspelled names and warns of unknown ones.
    """
    known = {*DiffTransformerConfig.__dataclass_fields__, *_FIXED_SETTINGS, *OTHER_NAMES}
    known |= GenerationConfig().to_dict().keys()  # older versions wrote them; they are ignored
    for name in sorted(settings.keys() - known):
        if name.startswith("_") or hasattr(DiffTransformerConfig, name):
            raise CheckpointError(
                f"{where}: must hold nothing but known settings, got {short(name)} = "
                f"{short(settings[name])}."
            )


def _check_counts(where: str, settings: dict[str, Any], weights: "Weights") -> None:
    most, largest = max(_MODULES, weights.tensors), max(_SMALL, weights.numbers)
    for field, value, _ in _leaves(settings):
        name = field.rpartition(".")[2].lower()
        if type(value) is int and name.endswith(_SIZE_ENDINGS) and value > largest:
            raise CheckpointError(
                f"{where}: {field} must fit the weights, {weights.numbers:,} numbers, got {value}."
            )
        least = 0 if name.startswith(("num", "n_")) else -most  # an index -1: the last layer
        counted = type(value) is int and any(word in name for word in _COUNT_WORDS)
        if counted and not least <= value <= most:
            raise CheckpointError(
                f"{where}: {field} must be from {least} to {most:,}, for files of "
                f"{weights.tensors:,} tensors, got {value}."
            )


def _largest_size(settings: dict[str, Any]) -> str:
    """The largest integer besides positions and token ids: most likely the mistake."""
    sizes = [
        (value, field)
        for field, value, _ in _leaves(settings)
        if type(value) is int and "position" not in field and not field.endswith("_id")
    ]
    value, field = max(sizes, default=(0, "none"))
    return f"{field} = {value}"


def _check_tokenizer(where: str, content: dict[str, Any]) -> None:
    """Raise for token ids beyond 32 bits, and for names of files outside the folder."""
    for field, value, _ in _leaves(content):
        name = field.rpartition(".")[2]
        ids = name == "id" or ".vocab." in f".{field}" or name.endswith("_id")
        if ids and type(value) is int and not 0 <= value <= LARGEST_COUNT:
            raise CheckpointError(
                f"{where}: {field} must be from 0 to {LARGEST_COUNT}, got {value}."
            )
        if name.endswith("_file") and isinstance(value, str) and Path(value).name != value:
            raise CheckpointError(f"{where}: {field} must lie in the folder, got {value!r}.")
    table = content.get("added_tokens_decoder")
    for key in table if isinstance(table, dict) else ():
        if not key.isdecimal() or not key.isascii() or len(key) > 10 or int(key) > LARGEST_COUNT:
            raise CheckpointError(
                f"{where}: added_tokens_decoder must number tokens from 0 to {LARGEST_COUNT}, got "
                f"{short(key)}."
            )
