"""Write the model's own code and a card beside a configuration that names them."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from diffattn.models.remote_code.auto_map import AUTO_MAP, FILE_NAME
from diffattn.models.remote_code.card import CARD_NAME, model_card
from diffattn.models.remote_code.single_file import single_file


class NamesItsCode:
    """Of a configuration: where others find its classes, and that file wherever it is named."""

    auto_map = AUTO_MAP
    """Hugging Face's classes to ours, for readers that expect it of any configuration. Written to
    ``config.json`` only together with the file."""

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        *args: Any,
        remote_code: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """As in Hugging Face.

        Args:
            save_directory: Folder for ``config.json``.
            *args: As in Hugging Face.
            remote_code: Write the model's code and a card as well, and name the code in
                ``config.json``. A card that lies there is kept. Default: if this configuration
                was read from a folder with its code.
            **kwargs: As in Hugging Face.
        """
        if remote_code is None:
            remote_code = "auto_map" in self.__dict__
        with _naming_code(self, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if not remote_code:
            return
        folder = Path(save_directory)
        (folder / FILE_NAME).write_text(single_file(), encoding="utf-8")
        if not (folder / CARD_NAME).exists():
            (folder / CARD_NAME).write_text(model_card(self), encoding="utf-8")


class SavesItsCode:
    """Of a model: what it saves loads where ``diffattn`` is not installed."""

    config: Any

    def save_pretrained(
        self,
        save_directory: str | PathLike[str],
        *args: Any,
        remote_code: bool = True,
        **kwargs: Any,
    ) -> None:
        """As in Hugging Face, with the model's code beside its weights.

        Args:
            save_directory: Folder for configuration and weights.
            *args: As in Hugging Face.
            remote_code: Write ``modeling_diff_transformer.py``, by which others load the folder
                with ``trust_remote_code=True``, and a model card unless one lies there.
            **kwargs: As in Hugging Face.
        """
        with _naming_code(self.config, remote_code):
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


@contextmanager
def _naming_code(config: Any, named: bool) -> Iterator[None]:
    """What a configuration says of its code, while it is written."""
    before = config.__dict__.pop("auto_map", None)
    if named:
        config.auto_map = dict(AUTO_MAP)
    try:
        yield
    finally:
        config.__dict__.pop("auto_map", None)
        if before is not None:
            config.auto_map = before
