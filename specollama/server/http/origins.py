"""Which web pages may call: those of this machine, of desktop applications, and what OLLAMA_ORIGINS adds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")
_APPLICATIONS = ("app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*")


@dataclass(frozen=True, slots=True)
class Origins:
    """`patterns`: origins, in which `*` stands for any text; `*` alone lets every page in."""

    patterns: tuple[str, ...]

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Origins:
        """Ollama's own ones, and those of OLLAMA_ORIGINS, separated by commas."""
        given = environ.get("OLLAMA_ORIGINS", "").strip().strip("\"'")
        added = [origin.strip() for origin in given.split(",") if origin.strip()]
        own = [f"{scheme}://{host}{port}" for host in _HOSTS for scheme in ("http", "https") for port in ("", ":*")]
        return cls((*added, *own, *_APPLICATIONS))

    def allows(self, origin: str, host: str) -> bool:
        """Whether a page of that origin may call; one that this server itself gave may. `host`: the Host header."""
        if origin in (f"http://{host}", f"https://{host}"):
            return True
        return any(_fits(pattern, origin) for pattern in self.patterns)


def _fits(pattern: str, origin: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), origin, re.IGNORECASE) is not None
