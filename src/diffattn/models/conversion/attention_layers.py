"""Attention layers of Motif, whose feed-forward activation ours lacks."""

import torch

from diffattn.errors import CheckpointError
from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.saved_names import saved_name
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.layouts import OUR_ENDINGS
from diffattn.models.conversion.settings_of import motif_settings
from diffattn.models.conversion.source import open_source
from diffattn.models.decoder_block import build_attention


def load_attention_layer(path: str, layer: int) -> DiffAttention:
    """One attention layer of a Motif folder, to study what a model in production attends to.

    Call it with the layer's normalised input and :func:`diffattn.rotary_embedding` of the folder's
    ``rope_theta``.

    Args:
        path: Folder with ``config.json`` and safetensors.
        layer: Index of the layer, counted from 0.

    Returns:
        The layer in the dtype of its weights: V1 of Motif-2.6B, and of Motif-2-12.7B a
        :class:`~diffattn.GroupedDiffAttention`.

    Raises:
        CheckpointError: Another model, no such layer, or tensors of other shapes.
    """
    with open_source(path, "motif") as source:
        config = DiffTransformerConfig(**motif_settings(source))
        if not 0 <= layer < config.num_hidden_layers:
            raise CheckpointError(
                f"{path}: layer must be below {config.num_hidden_layers}, got {layer}."
            )
        with torch.device("meta"):  # sizes are the folder's, and may be wrong
            made = build_attention(config, layer)
        names = {OUR_ENDINGS[role]: name.format(layer) for role, name in source.names.items()}
        state = {}
        for key, like in made.state_dict().items():
            tensor = source.tensor(names[saved_name(key)], like.shape)
            state[key] = tensor.load().to(like.dtype if "lambda" in key else tensor.dtype)
    made.load_state_dict(state, assign=True)
    assert isinstance(made, DiffAttention)
    return made.eval()
