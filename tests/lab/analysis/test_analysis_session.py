"""Several models on the same text: what is recorded, and what is refused."""

import pytest
import torch

from diffattn.errors import CheckpointError, ConfigError
from diffattn.lab.analysis.session import AnalysisSettings, analyze
from diffattn.lab.data.corpora import Document
from diffattn.lab.records.analysis import AnalysisResult
from diffattn.probes.attention_rows import attention_rows
from language_models import save


@pytest.fixture(scope="module")
def folders(build, tmp_path_factory):
    """Saved models by kind."""
    root = tmp_path_factory.mktemp("models")
    return {kind: save(build(kind, max_length=64), root / kind) for kind in ("softmax", "diff_v2")}


def documents(*texts):
    return lambda: [Document(name=f"{i}.txt", text=text) for i, text in enumerate(texts)]


def test_models_side_by_side(folders, build, text, tmp_path):
    seen = []
    settings = AnalysisSettings(tokens=100, window_tokens=40)
    some = documents(text[:60], text)
    result = analyze(
        folders, some, "made up", settings, on_progress=lambda *event: seen.append(event)
    )
    assert [analysis.model["label"] for analysis in result.models] == ["softmax", "diff_v2"]
    softmax, diff = result.models
    lengths = softmax.tokens["lengths"]
    assert softmax.tokens == diff.tokens
    assert max(lengths) == 40
    model = build("diff_v2", max_length=64)
    assert sum(lengths) - len(lengths) * len(model.start()) == 100
    assert seen[: len(lengths) + 1] == [
        ("softmax", i, len(lengths)) for i in range(len(lengths) + 1)
    ]
    assert (softmax.lambdas, diff.lambdas["lambda_init"], diff.lambdas["flags"]) == (None, None, [])
    assert result.text["documents"] == ["0.txt", "1.txt"]
    # A window once more, by whole maps.
    settings = AnalysisSettings(tokens=30, window_tokens=64)
    (alone,) = analyze({"a": folders["diff_v2"]}, documents(text), "made up", settings).models
    window = [*model.start(), *model.encode(text)[:30]]
    for layer, rows in enumerate(attention_rows(model.network, torch.tensor([window]))):
        sink = rows.signed[:, 1:, 0].double().mean(-1).tolist()
        assert alone.attention[layer]["heads"]["sink"] == pytest.approx(sink, abs=1e-6)
        lam = 1 - rows.signed.double().sum(-1)
        assert alone.lambdas["layers"][layer]["lam"] == pytest.approx(float(lam.mean()), abs=1e-5)
    result.write(tmp_path)
    assert AnalysisResult.read(tmp_path) == result


@pytest.mark.scheduled
def test_what_cannot_be_analysed(folders, build_windowed, text, tmp_path):
    one = {"a": folders["softmax"]}
    with pytest.raises(ConfigError, match="two tokens or more"):
        analyze(one, documents(""), "", AnalysisSettings())
    with pytest.raises(ConfigError, match="at most the 64 tokens of a, got 65"):
        analyze(one, documents(text), "", AnalysisSettings(window_tokens=65))
    with pytest.raises(CheckpointError, match="got nothing"):
        analyze({"a": str(tmp_path / "none")}, documents(text), "", AnalysisSettings())
    windowed = save(build_windowed(8), tmp_path / "mistral")
    with pytest.raises(ConfigError, match="'mistral' must attend to all tokens before, got a slid"):
        analyze({"a": windowed}, documents(text), "", AnalysisSettings())
