"""Which `specollama.toml` of a working directory may be used: as direnv does, one that somebody has allowed.

Such a file comes with a folder that may be anybody's, and it decides where prompts and tokens go. The answer is kept
by the file's path and its SHA-256: a changed file is asked about again. A file that is named needs no answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specollama.config import paths
from specollama.config.atomic_file import replacement
from specollama.config.loading import LOCAL_NAME, Config, find_config, parse_config, read_config
from specollama.errors import ConfigError, one_line

Confirm = Callable[[str], bool]
"""Asks the user a question; whether the answer is yes."""


def configuration(
    explicit: Path | None, environ: Mapping[str, str], cwd: Path, confirm: Confirm | None = None
) -> Config:
    """The configuration that a call works with. `confirm` None: nobody can be asked.

    Raises ConfigError for a file that isn't trusted, and as `find_config` and `parse_config` do.
    """
    path = find_config(explicit, environ, cwd)
    if path is None:
        return Config()
    named = explicit is not None or bool(environ.get("SPECOLLAMA_CONFIG")) or path != cwd / LOCAL_NAME
    return _checked(path, named=named, confirm=confirm)


def reread(config: Config) -> Config:
    """The same file as it is now. Raises ConfigError, also where it was trusted and has changed."""
    return Config() if config.file is None else _checked(config.file, named=config.named, confirm=None)


def trust(path: Path) -> None:
    """Raises ConfigError where the file can't be read, OSError where the answer can't be kept."""
    _answer(path, read_config(path), allowed=True)


def revoke(path: Path) -> bool:
    """Forget what was answered about a file, which may be gone; whether there was an answer. Raises OSError."""
    answers = _answers()
    known = answers.pop(_key(path), None) is not None
    if known:
        _keep(answers)
    return known


def follow(path: Path, before: str, after: str) -> None:
    """What this program wrote over a trusted text, or where there was none, is trusted, too. Raises OSError."""
    if not before or _allowed(path, before.encode()):
        _answer(path, after.encode(), allowed=True)


def _checked(path: Path, *, named: bool, confirm: Confirm | None) -> Config:
    """The bytes that are parsed are those that were looked up: the file may change in between."""
    raw = read_config(path)
    if not named:
        _require(path, raw, confirm)
    return parse_config(path, raw, named=named)


def _require(path: Path, raw: bytes, confirm: Confirm | None) -> None:
    allowed = _allowed(path, raw)
    if allowed is None and confirm is not None:
        known = " has changed, and" if _key(path) in _answers() else ""
        allowed = confirm(one_line(f"{path}{known} decides where prompts and tokens go. Trust it?"))
        _answer(path, raw, allowed=allowed)
    if not allowed:
        words = "isn't trusted, and it decides where prompts and tokens go: read it, then run `specollama trust`"
        raise ConfigError(one_line(f"{path}: {words}, or name it with --config"))


def _allowed(path: Path, raw: bytes) -> bool | None:
    """What was answered about these bytes at this place; None: they weren't asked about."""
    answer = _answers().get(_key(path))
    if not isinstance(answer, dict) or answer.get("sha256") != hashlib.sha256(raw).hexdigest():
        return None
    return answer.get("trusted") is True


def _answer(path: Path, raw: bytes, *, allowed: bool) -> None:
    answer = {"sha256": hashlib.sha256(raw).hexdigest(), "trusted": allowed}
    _keep({**_answers(), _key(path): answer})


def _key(path: Path) -> str:
    """The place that the file is found at: a link is one place, what it leads to another."""
    return str(path.parent.resolve() / path.name)


def _file() -> Path:
    return paths.state_folder() / "trusted.json"


def _answers() -> dict[str, Any]:
    """By place; a file that is missing or spoilt holds none."""
    try:
        answers = json.loads(_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return answers if isinstance(answers, dict) else {}


def _keep(answers: Mapping[str, Any]) -> None:
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacement(file) as scratch:
        scratch.write_text(json.dumps(answers, indent=1), encoding="utf-8")
