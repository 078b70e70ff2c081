"""The command line called in this process, with nothing set and nothing there."""

from __future__ import annotations

from tests.support.calls import call as call
from tests.support.calls import nothing_set as nothing_set
