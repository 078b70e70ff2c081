"""The pairs that a first set-up offers, and the configuration that it writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import tomlkit

from specollama.config.settings import PromptLookup
from specollama.tools.doctor.config_file import add_pairs
from specollama.tools.doctor.suggestions import InstalledModel, Suggestion, best_of_each

_LOOKUP = InstalledModel(PromptLookup.LOOKUP.value, "", "", 0, None, ())
_GIGABYTE = 1e9


def rank_choices(models: Sequence[InstalledModel], pairs: Sequence[Suggestion]) -> list[Suggestion]:
    """The best pair of each target, the most promising first; then, by size, the other models with prompt lookup."""
    paired = best_of_each(pairs)
    targets = {(pair.target.url, pair.target.name) for pair in paired}
    alone = [model for model in models if model.completes and (model.url, model.name) not in targets]
    return [*paired, *(Suggestion(model, _LOOKUP, 1.0) for model in sorted(alone, key=lambda model: -model.size))]


def choice_line(choice: Suggestion) -> str:
    """A choice in one line: the models, what may be gained, the bytes of both."""
    size = f"{(choice.target.size + choice.draft.size) / _GIGABYTE:.1f} GB"
    gain = "gains where text comes again" if choice.draft == _LOOKUP else f"{choice.speedup:.1f}x by their sizes"
    return f"{choice.target.name} with {choice.draft.name}: {gain}, {size}"


def with_default(text: str, chosen: Suggestion) -> str:
    """The configuration's text with the pair, unless one of that name is there, and with it as the default."""
    return with_default_name(add_pairs(text, [chosen])[0], chosen.name)


def with_default_name(text: str, name: str) -> str:
    """The configuration's text with `default_pair` set."""
    document = tomlkit.parse(text)
    document["default_pair"] = name
    return tomlkit.dumps(document)
