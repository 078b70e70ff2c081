"""A file that is there is written over only where that is forced, or wanted by who sits at the terminal."""

from __future__ import annotations

import stat
from pathlib import Path

import pexpect
import pytest

from specollama.config import private_file
from specollama.errors import UsageError
from specollama.pairs.conversation import ChatHistory, ChatTurn
from specollama.pairs.history_store import ConversationStore, SavedConversation
from tests.support.calls import Call, command, environment


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation, `tale`."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ConversationStore().save(
        SavedConversation(ChatHistory(turns=[ChatTurn("user", "Sing."), ChatTurn("assistant", "La.")]), name="tale")
    )


def never(file: Path) -> bool:
    return False


@pytest.mark.parametrize("name", ["tale.md", "tale.json"])
def test_an_export_is_refused_where_a_file_is_unless_it_is_forced(call: Call, name: str) -> None:
    Path(name).write_text("mine")
    shown = call("chats", "export", "tale", "--out", name)
    assert (shown.code, Path(name).read_text()) == (2, "mine")
    assert shown.err == f"error: {name}: exists; name another file, or --force writes over it\n"
    assert call("chats", "export", "tale", "--out", name, "--force").code == 0
    assert "La." in Path(name).read_text()


def test_a_new_file_is_its_owners_alone_and_one_that_is_there_keeps_its_mode(call: Call) -> None:
    Path("old.md").write_text("mine")
    Path("old.md").chmod(0o644)
    for name in ("old.md", "new.md"):
        assert call("chats", "export", "tale", "--out", name, "--force").code == 0
    modes = [stat.S_IMODE(Path(name).stat().st_mode) for name in ("old.md", "new.md")]
    assert modes == [0o644, 0o600]


@pytest.mark.parametrize("answer", ["y", "n", "\x04"])
def test_at_a_terminal_it_is_asked(answer: str, tmp_path: Path) -> None:
    Path("tale.md").write_text("mine")
    first, *rest = command(["chats", "export", "tale", "--out", "tale.md"])
    child = pexpect.spawn(first, rest, env=environment({}), dimensions=(24, 200), timeout=60)
    child.expect_exact("tale.md: exists. Write over it? [y/N]: ")
    child.send(answer + "\n" if answer.isalpha() else answer)
    shown = child.read().decode()
    child.close()
    assert ("La." in Path("tale.md").read_text()) == (answer == "y")
    assert ("name another file" in shown) == (answer != "y")
    assert child.exitstatus == (0 if answer == "y" else 2)


def test_a_link_that_leads_nowhere_is_a_file_that_is_there() -> None:
    Path("link.md").symlink_to("elsewhere.md")
    with pytest.raises(UsageError, match=r"link\.md: exists; name another file, or --force writes over it"):
        private_file.write_new(Path("link.md"), "text", never, force="--force")
    assert not Path("elsewhere.md").exists()


def test_a_file_that_comes_in_between_is_asked_about() -> None:
    """There is no moment between the look and the writing."""
    asked = list[Path]()
    private_file.write_new(Path("a.md"), "first", never, force="--force")
    private_file.write_new(Path("a.md"), "second", lambda file: not asked.append(file), force="--force")
    assert (asked, Path("a.md").read_text()) == ([Path("a.md")], "second")


def test_a_device_is_written_to_without_a_question() -> None:
    private_file.write_new(Path("/dev/null"), "text", never, force="--force")
    with pytest.raises(IsADirectoryError):
        private_file.write_new(Path(), "text", never, force="--force")
