"""Select the items to ask: all, a limited number, or a share whose answers are later joined."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.evaluation.protocol import Item
from diffattn.lab.evaluation.read_data import recorded_data
from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.records.run import RunRecord, difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which items are asked. Default: all."""

    limit: int | None = None
    """Largest number of items; see :func:`limited`. Results of two limits are never mixed."""
    shard: tuple[int, int] | None = None
    """(i, n): share i, from 1, of n. All n shares together are the whole evaluation."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"--limit: must be 1 or more, got {self.limit}.")
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            raise ConfigError(
                f"--shard: must be i/n with 1 <= i <= n, got {self.shard[0]}/{self.shard[1]}."
            )

    @classmethod
    def read(cls, shard: str | None, limit: int | None) -> "Selection":
        """Read the values of ``--shard`` (``i/n``) and ``--limit``."""
        if shard is None:
            return cls(limit=limit)
        first, _, second = shard.partition("/")
        if not all(text.isascii() and text.isdigit() and len(text) < 7 for text in (first, second)):
            raise ConfigError(f"--shard: must be i/n, such as 2/4, got {shard!r}.")
        return cls(limit=limit, shard=(int(first), int(second)))

    @property
    def suffix(self) -> str:
        """Suffix of a share's folder after the name of the part; empty without a share."""
        return "" if self.shard is None else f".shard-{self.shard[0]}-of-{self.shard[1]}"

    def recorded(self) -> dict[str, Any]:
        """The selection for records; empty for all items."""
        limit = {} if self.limit is None else {"limit": self.limit}
        return limit | ({} if self.shard is None else {"shard": list(self.shard)})

    def select(self, batches: Sequence[Sequence[Item]]) -> list[list[Item]]:
        """The batches to ask. Shares never divide a batch, as another one would round otherwise."""
        chosen = [list(batch) for batch in batches]
        if self.limit is not None:
            names = limited([item for batch in batches for item in batch], self.limit)
            chosen = [[item for item in batch if item.id in names] for batch in chosen]
            chosen = [batch for batch in chosen if batch]
        return chosen if self.shard is None else chosen[self.shard[0] - 1 :: self.shard[1]]


ALL = Selection()


def limited(items: Sequence[Item], limit: int) -> set[str]:
    """Ids of at most ``limit`` items, spread over the whole list, the same for every model.

    Clusters are kept whole, as their items are compared with one another. The list of clusters is
    cut into equal blocks, and the cluster with the smallest hash of each block is taken if it fits.
    Only the first cluster may be cut, if it has more items than ``limit``.
    """

    def digest(name: str) -> bytes:
        return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()

    clusters: dict[str, list[str]] = {}
    for item in items:
        clusters.setdefault(item.cluster or item.id, []).append(item.id)
    names = list(clusters)
    wanted = max(1, min(len(names), limit * len(names) // max(1, len(items))))
    edges = [len(names) * i // wanted for i in range(wanted + 1)]
    chosen: list[str] = []
    for first, end in itertools.pairwise(edges):
        cluster = clusters[min(names[first:end], key=digest)]
        if not chosen or len(chosen) + len(cluster) <= limit:
            chosen += cluster
    return set(chosen[:limit])


FREE_SETTINGS = ("model.path",)
"""Settings that may differ between shares: the hash of the weights, not the path, must agree."""


def rows_of_shards(
    folder: Path, config: Mapping[str, Any], data: str, on_message: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Rows of all finished shares with the same settings and data; others get a message.

    Settings are equal if they differ at most in the share and in ``FREE_SETTINGS``.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.parent.glob(f"{folder.name}.shard-*")):
        if not (path / "result.json").exists():
            continue
        try:
            recorded = RunRecord.read(path).config
            if difference("", recorded, config, ["shard", *FREE_SETTINGS]) is not None:
                on_message(f"{path.name} has other settings and is left out")
            elif recorded_data(path) not in (None, data):
                on_message(f"{path.name} has read other data and is left out")
            else:
                rows += EvalResult.read(path).read_items(path)
        except CheckpointError as error:
            on_message(f"A share is left out: {error}")
    return rows
