"""Save a model or configuration together with the model's code and a model card."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffattn.models.checkpoint_folder import checkpoint_folder
from diffattn.models.remote_code.card import CARD_NAME, CLASSES, FILE_NAME, model_card

AUTO_MAP = {auto: f"{FILE_NAME.removesuffix('.py')}.{name}" for auto, name in CLASSES.items()}
"""``auto_map`` of ``config.json``: Auto class of Hugging Face -> ``file.class`` of our code."""
MODEL_FILE = Path(__file__).with_name(FILE_NAME)
"""The file with the whole model's code, which is copied into saved folders."""


class FromRunFolders:
    """Mixin: ``from_pretrained`` also takes a run directory of ``diffattn``."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in Hugging Face; from a run directory it loads the run's model."""
        name = pretrained_model_name_or_path
        if name is not None and not kwargs.keys() & {"config", "subfolder"}:
            folder = Path(name)
            is_adapter = (folder / "adapter_config.json").exists()  # peft: the model is elsewhere
            if folder.is_dir() and not is_adapter:
                name = checkpoint_folder(str(name))
        return super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]


class NamesItsCode(FromRunFolders):
    """Mixin of the configuration: ``save_pretrained`` can also write the model's code."""

    auto_map = AUTO_MAP
    """Read by libraries that expect it in every configuration. It is written to ``config.json``
    only together with the file that holds the code."""

    def save_pretrained(
        self, save_directory: Any, *args: Any, remote_code: bool | None = None, **kwargs: Any
    ) -> None:
        """As in Hugging Face. With ``remote_code``, the model's code and a card are written too.

        By default they are if the configuration was read from a folder with code. An existing card
        is kept.
        """
        if remote_code is None:
            remote_code = "auto_map" in self.__dict__
        with _naming_code(self, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if remote_code:
            shutil.copyfile(MODEL_FILE, Path(save_directory, FILE_NAME))
            card = Path(save_directory, CARD_NAME)
            if not card.exists():
                card.write_text(model_card(self), encoding="utf-8")


class SavesItsCode(FromRunFolders):
    """Mixin of the models: saved folders can be loaded where ``diffattn`` is not installed."""

    config: Any

    def save_pretrained(
        self, save_directory: Any, *args: Any, remote_code: bool = True, **kwargs: Any
    ) -> None:
        """As in Hugging Face; the model's code and a card are written too, unless switched off."""
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
