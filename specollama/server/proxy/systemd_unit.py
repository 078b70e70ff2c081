"""A systemd user unit for `specollama serve` (systemd.service(5), systemd.exec(5))."""

from __future__ import annotations

from collections.abc import Sequence

_UNIT = """\
[Unit]
Description=specollama: speculative decoding in front of Ollama
After=network.target

[Service]
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
# Tokens, as NAME=value, readable by you alone:
EnvironmentFile=-%E/specollama/environment
Restart=on-failure
NoNewPrivileges=true
PrivateTmp=true

[Install]
WantedBy=default.target
"""


def user_unit(command: Sequence[str]) -> str:
    """Return the unit that runs the command. Its first word must be an absolute path."""
    return _UNIT.format(command=" ".join(_quoted(word) for word in command))


def _quoted(word: str) -> str:
    """Return a word in systemd's syntax: `%` and `$` are doubled, quotes and backslashes are escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = escaped and not any(character.isspace() or character in "\"'\\;" for character in escaped)
    return escaped if plain else f'"{escaped}"'
