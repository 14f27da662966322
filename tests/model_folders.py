"""Change what a saved model folder says or holds."""

import json

from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


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
