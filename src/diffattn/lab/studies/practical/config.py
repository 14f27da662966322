"""The runs of a practical study: every model on every task, seed by seed."""

from dataclasses import dataclass
from functools import partial

from diffattn.lab.catalog.recipes.practical import PRACTICAL
from diffattn.lab.studies.recall.config import RecallStudyConfig


@dataclass(frozen=True, kw_only=True)
class PracticalStudyConfig(RecallStudyConfig):
    """A study of lookup and many-shot classification. All models read the same sequences."""

    kind: str = "practical"

    @property
    def swept(self) -> tuple[str, ...]:
        """All members: each gets its own learning rate and all seeds."""
        return self.members


practical_study = partial(PracticalStudyConfig.planned, PRACTICAL)
"""Makes the study of a scale; see :mod:`diffattn.lab.catalog.recipes.practical`."""
