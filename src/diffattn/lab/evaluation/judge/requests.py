"""The recorded outputs of an evaluation folder, and the requests to a judge about them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.judge.prompt import Messages, judge_messages
from diffattn.lab.records.evaluations import (
    JUDGED_PROTOCOL,
    EvalResult,
    evaluation_marker,
    text_read,
)

BEGINNING = '{"request": "'
"""The characters with which every file of requests begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The request to judge one output."""

    name: str
    """``<label>/<variant>/<item>``."""
    item: str
    messages: Messages
    digest: str
    """Hash of the messages. A reply counts only for a request with the same hash."""

    def plain(self) -> dict[str, Any]:
        """The request as a JSON object, whose text begins with :data:`BEGINNING`."""
        return {"request": self.digest, "id": self.name, "messages": self.messages}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The recorded outputs of one model on one dataset."""

    label: str
    variant: str
    folder: Path
    result: EvalResult

    def requests(self, document: str) -> list[Request]:
        """One request per non-empty output. For ``document`` see :class:`JudgeSettings`."""
        requests = []
        for row in self.rows():
            if not row["output"]:
                continue
            is_part = document == "read"
            text = text_read(row["document"], row["read"]) if is_part else row["document"]
            messages = judge_messages(row, text)
            digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]
            name = f"{self.label}/{self.variant}/{row['id']}"
            requests.append(Request(name=name, item=row["id"], messages=messages, digest=digest))
        return requests

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the items that were scored."""
        return [row for row in self.result.read_items(self.folder) if "error" not in row]


def recorded_outputs(folder: Path) -> list[Outputs]:
    """The finished parts of ``JUDGED_PROTOCOL`` in an evaluation folder; raises without any."""
    marker, recorded = evaluation_marker(folder), []
    for label in marker["models"]:
        for variant in marker["variants"]:
            part = folder / label / variant
            if not (part / "result.json").exists():
                continue
            result = EvalResult.read(part)
            if result.protocol == JUDGED_PROTOCOL:
                recorded.append(Outputs(label=label, variant=variant, folder=part, result=result))
    if not recorded:
        raise ConfigError(
            f"{folder}: must hold a finished evaluation by {JUDGED_PROTOCOL!r}, got none."
        )
    return recorded
