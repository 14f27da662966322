"""Check an untrusted model folder before transformers builds the model.

A wrong size in ``config.json`` would make transformers allocate memory or loop without end. So
sizes are compared with the headers of the weights, and the weights with the free memory.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from diffattn.errors import CheckpointError, first_line, short
from diffattn.models.checkpoint_folder import Find, weights_of
from diffattn.models.configuration_diff_transformer import OTHER_NAMES, DiffTransformerConfig
from diffattn.models.memory import available_bytes
from diffattn.models.twins import parameter_count
from diffattn.ops.inputs.numbers import LARGEST_COUNT

_SETTINGS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "processor_config.json", "chat_template.json",
)  # fmt: skip
_VOCABULARIES = ("tokenizer.json", "vocab.json")
_MOST_DEPTH = 64
_SMALL = 2**22
"""Models of this many parameters are built in any case: transformers' own error names weights."""
# Endings of settings that are an axis of some weight, and words in those that count modules.
_SIZE_ENDINGS = ("hidden_size", "intermediate_size", "vocab_size", "head_dim", "_heads", "_rank")
_COUNT_WORDS = ("layer", "block", "expert", "depth")
_NO_COUNT = ("size", "dim")  # as in vocab_size_per_layer_input
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
    """Raise a CheckpointError if a folder cannot hold a model, in time and memory bounded by the
    sizes of its files. ``name`` is the user's, ``folder`` the path or hub name for transformers. If
    ``in_memory``, all weights must fit the free main memory."""
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
    tensors, numbers, held = weights
    _check_counts(where, settings, tensors, numbers)
    try:
        config = AutoConfig.from_pretrained(folder, revision=revision, trust_remote_code=False)
        if settings.get("quantization_config") is not None:
            return  # quantised: several weights in one number, so counts cannot be compared
        if isinstance(config, DiffTransformerConfig):
            needed = parameter_count(config)
        else:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            needed = sum(parameter.numel() for parameter in model.parameters())
            held += sum(buffer.nbytes for buffer in model.buffers())
    except Exception as error:  # the code of any model type may raise any error
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise CheckpointError(f"{where}: must be a configuration, got: {reason}.") from error
    if needed > max(numbers, _SMALL):
        # The largest integer besides positions and token ids is most likely the mistake.
        sizes = [(value, field) for field, value, _ in _leaves(settings) if type(value) is int]
        named = [x for x in sizes if "position" not in x[1] and not x[1].endswith("_id")]
        size, field = max(named, default=(0, "none"))
        got = f"{needed:,} parameters; the largest is {field} = {size}"
        raise _fault(where, f"sizes must fit the weights, {numbers:,} numbers", got)
    left = available_bytes() if in_memory else None
    if left is not None and held > left:
        must = f"weights must fit the memory that is left, {left:,} bytes"
        raise _fault(name, must, f"{held:,}")


def read_object(where: str, path: Path, *, vocabulary: bool = False) -> dict[str, Any]:
    """The object in a JSON file. Size and depth are limited, and all numbers must be finite."""
    most = 2**29 if vocabulary else 2**22
    if not path.is_file() or (size := path.stat().st_size) > most:
        got = f"{size:,} bytes" if path.is_file() else "no regular file"
        raise _fault(where, f"must be a file of {most:,} bytes at most", got)
    too_deep = _fault(where, f"must be nested {_MOST_DEPTH} deep at most", "more")
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except RecursionError as error:
        raise too_deep from error
    except ValueError as error:  # no JSON, no UTF-8, or an integer of thousands of digits
        raise CheckpointError(f"{where}: must be JSON, got: {first_line(error)}.") from error
    if not isinstance(content, dict):
        raise _fault(where, "must hold an object", short(content))
    for field, value, depth in _leaves(content):
        if depth > _MOST_DEPTH:
            raise too_deep
        if isinstance(value, float) and not math.isfinite(value):
            raise _fault(where, f"{field} must be finite", value)
        if field.endswith("__float__"):  # transformers' spelling of NaN and infinity
            raise _fault(where, f"{field} must be a number", short(value))
    return content


