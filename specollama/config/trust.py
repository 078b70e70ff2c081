"""Decides whether a working directory's `specollama.toml` may be used: only if the user allowed it, as with direnv.

The folder may come from somebody else, and the file decides where prompts and tokens go. The user's answer is kept by
the file's path and its SHA-256, so that a changed file is asked about again. A file named by the user needs no answer.
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
"""Asks the user a question, and returns whether the answer is yes."""


def configuration(
    explicit: Path | None, environ: Mapping[str, str], cwd: Path, confirm: Confirm | None = None
) -> Config:
    """Find and return the configuration. `confirm`: asks the user; None: nobody can be asked.

    Raises ConfigError if the file isn't trusted, and as `find_config` and `parse_config` do.
    """
    path = find_config(explicit, environ, cwd)
    if path is None:
        return Config()
    named = explicit is not None or bool(environ.get("SPECOLLAMA_CONFIG")) or path != cwd / LOCAL_NAME
    return _checked(path, named=named, confirm=confirm)


def reread(config: Config) -> Config:
    """Read the file again. Raises ConfigError, also if a trusted file has changed."""
    return Config() if config.file is None else _checked(config.file, named=config.named, confirm=None)


def trust(path: Path) -> None:
    """Allow the file as it is now. Raises ConfigError if it can't be read, OSError if the answer can't be kept."""
    _answer(path, read_config(path), allowed=True)


def revoke(path: Path) -> bool:
    """Forget the answer about a file, which may be gone, and return whether there was one. Raises OSError."""
    answers = _answers()
    known = answers.pop(_key(path), None) is not None
    if known:
        _keep(answers)
    return known


def trust_own_change(path: Path, before: str, after: str) -> None:
    """Trust what this program wrote (`after`), if the text `before` was trusted or empty. Raises OSError."""
    if not before or _allowed(path, before.encode()):
        _answer(path, after.encode(), allowed=True)


def _checked(path: Path, *, named: bool, confirm: Confirm | None) -> Config:
    """Read once, then check and parse the same bytes, because the file may change in between."""
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
    """Return the answer about these bytes at this path; None if there is none."""
    answer = _answers().get(_key(path))
    if not isinstance(answer, dict) or answer.get("sha256") != hashlib.sha256(raw).hexdigest():
        return None
    return answer.get("trusted") is True


def _answer(path: Path, raw: bytes, *, allowed: bool) -> None:
    answer = {"sha256": hashlib.sha256(raw).hexdigest(), "trusted": allowed}
    _keep({**_answers(), _key(path): answer})


def _key(path: Path) -> str:
    """Return the path of the file, with its folder resolved but not the file: a link has an answer of its own."""
    return str(path.parent.resolve() / path.name)


def _file() -> Path:
    return paths.state_folder() / "trusted.json"


def _answers() -> dict[str, Any]:
    """Return the answers by path; none if the file is missing or damaged."""
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
