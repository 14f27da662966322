"""A comparison small enough to be trained by a test, through the recipe that users start from."""

import shutil
from functools import partial

import pytest

import diffattn
from diffattn.lab.studies import workers as workers_module
from diffattn.lab.training.prepare import open_data
from small_corpus import corpus

__all__ = ["corpus"]


@pytest.fixture(scope="session")
def settings(corpus):
    """Changes that shrink the smoke scale."""
    return (
        f"data.source={corpus}",
        "data.vocab_size=300",
        "data.validation_fraction=0.2",
        "model.hidden_size=16",
        "model.head_dim=4",
        "train.seq_len=16",
        "train.batch_tokens=32",
        "train.evaluation_tokens=64",
        "train.num_steps=4",
        "train.warmup_steps=1",
        "train.log_every=1",
        "train.evaluate_every=2",
    )


def run_in_this_process(members, data, folder, *, workers, on_progress, short):
    """What worker processes do, without the start-up of one per run."""
    folder.mkdir(parents=True, exist_ok=True)
    workers_module.run_here(members, open_data(data), folder, on_progress=on_progress)


def make_short_pages(patch):
    """Without plotly's 5 MB and the claims in all committed records; tests of pages have them."""
    patch.setattr("plotly.offline.get_plotlyjs", lambda: "/* charts */")
    patch.setattr("diffattn.lab.studies.page.committed_claims", lambda: None)


@pytest.fixture(scope="module", autouse=True)
def _short_pages():
    with pytest.MonkeyPatch.context() as patch:
        make_short_pages(patch)
        yield


@pytest.fixture(scope="session")
def study(settings, tmp_path_factory):
    """A whole smoke study; read-only."""
    out = tmp_path_factory.mktemp("study") / "smoke"
    with pytest.MonkeyPatch.context() as patch:
        make_short_pages(patch)
        patch.setattr(workers_module, "run_members", run_in_this_process)
        path = diffattn.reproduce("smoke", out=out, settings=settings, on_message=[].append)
    assert path == out / "report.html"
    return out


@pytest.fixture
def copied(study, tmp_path):
    """The study in a folder that a test may spoil."""
    return shutil.copytree(study, tmp_path / "copy")


STATISTICS = {"low", "high", "p", "p_holm"}


@pytest.fixture(scope="session")
def assert_same_statistics():
    """Committed results against recomputed ones: returns the number of statistics compared.

    Ends of intervals and p-values may differ by the rounding of the library that computes them,
    at most 1e-10 of a quantile, which the difference of an end from 0 can raise tenfold.
    Everything else is equal. What an optimiser fits is named by ``fitted`` and may differ by
    ``rel``, for it stops where it no longer gains.
    """

    def check(computed, committed, *, fitted=frozenset(), rel=1e-9, key=None):
        assert type(computed) is type(committed)
        if key in STATISTICS | fitted and isinstance(computed, float):
            assert computed == pytest.approx(committed, rel=rel)
            return 1
        again = partial(check, fitted=fitted, rel=rel)
        if isinstance(computed, dict):
            assert computed.keys() == committed.keys()
            return sum(again(value, committed[name], key=name) for name, value in computed.items())
        if isinstance(computed, list):
            assert len(computed) == len(committed)
            return sum(again(a, b) for a, b in zip(computed, committed, strict=True))
        assert computed == committed
        return 0

    return check
