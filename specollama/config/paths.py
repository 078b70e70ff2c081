"""The user's folders that specollama reads and writes, by the conventions of each operating system.

Linux has the XDG base directories (`XDG_CONFIG_HOME` and its like), macOS `~/Library`, Windows `%LOCALAPPDATA%`.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

_APP = "specollama"


def config_folder() -> Path:
    """The folder of `config.toml`, which the user writes."""
    return platformdirs.user_config_path(_APP)


def cache_folder() -> Path:
    """The folder of what can be made again: vocabularies, probes of servers, requantized models."""
    return platformdirs.user_cache_path(_APP)


def state_folder() -> Path:
    """The folder of what was measured or answered: timings, trusted configurations, the last trace."""
    return platformdirs.user_state_path(_APP)


def data_folder() -> Path:
    """The folder of the user's conversations and typed lines."""
    return platformdirs.user_data_path(_APP)
