"""A comparison small enough to be trained by a test, through the recipe that users start from."""

import shutil

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


def run_in_this_process(planned, data, folder, *, workers, on_progress, short):
    """What worker processes do, without the start-up of one per run."""
    folder.mkdir(parents=True, exist_ok=True)
    workers_module.run_here(planned, open_data(data), folder, on_progress=on_progress)


def make_short_pages(patch):
    """Without plotly's 5 MB and the claims in all committed records; tests of pages have them."""
    patch.setattr("plotly.offline.get_plotlyjs", lambda: "/* charts */")
    patch.setattr("diffattn.lab.studies.whole.checkout_root", lambda: None)


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
        patch.setattr(workers_module, "train_runs", run_in_this_process)
        path = diffattn.reproduce("smoke", out=out, settings=settings, on_message=[].append)
    assert path == out / "report.html"
    return out


@pytest.fixture
def copied(study, tmp_path):
    """The study in a folder that a test may spoil."""
    return shutil.copytree(study, tmp_path / "copy")
