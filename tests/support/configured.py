"""Configuration files of the tests' own."""

from __future__ import annotations

import json
from pathlib import Path


def written(folder: Path, url: str, *, serve: str = "", pair: str = "", more: str = "", idle: float = 60) -> Path:
    """A configuration: one server, one pair, `duo`."""
    file = folder / "specollama.toml"
    file.write_text(
        f"""
[endpoints.server]
url = {json.dumps(url)}
idle_timeout = {idle}
[serve]
endpoint = "server"
{serve}
[pairs.duo]
target = {{ model = "target", endpoint = "server" }}
draft = {{ model = "draft", endpoint = "server" }}
route = "lanes"
lookahead = 4
{pair}
{more}
""",
        encoding="utf-8",
    )
    return file
