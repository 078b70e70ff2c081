"""What specollama keeps on this disk: list it by kind, with its size, and delete a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specollama.backends.llama_cpp.requantize import is_orphan, source_path
from specollama.config import paths
from specollama.errors import RunError, one_line


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of files. `patterns`: glob patterns below the folder."""

    name: str
    holds: str
    folder: Callable[[], Path]
    patterns: tuple[str, ...]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("drafts", "quicker copies of draft models", paths.cache_folder, ("drafts/*",)),
        Kind("embedded", "the target of the embedded pair", paths.cache_folder, ("*.F32.*.gguf", ".*.F32.*.scratch")),
        Kind("vocabularies", "tokenizers of models on servers", paths.cache_folder, ("vocabularies/*/*",)),
        Kind("probes", "measured slots of servers", paths.cache_folder, ("probes/*",)),
        Kind("costs", "measured costs and calibration of pairs", paths.state_folder, ("planner/*",)),
        Kind("trace", "the trace of the last reply of a chat", paths.state_folder, ("last-reply.jsonl",)),
        Kind("trust", "which ./specollama.toml may be used", paths.state_folder, ("trusted.json",)),
        Kind("conversations", "kept conversations", paths.data_folder, ("conversations.sqlite3*",)),
        Kind("typed", "lines typed in chats", paths.data_folder, ("typed",)),
    )
}
"""Everything that specollama writes by itself, by the name that `--delete` takes. The configuration is the user's."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The files of a kind that are there now. `size` in bytes."""

    name: str
    holds: str
    place: Path
    files: tuple[Path, ...]

    @property
    def size(self) -> int:
        return sum(_size(file) for file in self.files)


def stored_data() -> list[Stored]:
    """Every kind, also those of which nothing is there. Raises RunError where a folder can't be read."""
    return [_stored(kind) for kind in KINDS.values()]


def orphaned_copies() -> Stored:
    """Copies of draft models whose model is gone or has changed: nothing will open them again."""
    drafts = _stored(KINDS["drafts"])
    orphans = [file for file in drafts.files if file.suffix == ".gguf" and is_orphan(file)]
    files = tuple(file for copy in orphans for file in (copy, source_path(copy)))
    return Stored("gone", "copies of draft models that are gone or have changed", drafts.place, files)


def delete(files: Sequence[Path]) -> None:
    """Delete these files; one that is gone already is no fault. Raises RunError naming the first that stays."""
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(one_line(f"{file}: can't be deleted: {error.strerror or error}")) from error


def _stored(kind: Kind) -> Stored:
    folder = kind.folder()
    try:
        found = {file for pattern in kind.patterns for file in folder.glob(pattern) if not _is_folder(file)}
    except OSError as error:
        raise RunError(one_line(f"{folder}: can't be read: {error.strerror or error}")) from error
    return Stored(kind.name, kind.holds, _place(folder, kind), tuple(sorted(found)))


def _place(folder: Path, kind: Kind) -> Path:
    """The folder or file of a kind: the fixed beginning of its first pattern."""
    first = kind.patterns[0].partition("/")[0]
    return folder if first.startswith("*") else folder / first.removesuffix("*")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:  # deleted since
        return 0
