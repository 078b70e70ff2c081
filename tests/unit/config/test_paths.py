"""The user's folders on each operating system; the conventions are platformdirs', the choice of folder is ours."""

from __future__ import annotations

import platformdirs
import pytest
from platformdirs.api import PlatformDirsABC
from platformdirs.macos import MacOS
from platformdirs.unix import Unix
from platformdirs.windows import Windows, get_win_folder_from_env_vars

from specollama.config import paths

SUPPORT, LOCAL = "/home/me/Library/Application Support/specollama", "C:/Users/me/AppData/Local/specollama/specollama"
FOLDERS = [
    (Unix, "/home/me/.config/specollama", "/home/me/.cache/specollama", "/home/me/.local/state/specollama"),
    (MacOS, SUPPORT, "/home/me/Library/Caches/specollama", SUPPORT),
    (Windows, LOCAL, f"{LOCAL}/Cache", LOCAL),
]
DATA = {Unix: "/home/me/.local/share/specollama", MacOS: SUPPORT, Windows: LOCAL}


@pytest.mark.parametrize(("system", "config", "cache", "state"), FOLDERS, ids=["linux", "macos", "windows"])
def test_each_operating_system_has_its_own_folders(
    monkeypatch: pytest.MonkeyPatch, system: type[PlatformDirsABC], config: str, cache: str, state: str
) -> None:
    for kind in ("CONFIG", "CACHE", "STATE", "DATA"):
        monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("LOCALAPPDATA", "C:/Users/me/AppData/Local")
    monkeypatch.setattr("platformdirs.windows.get_win_folder", get_win_folder_from_env_vars)
    monkeypatch.setattr(platformdirs, "PlatformDirs", system)
    found = [str(path()) for path in (paths.config_folder, paths.cache_folder, paths.state_folder, paths.data_folder)]
    assert [path.replace("\\", "/") for path in found] == [config, cache, state, DATA[system]]


def test_xdg_variables_move_the_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert str(paths.state_folder()) == "/elsewhere/specollama"
