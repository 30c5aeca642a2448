"""For all tests of data-prep."""

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Servers of the tests are asked directly."""
    for name in ("no_proxy", "NO_PROXY"):  # requests takes the first that is set
        monkeypatch.setenv(name, "127.0.0.1")
