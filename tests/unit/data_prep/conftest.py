"""Makes data-prep's package importable, as it is for prepare.py, which lies beside it."""

import sys

import pytest
from unit.data_prep.support import DATA_PREP

sys.path.insert(0, str(DATA_PREP))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Servers of the tests are asked directly."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
