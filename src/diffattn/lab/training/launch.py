"""From a user's request to a finished run: configure it, pack its data, train."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.records.run import is_claimed
from diffattn.lab.training.callbacks import OnMessage, OnProgress
from diffattn.lab.training.config import RunConfig
from diffattn.lab.training.distributed import (
    from_first,
    is_first,
    joined,
    together,
)
from diffattn.lab.training.initial import initial_config, initial_weights
from diffattn.lab.training.prepare import PreparedData, open_data, prepare_data
from diffattn.lab.training.run import require_enough, require_runnable, train
from diffattn.lab.training.settings import TrainRequest, apply_settings


def configure(config: RunConfig, request: TrainRequest) -> tuple[RunConfig, PreparedData | None]:
    """The recipe's configuration with the request applied, and the packed data it names, if any."""
    packed, given = None, []
    if request.data is not None:  # the model's vocabulary follows the data's
        packed = open_data(request.data, verify=False)
        config = apply_settings(config, [f"data.vocab_size={packed.config.vocab_size}"])
        config = replace(config, data=packed.config)
    if request.same_model and request.init_from is not None:
        fields = initial_config(request.init_from).settings()
        given = [f"model.{name}={json.dumps(value)}" for name, value in fields.items()]
    config = apply_settings(config, [*given, *request.changes], attention=request.attention)
    if packed is not None and config.data != packed.config:
        raise ConfigError("train: --data fixes the data settings, got --set data.* too.")
    if request.init_from is not None:
        verify = request.verify and is_first()
        init = initial_weights(request.init_from, config.model, verify=verify)
        config = replace(config, init=init)
    return config, packed


def data_notes(config: RunConfig, data: PreparedData, request: TrainRequest) -> list[str]:
    """Lines that tell the user about side effects of the data: vocabulary size, repeated reads."""
    lines, vocab = [], config.model.vocab_size
    if request.data is not None and not request.same_model:
        expected = request.recipe_vocab_size
        if vocab == data.config.vocab_size != expected:
            lines.append(f"model.vocab_size is the data's {vocab:,}, the recipe's is {expected:,}")
    read, held = config.train.num_steps * config.train.batch_tokens, data.train.num_tokens
    # With up-sampling the run itself reports how often documents are read.
    if read > held and config.windows.upsample_longer_than is None:
        lines.append(f"{held:,} training tokens are read {read / held:,.1f} times")
    return lines


def launch_run(
    config: RunConfig,
    request: TrainRequest,
    packed: PreparedData | None,
    *,
    on_progress: OnProgress,
    on_message: OnMessage,
) -> dict[str, Any]:
    """Pack the data where it is not yet packed, and train; see :func:`train`."""
    require_runnable(config)
    folder = request.out / "data"

    def claim_and_pack() -> None:
        if request.resume and not ((request.out / "run.json").exists() or folder.exists()):
            raise ConfigError(f"train: --resume needs a run in {request.out}, got none.")
        # A foreign folder is refused before anything is packed.
        is_claimed(request.out, "run.json", "a run", besides="data")
        if packed is None:
            require = partial(require_enough, config)
            prepare_data(config.data, folder, require=require, on_message=on_message)

    with joined():
        with together():  # a large hash takes longer than the timeout of the process group
            if request.data is not None and request.verify and is_first():
                open_data(request.data)
        from_first(claim_and_pack)
        data = packed or open_data(folder, verify=False)  # written by this call, or verified above
        for line in data_notes(config, data, request) if is_first() else []:
            on_message(line)
        return train(config, data, request.out, on_progress=on_progress, on_message=on_message)
