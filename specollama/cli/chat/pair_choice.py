"""Choose the pair of a chat, and explain what to do when no pair is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specollama.cli.terminal import options
from specollama.config.loading import Config
from specollama.config.settings import EMBEDDED, Overrides, PairSettings
from specollama.pairs.history_store import SavedConversation
from specollama.server.embedded.pair import can_open_embedded


@dataclass(frozen=True, slots=True)
class PairChoice:
    """A pair as it is given: by name, or by target and draft; none of them: the default pair."""

    name: str | None = None
    target: str | None = None
    draft: str | None = None

    def as_object(self) -> dict[str, str]:
        given = {"pair": self.name, "target": self.target, "draft": self.draft}
        return {key: text for key, text in given.items() if text is not None}

    @classmethod
    def of(cls, kept: Mapping[str, str]) -> PairChoice:
        return cls(kept.get("pair"), kept.get("target"), kept.get("draft"))

    @property
    def given(self) -> bool:
        return self.name is not None or self.target is not None

    def settings(self, config: Config, flags: Overrides) -> PairSettings:
        """Raises UsageError where it can't be run, MissingPackage for the embedded one without its packages."""
        return options.pair_settings(config, self.name, self.target, self.draft, flags)


def merge_flags(kept: SavedConversation, choice: PairChoice, given: Overrides) -> Overrides:
    """The settings saved with the conversation, overridden by the flags given now.

    `choice`: the pair of the continued conversation; another pair than the saved one keeps its own route and lookahead.
    """
    held: Any = kept.options if choice == PairChoice.of(kept.pair) else portable_flags(kept.options)
    flags: Any = {**held, **{name: value for name, value in given.items() if value is not None}}
    flags["options"] = {**(held.get("options") or {}), **(given.get("options") or {})}
    found: Overrides = flags
    return found


def portable_flags(flags: Mapping[str, Any]) -> Overrides:
    """The settings without those that are specific to one pair."""
    rest: Any = {name: value for name, value in flags.items() if name not in ("route", "lookahead")}
    found: Overrides = rest
    return found


def pair_names(config: Config) -> list[str]:
    """Those that `/pair` takes."""
    return list(dict.fromkeys([*config.table.pairs, EMBEDDED]))


def no_pair_text() -> str:
    """What to do where no pair is given and none is configured; the last line is about the embedded one."""
    if can_open_embedded():
        last = "without it:  specollama chat embedded    (a pair of small models, in process; 540 MB in your cache)"
    else:
        last = "without it:  pip install 'specollama[local,embedded]', then specollama chat embedded"
    return (
        "no pair is given, and no configuration file defines one\n"
        "with Ollama: specollama init    (finds the installed models that make a pair)\n" + last
    )
