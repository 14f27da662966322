"""``--quick`` for models with a short context."""

import json
from collections.abc import Iterable

from diffattn.errors import CheckpointError
from diffattn.models.checkpoint_folder import checkpoint_folder


def shortest_context(models: Iterable[str]) -> int | None:
    """The shortest context of several models in tokens, from ``config.json``.

    Models of the hub do not count, since theirs are long enough. ``None`` if nothing is known.
    """
    known = []
    for name in models:
        try:
            config = json.loads((checkpoint_folder(name) / "config.json").read_text("utf-8"))
            known.append(config["max_position_embeddings"])
        # A fault of a model is reported when it is loaded, and the others go on.
        except (CheckpointError, OSError, ValueError, LookupError, TypeError):
            continue
    return min((n for n in known if isinstance(n, int) and n > 1), default=None)
