"""The runs of a practical study: every model on every task, seed by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffattn.lab.catalog.recipes.practical import PRACTICAL
from diffattn.lab.studies.recall.config import RecallStudyConfig
from diffattn.models.config.known_names import check_known


@dataclass(frozen=True, kw_only=True)
class PracticalStudyConfig(RecallStudyConfig):
    """A study of lookup and many-shot classification. All models read the same sequences."""

    kind: str = "practical"

    @property
    def swept(self) -> tuple[str, ...]:
        """All members: each gets all seeds."""
        return self.members

    def keeps_weights(self, run: str) -> bool:
        """None does."""
        return False


def practical_study(
    scale: str, *, seeds: Sequence[int] | None = None, match: str = "params"
) -> PracticalStudyConfig:
    """A practical study of a scale; see :mod:`diffattn.lab.catalog.recipes.practical`.

    Arguments are those of :func:`diffattn.reproduce`.

    Raises:
        ConfigError: An unknown scale, or seeds that are not distinct.
    """
    check_known("reproduce", "scale", scale, PRACTICAL)
    settings = PRACTICAL[scale]()
    if seeds is not None:
        settings["seeds"] = tuple(seeds)
    # Equal steps for all, whether or not they solve a task.
    tasks = (replace(task, stops_when_solved=False) for task in settings.pop("tasks"))
    return PracticalStudyConfig(scale=scale, match=match, tasks=tuple(tasks), **settings)
