"""The stages of the whole reproduction, by scale. Needs no torch."""

from collections.abc import Sequence

from diffattn.errors import check_known

ANALYSIS, THROUGHPUT = "analysis", "throughput"
ALL_STUDIES = ("text", "gradient-flow", "recall", "stability", "scaling", "ablations", "rank")
STUDIES_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("smoke", "laptop"), ("recall", "text")),
    **dict.fromkeys(("study", "workstation"), ALL_STUDIES),
}
"""Scale -> its studies, in the order in which they run."""
TITLES = {
    "text": "The comparison on text",
    "gradient-flow": "Gradient flow",
    "recall": "Recall among noise",
    "stability": "Stability at large learning rates",
    "scaling": "Scaling by size and tokens",
    "ablations": "Ablations",
    "rank": "The rank of Shared DIFF",
    ANALYSIS: "Attention, outliers and λ of the models trained on text",
    THROUGHPUT: "Speed of whole models",
}


def stages_of(scale: str, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the stages: studies, and at long scales the analysis of their models and timings."""
    check_known("reproduce", "scale", scale, STUDIES_OF)
    stages = (*STUDIES_OF[scale], *((ANALYSIS, THROUGHPUT) if is_long(scale) else ()))
    for name in only:
        check_known("reproduce", "only", name, stages)
    return tuple(name for name in stages if not only or name in only)


def is_long(scale: str) -> bool:
    """Whether a scale takes hours and runs all studies."""
    return STUDIES_OF[scale] == ALL_STUDIES


def scale_of(study: str, scale: str) -> str:
    """The scale of one study within the whole reproduction at ``scale``."""
    if not is_long(scale):
        return scale
    if study == "scaling":
        return "laptop"
    return scale if study in ("text", "ablations", "rank") else "study"
