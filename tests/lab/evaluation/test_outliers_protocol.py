"""Outliers as a protocol: items put together are one scan, and the claims read its headlines."""

import json

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.outliers import LARGEST, Outliers, scan_window
from diffattn.lab.evaluation.protocol import parts
from diffattn.lab.report.claims.tables import CLAIMS
from diffattn.probes.outliers import HIDDEN, LOGITS, WITH, OutlierScan, outlier_summary, pooled
from evaluation_folders import evaluated


def test_items_together_are_one_scan(model, corpus, tmp_path):
    """Items of two windows, put together, against one scan of all windows."""
    settings = {"texts": corpus, "window_tokens": 24, "num_windows": 5, "windows_per_document": 2}
    result, rows = evaluated(model, Outliers(**settings, windows_per_item=2), tmp_path / "out")
    assert (result.num_items, result.num_failed) == (3, 0)
    protocol, scan = Outliers(**settings), OutlierScan()
    windows = [ids for (item,) in protocol.batches(model) for ids in item.payload[1]]
    for number, ids in enumerate(windows):
        assert len(ids) == 24
        assert ids[0] == model.bos
        scan_window(scan, model, ids, number)
    decode = model.tokenizer.decode
    expected = outlier_summary(pooled(scan), scan.scales[0], lambda token: decode([token]))
    found = result.tables["outliers"]
    for name, of_name in expected.items():
        for which, row in of_name.items():  # sums of powers are added in another order
            kurtosis = found[name][which].pop("kurtosis")
            assert kurtosis == pytest.approx(row.pop("kurtosis"), rel=1e-9)
    assert found == json.loads(json.dumps(expected))
    headlines = {metric.name: metric.value for metric in result.headline()}
    assert headlines == {
        LARGEST["logits"]: expected[LOGITS][WITH]["top"]["1"],
        LARGEST["hidden"]: expected[HIDDEN][WITH]["top"]["1"],
    }
    assert max(row["scores"][LARGEST["hidden"]] for row in rows) == headlines[LARGEST["hidden"]]
    layers = result.tables["layers"]
    assert max(row[HIDDEN][WITH] for row in layers) == headlines[LARGEST["hidden"]]


def test_the_claims_read_the_headlines():
    (preset,) = parts(["table5"])
    assert isinstance(preset.protocol, Outliers)
    by_id = {claim.id: claim for claim in CLAIMS}
    assert by_id["outliers"].effect.startswith(f"DIFF V1's {LARGEST['logits']}")
    assert by_id["outliers-hidden"].effect.startswith(f"DIFF V1's {LARGEST['hidden']}")


@pytest.mark.scheduled
def test_a_model_with_a_window_is_refused(build_windowed, corpus):
    with pytest.raises(ConfigError, match="'mistral' must attend to all tokens before"):
        Outliers(texts=corpus, window_tokens=9).batches(build_windowed(8))
