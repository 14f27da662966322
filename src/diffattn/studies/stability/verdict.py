"""Whether a stability study is one of attention, in a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.report.page.wording import listing, type_name


def verdict(attending: Mapping[str, Sequence[float]] | None) -> dict[str, Any]:
    """What the comparison with the model without attention says.

    Args:
        attending: Model to the rates at which its loss is shown to be below that of the model
            without attention; ``None`` if that was not run.

    Returns:
        ``informative`` and ``sentence``.
    """
    if attending is None:
        return {
            "informative": False,
            "sentence": "No model without attention was run, so nothing shows that these models "
            "use their context.",
        }
    used = {name: rates for name, rates in attending.items() if rates}
    if not used:
        return {
            "informative": False,
            "sentence": "Uninformative: at no learning rate is a model shown to end below the one "
            "without attention (paired 95 % intervals). What differs here between the models is "
            "not what they do with their context.",
        }
    does = listing(
        f"{type_name(name)} (rates {listing(f'{rate:g}' for rate in rates)})"
        for name, rates in used.items()
    )
    never = [type_name(name) for name in attending if name not in used]
    rest = f" Not at any rate: {listing(never)}." if never else ""
    return {
        "informative": True,
        "sentence": f"Shown to end below the model without attention (paired 95 % intervals): "
        f"{does}.{rest} Means over rates are over those at which both models do.",
    }
