"""Use the Hugging Face hub, or its local cache if the hub does not answer within seconds."""

from contextlib import suppress
from pathlib import Path
from threading import Thread

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import get_session

from diffattn.errors import CheckpointError
from diffattn.models.checkpoint_folder import is_hub_name

_PATIENCE_SECONDS = 8.0
"""Time limit of the test whether the hub answers. Without it, clients retry for minutes."""


def name_or_cached(name: str, revision: str | None = None) -> str:
    """``name`` if it is a folder or the hub answers, else the model's folder in the hub's cache."""
    if not is_hub_name(name) or _answers():
        return name
    try:
        return snapshot_download(name, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it could not be reached"
        raise CheckpointError(
            f"{name}: no folder of this name is in {Path.cwd()}, and the hub cannot be asked for "
            f"it ({constants.ENDPOINT}: {why}). Name a local folder."
        ) from error


def _answers() -> bool:
    """Whether the hub answers in time. In a thread, because a DNS lookup has no time limit."""
    replies: list[object] = []

    def ask() -> None:
        with suppress(Exception):  # every HTTP client has errors of its own
            replies.append(get_session().head(constants.ENDPOINT, timeout=_PATIENCE_SECONDS))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return bool(replies)
