"""What the plain words of a comparison say."""

import pytest

from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.studies.text.scales import comparison
from diffattn.lab.studies.text.summary import statement


def test_statement_names_heads_tokens_and_seeds_that_are_few():
    words = statement(comparison("laptop", kind="ablations", seeds=[0]))
    assert "4 DIFF heads (the papers use 8 or more) and 1,024,000 training tokens per run" in words
    assert "one seed" in words
    assert words.endswith("One learning rate is used for all types, tuned for none.")


def test_statement_in_range():
    words = statement(comparison("study", settings=["train.num_steps=12000000"]))
    assert words.startswith("Heads and tokens lie in the range the papers test.")


CHOSEN = "Each type's learning rate is the one that the matched comparison of this scale chose."
FACTORS = "the common one times the factor that the matched comparison of this scale chose for its"


@pytest.mark.parametrize("kind", ["ablations", "rank"])
@pytest.mark.parametrize("setting", ["model.hidden_size=512", "train.learning_rate=0.0005"])
def test_rates_chosen_for_other_models_are_not_said_to_be_chosen_for_these(kind, setting):
    plain = statement(comparison("study", kind=kind, settings=TIED_START))
    assert plain.endswith(CHOSEN)
    changed = comparison("study", kind=kind, settings=[*TIED_START, setting])
    assert changed.rate_factors == {"diff": 0.5, "shared_diff": 0.5}
    assert f"{FACTORS} own models." in statement(changed)
    assert CHOSEN not in statement(changed)


def test_rates_chosen_for_other_sizes_of_twins_are_not_said_to_be_chosen_for_these():
    assert FACTORS in statement(comparison("study", kind="ablations", match="heads"))
