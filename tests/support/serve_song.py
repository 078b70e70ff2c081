"""Serves the scripted song on a free port: `python -m tests.support.serve_song` prints the URL."""

from __future__ import annotations

import signal

from tests.support.scripted_ollama import song
from tests.support.serving import serving

if __name__ == "__main__":
    with serving(song()) as url:
        print(url, flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
