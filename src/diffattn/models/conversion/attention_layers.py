"""Load attention layers of Motif. Whole models do not load: our feed-forward layers differ."""

import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.saved_names import saved_name
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import OUR_ENDINGS
from diffattn.models.conversion.settings_of import motif_settings
from diffattn.models.conversion.source import open_source
from diffattn.models.decoder_block import build_attention


def load_attention_layer(path: str, layer: int) -> DiffAttention:
    """One attention layer of a Motif folder, to study the attention of a published model.

    Call the layer with its normalised input, and with :func:`diffattn.rotary_embedding` tables made
    with the folder's ``rope_theta``.

    It has the dtype of its weights, and is V1 for Motif-2.6B, a
    :class:`~diffattn.GroupedDiffAttention` for Motif-2-12.7B. ``layer`` counts from 0.

    Raises:
        CheckpointError: The folder holds no Motif model, no such layer, or wrong shapes.
    """
    with open_source(path, "motif") as source:
        config = DiffTransformerConfig(**motif_settings(source))
        if not 0 <= layer < config.num_hidden_layers:
            raise source.error(f"layer must be below {config.num_hidden_layers}", layer)
        with torch.device("meta"):  # wrong sizes in config.json must not allocate memory
            made = build_attention(config, layer)
        names = {OUR_ENDINGS[role]: name.format(layer) for role, name in source.names.items()}
        state = {}
        for key, like in made.state_dict().items():
            tensor = source.tensor(names[saved_name(key)], like.shape)
            state[key] = tensor.load().to(like.dtype if "lambda" in key else tensor.dtype)
    made.load_state_dict(state, assign=True)
    assert isinstance(made, DiffAttention)
    return made.eval()
