"""The file of a benchmark's results holds prompts and replies: only its user can read it."""

from __future__ import annotations

import stat
from pathlib import Path

from specollama.tools.bench.results import Results
from specollama.tools.bench.runner import Measurements
from specollama.tools.bench.systems import Contestants


def test_the_results_are_their_users_alone(tmp_path: Path) -> None:
    results = Results(tmp_path / "bench" / "r.json", Measurements(), Contestants({}, {}, {}), [], {})
    for _ in range(2):
        results.save()
        assert stat.S_IMODE(results.file.stat().st_mode) == 0o600
        assert stat.S_IMODE(results.file.parent.stat().st_mode) == 0o700
    assert [path.name for path in results.file.parent.iterdir()] == ["r.json"]
