"""The command line called in this process, with nothing set and nothing there."""

from __future__ import annotations

import pytest

from tests.support.calls import call as call
from tests.support.calls import nothing_set as nothing_set
from tests.support.calls import pair_flags


@pytest.fixture
def pair(embedded_url: str) -> list[str]:
    """The flags for the embedded pair at temperature 0, on a route that is cheap on a CPU."""
    return pair_flags(embedded_url)
