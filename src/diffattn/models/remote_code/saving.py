"""Write the model's own code and a card beside a configuration that names them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from diffattn.models.checkpoint_folder import checkpoint_folder
from diffattn.models.remote_code.card import CARD_NAME, CLASSES, FILE_NAME, model_card

AUTO_MAP = {auto: f"{FILE_NAME.removesuffix('.py')}.{name}" for auto, name in CLASSES.items()}
"""Field of ``config.json``: class of Hugging Face to the file and class that implement it."""
MODEL_FILE = Path(__file__).with_name(FILE_NAME)
"""The model in one file, which is copied beside the weights."""


class FromRunFolders:
    """Mix-in: ``from_pretrained`` also takes a run directory of ours."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Hugging Face; of a run directory its model.

        Raises:
            CheckpointError: A folder holds no model.
        """
        name = pretrained_model_name_or_path
        if name is not None and not kwargs.keys() & {"config", "subfolder"}:
            folder = Path(name)
            is_adapter = (folder / "adapter_config.json").exists()  # of peft: names another model
            if folder.is_dir() and not is_adapter:
                name = checkpoint_folder(str(name))
        return super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]


class NamesItsCode(FromRunFolders):
    """Mix-in of the configuration: it can write the model's code beside ``config.json``."""

    auto_map = AUTO_MAP
    """For readers that expect it of any configuration. ``config.json`` names it only where the file
    with the code lies beside it."""

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        *args: Any,
        remote_code: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """As in Hugging Face.

        With ``remote_code``, the model's code and a card are written as well, and ``config.json``
        names the code. A card that lies there is kept. Default: if the settings were read from a
        folder with its code.
        """
        if remote_code is None:
            remote_code = "auto_map" in self.__dict__
        with _naming_code(self, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if not remote_code:
            return
        folder = Path(save_directory)
        shutil.copyfile(MODEL_FILE, folder / FILE_NAME)
        if not (folder / CARD_NAME).exists():
            (folder / CARD_NAME).write_text(model_card(self), encoding="utf-8")


class SavesItsCode(FromRunFolders):
    """Mix-in of the models: a saved folder loads where ``diffattn`` is not installed."""

    config: Any

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        *args: Any,
        remote_code: bool = True,
        **kwargs: Any,
    ) -> None:
        """As in Hugging Face, with the model's code and a card beside its weights.

        ``modeling_diff_transformer.py`` loads the folder with ``trust_remote_code=True`` where
        ``diffattn`` is missing; without ``remote_code`` it is not written.
        """
        with _naming_code(self.config, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


@contextmanager
def _naming_code(config: Any, named: bool) -> Iterator[None]:
    before = config.__dict__.pop("auto_map", None)
    if named:
        config.auto_map = dict(AUTO_MAP)
    try:
        yield
    finally:
        config.__dict__.pop("auto_map", None)
        if before is not None:
            config.auto_map = before
