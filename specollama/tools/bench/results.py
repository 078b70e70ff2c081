"""The results file of a benchmark: one JSON object with all measurements and the figures computed from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specollama.config.atomic_file import replacement
from specollama.tools.bench.environment import environment, load_average, package_versions
from specollama.tools.bench.prompts import Prompt
from specollama.tools.bench.runner import Measurements
from specollama.tools.bench.summary import ContestantFigures, contestant_figures
from specollama.tools.bench.systems import PLAIN, Contestants

FORMAT = 2
"""Goes up when a key changes its meaning."""


@dataclass(slots=True)
class Results:
    """The results of a run and their file. `options`: of the command, and of every reply."""

    file: Path
    measured: Measurements
    sides: Contestants
    prompts: Sequence[Prompt]
    options: Mapping[str, Any]
    complete: bool = False
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    machine: dict[str, Any] = field(default_factory=environment)

    @property
    def names(self) -> list[str]:
        """Of the models and other engines that took part."""
        return [str(model["name"]) for model in self.sides.models.values()]

    @property
    def figures(self) -> list[ContestantFigures]:
        return [contestant_figures(self.measured, name) for name in self.sides.by_name if name != PLAIN]

    def save(self, figures: Sequence[ContestantFigures] = ()) -> None:
        """Replace the file atomically; without `figures` it has the measurements alone. Raises OSError."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacement(self.file) as scratch:  # prompts and replies are in it: its user alone can read it
            scratch.write_text(json.dumps(self.as_object(figures), ensure_ascii=False, indent=1), encoding="utf-8")

    def save_partial(self, figures: Sequence[ContestantFigures]) -> None:
        """The last `save`; without a single measurement there is nothing to keep. Raises OSError."""
        if self.measured.measurements:
            self.save(figures)
        else:
            self.file.unlink(missing_ok=True)

    def as_object(self, figures: Sequence[ContestantFigures]) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "complete": self.complete,
            "began": self.began.isoformat(timespec="seconds"),
            "saved": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {**self.machine, "load_at_end": load_average()},
            "versions": package_versions(),
            "servers": self.sides.servers,
            "models": self.sides.models,
            "sides": self.sides.as_object(),
            "options": dict(self.options),
            "summary": {each.name: each.summary() for each in figures},
            "results": {each.name: each.as_object() for each in figures},
            "prompts": [asdict(prompt) for prompt in self.prompts],
            "gaps_unknown": self.measured.untold,
            "measurements": [each.as_object() for each in self.measured.measurements],
        }


def new_file(folder: Path) -> Path:
    """A name that no earlier run took: `bench-20260131-142501.json`."""
    stem = f"bench-{datetime.now():%Y%m%d-%H%M%S}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 100))]
    return next(folder / f"{name}.json" for name in names if not (folder / f"{name}.json").exists())
