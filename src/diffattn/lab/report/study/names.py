"""Names of what a study of models on text measures, everywhere the same."""

PARTS = {
    "repeated_bigram": "Repeated pair",
    "repeated_token": "Repeated token",
    "first_occurrence": "First occurrence",
}
PART_MEANINGS = {
    "repeated_bigram": "the token and the one before it stood side by side earlier in the window",
    "repeated_token": "the token stood in the window before, but not after this predecessor",
    "first_occurrence": "the token is new in the window",
}
QUARTERS = {f"quarter_{i}": f"Quarter {i}" for i in (1, 2, 3, 4)}
COUNT_MODELS = {"unigram": "Unigram", "bigram": "Bigram", "bigram_copy": "Bigram + copy"}
GREYS = ("#b0b0b0", "#808080", "#222222")
"""One for each count model."""
BEST_COUNT_MODEL = "bigram_copy"


AT = {"best": "chosen", "common": "common"}
"""Whose learning rate runs have, as records name it and as readers do: it was chosen by a rule, and
a better one may exist."""


def rate_name(value: float | None) -> str:
    """A learning rate, as short as it is exact."""
    return "—" if value is None else f"{value:g}".replace("-", "−")
