"""Judges: a model behind an endpoint, a local model, or replies from a file."""

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from diffattn.errors import ConfigError
from diffattn.files.io import read_plain_jsonl
from diffattn.lab.evaluation.judge.endpoint import EndpointJudge
from diffattn.lab.evaluation.judge.interface import Judge, JudgeFailure, JudgeSettings, Reply
from diffattn.lab.evaluation.judge.prompt import Messages, storable

if TYPE_CHECKING:  # an endpoint and recorded replies need no torch
    from diffattn.lab.inference.language_model import LanguageModel

_LOCAL_TOKENS = 512


def chosen_judge(
    settings: JudgeSettings,
    *,
    replies: Path | None = None,
    device: str | None = None,
    dtype: str = "auto",
) -> Judge:
    """The judge: recorded ``replies`` if given, else the endpoint if set, else a local model.

    Raises:
        ConfigError: The endpoint, its key, the replies or an option is wrong.
        CheckpointError: The model or the file is missing or damaged.
    """
    if replies is not None:
        return RecordedReplies(replies, settings)
    if settings.endpoint is not None:
        return EndpointJudge(settings)
    from diffattn.lab.inference.language_model import LanguageModel

    return LocalJudge(LanguageModel.load(settings.model, device=device, dtype=dtype), settings)


class LocalJudge(Judge):
    """A language model on this machine. It decodes greedily, with its chat template if any."""

    def __init__(self, model: "LanguageModel", settings: JudgeSettings) -> None:
        super().__init__(settings)
        self.model = model

    def facts(self) -> dict[str, Any]:
        """The settings, and a hash of the weights."""
        return super().facts() | {"weights": self.model.facts()["weights"]}

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """The greedy reply to one request."""
        from diffattn.lab.inference.network_reader import ItemError
        from diffattn.lab.inference.prompting import require_no_special

        tokenizer = self.model.tokenizer
        if getattr(tokenizer, "chat_template", None):
            try:
                for message in messages:
                    require_no_special(self.model, message["content"])
            except ItemError as error:  # otherwise a judged output could write its own verdict
                raise JudgeFailure(f"{self.settings.model}: {error}") from error
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = self.model.encode(text, special=True)  # the template has BOS already
        else:
            ids = self.model.encode_prompt("\n\n".join(m["content"] for m in messages) + "\n\n")
        limit = self.settings.max_tokens or _LOCAL_TOKENS
        try:
            (written,) = self.model.generate([ids], max_new_tokens=limit)
        except ItemError as error:
            raise JudgeFailure(f"{self.settings.model}: {error}") from error
        return Reply(written.text, {"finished": written.finished})


class RecordedReplies(Judge):
    """Replies from a file: JSON lines with ``id``, the name of the request, and ``reply``."""

    def __init__(self, path: Path, settings: JudgeSettings) -> None:
        super().__init__(settings)
        self.path = path
        self.replies: dict[str, str] = {}
        for number, row in enumerate(read_plain_jsonl(path), start=1):
            if not isinstance(row.get("id"), str) or not isinstance(row.get("reply"), str):
                raise ConfigError(
                    f"{path}:{number}: must hold the texts 'id' and 'reply', got {sorted(row)}."
                )
            self.replies[row["id"]] = storable(row["reply"])

    def reply(self, name: str, messages: Messages, stop: Event) -> Reply:
        """The recorded reply to the request ``name``."""
        if name not in self.replies:
            raise JudgeFailure(f"{self.path}: must hold a reply to {name!r}, got none.")
        return Reply(self.replies[name])
