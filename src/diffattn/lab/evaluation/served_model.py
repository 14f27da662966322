"""Models behind a completions endpoint, such as OpenAI's or vLLM's, which only generate text."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from threading import Event
from typing import Any, ClassVar, NoReturn

import torch
from transformers import AutoTokenizer

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError, first_line
from diffattn.lab.evaluation.judge.interface import (
    JudgeFailure,
    JudgeSettings,
    JudgeUnreachable,
    Reply,
)
from diffattn.lab.evaluation.judge.judges import EndpointJudge
from diffattn.lab.inference.decoding import Generation, first_stop, require_room
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ModelError
from diffattn.lab.inference.pass_limits import STANDARD_LIMITS
from diffattn.lab.inference.prompting import Completion
from diffattn.lab.records.settings import read_settings
from diffattn.models.loading import name_or_cached


@dataclass(frozen=True, kw_only=True)
class ServedSettings(JudgeSettings):
    """Settings of a served model; address, retries and key are as for a judge."""

    who: ClassVar[str] = "served model"
    limits: ClassVar = JudgeSettings.limits | {"max_length": (2, 2**31 - 1)}
    tokenizer: str
    """Folder or hub name of the model's tokenizer. Prompts are sent as token ids."""
    max_length: int
    """Most tokens of prompt and completion together that the server takes."""
    temperature: float | None = 0.0


def served_settings(label: str, endpoint: str, changes: Sequence[str]) -> ServedSettings:
    """Settings of the served model ``label``; ``changes`` are ``LABEL.KEY=VALUE`` of all models."""
    fixed = ("endpoint", "document", "name", "max_tokens", "give_up_after")  # those of a judge
    known = [f.name for f in fields(ServedSettings) if f.name not in fixed]
    kinds = {f"{label}.{key}": str if key in ("model", "tokenizer") else Any for key in known}
    replies = []
    for change in changes:
        name, separator, _ = change.partition("=")
        if not separator or "." not in name:
            raise ConfigError(f"--served: must be LABEL.KEY=VALUE, got {name!r}.")
        if name.rpartition(".")[0] == label:
            replies.append(change)
    read = read_settings(replies, kinds, option="--served", form="LABEL.KEY=VALUE")
    values = {key.rpartition(".")[2]: value for key, value in read.items()}
    for key in ("model", "tokenizer", "max_length"):
        if key not in values:
            raise ConfigError(
                f"{label}: a served model needs --served {label}.{key}=..., got none."
            )
    return ServedSettings(endpoint=endpoint, **values)


class ServedModel(LanguageModel):
    """A model on a server. Methods that need logits or attention maps raise ``ModelError``."""

    def __init__(
        self, settings: ServedSettings, *, label: str, add_bos: bool | None = None
    ) -> None:
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(name_or_cached(settings.tokenizer))
        except (OSError, ValueError) as error:
            got = first_line(error)
            raise CheckpointError(f"{label}: must have a tokenizer, got: {got}.") from error
        self.settings, self._endpoint = settings, EndpointJudge(settings, "/completions")
        self.tokenizer, self.label, self.path = tokenizer, label, str(settings.endpoint)
        self.max_length, self.limits, self.rows_alone = settings.max_length, STANDARD_LIMITS, True
        self.bos = tokenizer.bos_token_id if add_bos is not False else None
        self._prefix, self._steady, self._add_bos = None, None, add_bos

    def facts(self) -> dict[str, Any]:
        """Facts for records; the server's model name stands for the weights, which are unknown."""
        kept = self._endpoint.facts()
        unknown = ("attention_type", "parameters", "weights", "commit", "dtype")
        return {
            **dict.fromkeys(unknown),
            "label": self.label,
            "path": kept["endpoint"],
            "type": "served",
            "served_name": kept["model"],
            "temperature": kept["temperature"],
            "device": "server",
            "max_length": self.max_length,
            "bos": self.bos,
            **self.tokenizer_facts(),
        }

    @property
    def device(self) -> torch.device:
        """The CPU: the model is computed on the server."""
        return torch.device("cpu")

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        **others: Any,
    ) -> list[Generation]:
        """Completions at the settings' temperature (default: greedy), several at a time.

        Raises:
            ModelError: ``before`` is given, or the server cannot be reached or refuses.
            ItemError: A prompt does not fit. ``JudgeFailure``: the server did not answer a prompt.
        """
        if others.get("before") is not None:
            self._refuse()
        for prompt in prompts:
            require_room(self, len(prompt), max_new_tokens)
        common: dict[str, Any] = {"max_tokens": max_new_tokens}
        if stop:  # servers accept four; the text is cut at all of them afterwards
            common["stop"] = list(stop)[:4]
        requests = [{"prompt": list(prompt), **common} for prompt in prompts]
        with ThreadPoolExecutor(self.settings.workers) as pool:
            replies = list(pool.map(self._reply, requests))
        written = []
        for reply in replies:
            end = first_stop(reply.text, stop)
            finished = "length" if reply.details.get("finish_reason") == "length" else "eos"
            text = reply.text[:end]
            ids = tuple(self.encode(text)) if text else ()
            written.append(Generation(ids, text, finished if end is None else "stop"))
        return written

    def _reply(self, body: dict[str, Any]) -> Reply:
        try:
            return self._endpoint.request(body, Event())
        except DiffAttnError as error:  # no server, or a wrong key, model or address
            if isinstance(error, JudgeFailure) and not isinstance(error, JudgeUnreachable):
                raise  # only this prompt failed
            raise ModelError(f"{self.label}: {error}") from error

    def complete(
        self,
        prompts: Sequence[str],
        answers: Sequence[str] | None,
        *,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        chat: bool = False,
    ) -> list[Completion]:
        """Complete prompts. ``answers`` are not scored: servers do not give their probability."""
        ids = [self.encode_prompt(prompt, special=chat) for prompt in prompts]
        written = self.generate(ids, max_new_tokens=max_new_tokens, stop=stop)
        return [
            Completion(text=x.text, prompt_tokens=len(tokens), logprob_per_token=None, prompt=text)
            for x, tokens, text in zip(written, ids, prompts, strict=True)
        ]

    @property
    def network(self) -> Any:
        """Raises ``ModelError``: the network is on the server."""
        self._refuse()

    def _refuse(self, *args: Any, **others: Any) -> NoReturn:
        raise ModelError(
            f"{self.label}: this protocol needs logits or maps, and a served model only writes. "
            "Protocols that run: ruler, babilong, key_values, hidden_needle, and hallucination "
            "with lookback=false."
        )

    read = _refuse
    score = _refuse
    read_prompts = _refuse
    read_labels = _refuse
    prefix_losses = _refuse
    sliding_losses = _refuse
