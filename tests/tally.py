"""Counts of a trial: how many cases were tried, and which failed.

With ``DIFFATTN_TRIALS`` naming a file, the counts are added to it: ``docs/records/trials.json`` is
written that way.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

SHOWN = 20
"""Failures that a message lists."""


@dataclass
class Tally:
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def check(self, case: str, fault: str | None) -> None:
        """Count one case; ``fault`` says what went wrong, ``None`` that nothing did."""
        self.tried += 1
        if fault is not None:
            self.failures.append(f"{case}: {fault}")


@contextlib.contextmanager
def trial(kind: str, *, minimum: int = 1) -> Iterator[Tally]:
    """Try many cases and fail at the end, with all failures, if any failed.

    The kind of failure, in words, is its name in the record. Fewer cases than ``minimum`` mean that
    the generator has lost some.
    """
    tally = Tally()
    yield tally
    if path := os.environ.get("DIFFATTN_TRIALS"):
        _record(Path(path), kind, tally)
    shown = "\n".join(tally.failures[:SHOWN])
    assert not tally.failures, f"{len(tally.failures)} of {tally.tried} cases failed:\n{shown}"
    assert tally.tried >= minimum, f"{tally.tried} cases of {kind}, {minimum} are wanted"


def sample(small: bool) -> str:
    """The end of a kind's name where a few of its cases stand for all: its record is its own."""
    return ", a sample" if small else ""


def _record(path: Path, kind: str, tally: Tally) -> None:
    """Merge under a lock: tests run side by side."""
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = json.loads(path.read_text()) if path.exists() else {}
        record[kind] = {
            "tried": tally.tried,
            "failed": len(tally.failures),
            "date": datetime.now(UTC).date().isoformat(),
            "torch": version("torch"),
        }
        path.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
