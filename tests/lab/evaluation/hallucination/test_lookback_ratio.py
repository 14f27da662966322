"""The lookback ratio against a computation from full maps."""

import pytest
import torch

from diffattn.lab.evaluation.hallucination.lookback_ratio import MAPS, lookback_ratios
from language_models import whole_maps

PROMPT, WRITTEN, CONTEXT = list(range(5, 30)), list(range(40, 61)), 21


@torch.no_grad()
def test_ratios_equal_those_of_full_maps(model):
    found = lookback_ratios(model, PROMPT, WRITTEN, CONTEXT)
    assert tuple(found) == MAPS
    for layer, (map_1, acting) in enumerate(whole_maps(model, PROMPT + WRITTEN[:-1])):
        for head in range(len(map_1)):
            rows = {"a1": map_1[head], "difference": acting[head], "absolute": acting[head].abs()}
            for name, row in rows.items():
                steps = range(len(PROMPT) - 1, len(PROMPT) + len(WRITTEN) - 1)
                c = torch.stack([row[t, :CONTEXT].mean() for t in steps])
                n = torch.stack([row[t, CONTEXT : t + 1].mean() for t in steps])
                assert len(c) == len(WRITTEN)
                expected = float((c / (c.abs() + n.abs())).mean())
                if name != "difference":
                    assert expected == pytest.approx(float((c / (c + n)).mean()))
                # Ratios are stored to six digits.
                assert found[name][layer][head] == pytest.approx(expected, abs=6e-7)


def test_the_first_token_alone(model):
    found = lookback_ratios(model, PROMPT, WRITTEN[:1], len(PROMPT) - 1)
    assert all(0 <= x <= 1 for name in ("a1", "absolute") for layer in found[name] for x in layer)
