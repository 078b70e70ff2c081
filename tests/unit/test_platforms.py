"""Code that differs by operating system, as tables. macOS and Windows themselves were never run (docs/install.md)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from filelock import BaseFileLock, UnixFileLock, WindowsFileLock

from specollama.backends.ollama.model_store import store_folders
from specollama.cli.chat.line_reader import without_echo
from specollama.cli.commands.native import stop_signals
from specollama.config import atomic_file
from specollama.errors import UsageError
from specollama.tools.review import run_folder


@pytest.mark.parametrize(
    ("environ", "first"),
    [
        ({"HOME": "/home/me"}, "/home/me/.ollama/models"),
        ({"HOME": "/Users/me"}, "/Users/me/.ollama/models"),
        ({"USERPROFILE": "C:/Users/me"}, "C:/Users/me/.ollama/models"),
        ({"HOME": "/home/me", "OLLAMA_MODELS": "/data/models"}, "/data/models"),
        ({"USERPROFILE": "C:/Users/me", "OLLAMA_MODELS": "D:/models"}, "D:/models"),
    ],
    ids=["linux", "macos", "windows", "moved", "moved on windows"],
)
def test_ollamas_models_are_looked_for_where_each_system_has_them(environ: dict[str, str], first: str) -> None:
    assert store_folders(environ)[0].as_posix() == first


@pytest.mark.parametrize(
    ("platform", "nohup", "names"),
    [
        ("linux", False, ["SIGTERM", "SIGHUP"]),
        ("darwin", False, ["SIGTERM", "SIGHUP"]),
        ("linux", True, ["SIGTERM"]),
        ("win32", False, []),
    ],
)
def test_a_server_that_was_started_is_stopped_by_the_signals_that_the_system_has(
    monkeypatch: pytest.MonkeyPatch, platform: str, nohup: bool, names: list[str]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    try:
        monkeypatch.setattr(sys, "platform", platform)
        assert [number.name for number in stop_signals()] == names
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_without_termios_keeps_its_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "termios", None)  # as on Windows: the import fails
    entered = False
    with without_echo():
        entered = True
    assert entered


@pytest.mark.parametrize(("system", "synced"), [("posix", 1), ("nt", 0)])
def test_a_folder_is_synced_where_the_system_can(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, synced: int
) -> None:
    calls = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", calls.append)
        patch.setattr(os, "name", system)
        atomic_file.sync(tmp_path)
    assert len(calls) == synced


def test_a_run_is_held_by_one_process_at_a_time_and_let_go_of_afterwards(tmp_path: Path) -> None:
    refused = pytest.raises(UsageError, match="another specollama is at work")
    with run_folder.lock_folder(tmp_path), refused, run_folder.lock_folder(tmp_path):
        pass
    with run_folder.lock_folder(tmp_path):
        pass


def test_the_lock_is_the_operating_systems_own_not_a_file_that_may_be_left_behind() -> None:
    kinds: dict[bool, type[BaseFileLock]] = {True: WindowsFileLock, False: UnixFileLock}
    assert issubclass(run_folder.FileLock, kinds[os.name == "nt"])
