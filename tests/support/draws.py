"""How many examples a property test draws. The suite's draws are the same in every run; a nightly run draws others.

`SPECOLLAMA_TEST_EXAMPLES=20 scripts/test` draws twenty times as many, anew in each run.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("SPECOLLAMA_TEST_EXAMPLES", "1"))


def examples(count: int, *unchecked: HealthCheck) -> settings:
    """So many examples in the suite. `unchecked`: health checks that the test's strategies would not pass."""
    return settings(max_examples=count * _TIMES, suppress_health_check=unchecked)


settings.register_profile("suite", deadline=None, max_examples=50 * _TIMES, derandomize=_TIMES == 1)
settings.load_profile("suite")