def _fault(where: str, must: str, got: object) -> CheckpointError:
    return CheckpointError(f"{where}: {must}, got {got}.")


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
        if isinstance(value, int) and abs(value) >= 2**63:
            raise _fault(where, f"{field} must be below 2**63", short(value))
        last = field.rpartition(".")[2]
        if "_implementation" in last and "/" in str(value):  # code from the hub
            raise _fault(where, f"{field} must name no repository", repr(value))
        if last == "num_labels" and not (type(value) is int and 0 <= value <= 2**16):
            raise _fault(where, f"{field} must be from 0 to 65536", repr(value))
        in_weights = field.startswith("quantization_config.")  # of stored numbers, not the model's
        if last in ("dtype", "torch_dtype") and value is not None and not in_weights:
            kind = str(value).removeprefix("torch.")
            if kind not in _FLOATS and not (kind.startswith("float8") and not is_diff_transformer):
                raise _fault(where, f"{field} must be in {{{', '.join(_FLOATS)}}}", short(value))
    for field, wanted in _FIXED_SETTINGS.items():
        got = settings.get(field, wanted)
        if got is not None and (got != wanted or type(got) is not type(wanted)):
            raise _fault(where, f"{field} must be {wanted}", short(got))
    quantized = settings.get("quantization_config")
    if quantized is not None and not (isinstance(quantized, dict) and quantized):
        must = "quantization_config must be an object that says how weights are stored"
        raise _fault(where, must, short(quantized))
    labels = settings.get("id2label")
    if labels is not None and not (isinstance(labels, dict) and all(map(str.isdecimal, labels))):
        raise _fault(where, "id2label must name labels by number", short(labels))
    if not is_diff_transformer:
        return
    # Transformers sets any name, also that of a method or property, which it would replace. The
    # configuration itself refuses misspelled names and warns of unknown ones.
    known = {*DiffTransformerConfig.__dataclass_fields__, *_FIXED_SETTINGS, *OTHER_NAMES}
    known |= GenerationConfig().to_dict().keys()  # older versions wrote them; they are ignored
    for name in sorted(settings.keys() - known):
        if name.startswith("_") or hasattr(DiffTransformerConfig, name):
            got = f"{short(name)} = {short(settings[name])}"
            raise _fault(where, "must hold nothing but known settings", got)


def _check_counts(where: str, settings: dict[str, Any], tensors: int, numbers: int) -> None:
    most = max(1_024, tensors)  # 1,024 modules take a second
    largest = max(_SMALL, numbers)
    for field, value, _ in _leaves(settings):
        if type(value) is not int:
            continue
        name = field.rpartition(".")[2].lower()
        if name.endswith(_SIZE_ENDINGS) and value > largest:
            raise _fault(where, f"{field} must fit the weights, {numbers:,} numbers", value)
        least = 0 if name.startswith(("num", "n_")) else -most  # an index -1: the last layer
        is_count = any(word in name for word in _COUNT_WORDS)
        is_count = is_count and not any(word in name for word in _NO_COUNT)
        if is_count and not least <= value <= most:
            must = f"{field} must be from {least} to {most:,}"
            raise _fault(where, f"{must}, for files of {tensors:,} tensors", value)


def _check_tokenizer(where: str, content: dict[str, Any]) -> None:
    """Raise for token ids beyond 32 bits, and for names of files outside the folder."""
    for field, value, _ in _leaves(content):
        name = field.rpartition(".")[2]
        ids = name == "id" or ".vocab." in f".{field}" or name.endswith("_id")
        if ids and type(value) is int and not 0 <= value <= LARGEST_COUNT:
            raise _fault(where, f"{field} must be from 0 to {LARGEST_COUNT}", value)
        # Old versions of transformers wrote special_tokens_map_file; none reads it.
        is_file = name.endswith("_file") and name != "special_tokens_map_file"
        if is_file and isinstance(value, str) and Path(value).name != value:
            raise _fault(where, f"{field} must lie in the folder", repr(value))
    table = content.get("added_tokens_decoder")
    for key in table if isinstance(table, dict) else ():
        if not key.isdecimal() or not key.isascii() or len(key) > 10 or int(key) > LARGEST_COUNT:
            must = f"added_tokens_decoder must number tokens from 0 to {LARGEST_COUNT}"
            raise _fault(where, must, short(key))
