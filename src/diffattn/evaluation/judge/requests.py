"""What of an evaluation folder is to be judged, and the words in which it is asked."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.evaluation.hallucination.hallucination import text_read
from diffattn.evaluation.judge.prompt import Messages, judge_messages
from diffattn.records.evaluations import EvalResult, require_kind
from diffattn.records.io import read_json, read_jsonl


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One output to be judged."""

    name: str
    """``<label>/<variant>/<item>``."""
    item: str
    messages: Messages
    digest: str
    """Of the messages: a reply counts for these words only."""

    def plain(self) -> dict[str, Any]:
        """As a line of JSON."""
        return {"id": self.name, "request": self.digest, "messages": self.messages}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The recorded outputs of one model on one data set."""

    label: str
    variant: str
    folder: Path
    result: EvalResult

    def requests(self, document: str) -> list[Request]:
        """One per output that is not empty.

        Args:
            document: ``"whole"`` or ``"read"``.
        """
        found = []
        for row in self.rows():
            if not row["output"]:
                continue
            text = row["document"]
            if document == "read":
                text = text_read(text, row["read"])
            messages = judge_messages(row, text)
            digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]
            name = f"{self.label}/{self.variant}/{row['id']}"
            found.append(Request(name=name, item=row["id"], messages=messages, digest=digest))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the items that were asked without failure."""
        return [row for row in read_jsonl(self.folder / "items.jsonl") if "error" not in row]


def recorded_outputs(folder: Path) -> list[Outputs]:
    """What of an evaluation folder can be judged: finished parts of protocol ``hallucination``.

    Raises:
        CheckpointError: ``folder`` is no evaluation folder, or a record is damaged.
        ConfigError: Nothing in it can be judged.
    """
    known = evaluation_marker(folder)
    found = []
    for label in known["models"]:
        for variant in known["variants"]:
            own = folder / label / variant
            if not (own / "result.json").exists():
                continue
            result = EvalResult.read(own)
            if result.protocol == "hallucination":
                found.append(Outputs(label=label, variant=variant, folder=own, result=result))
    if not found:
        raise ConfigError(
            f"{folder}: must hold a finished evaluation by 'hallucination', got none."
        )
    return found


def evaluation_marker(folder: Path) -> dict[str, Any]:
    """What ``evaluation.json`` says, to be written back with more.

    Raises:
        CheckpointError: The file is missing or of another kind.
    """
    path = Path(folder) / "evaluation.json"
    value = read_json(path)
    return {key: value[key] for key in ("schema", "kind") if key in value} | require_kind(
        value, "evaluation folder", path
    )
