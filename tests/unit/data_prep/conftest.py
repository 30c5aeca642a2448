"""For all tests of data-prep."""

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Servers of the tests are asked directly."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
