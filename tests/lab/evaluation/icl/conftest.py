"""Small copies of the classification data sets."""

import pytest

from icl_files import write_all


@pytest.fixture
def files(tmp_path):
    return write_all(tmp_path / "icl")
