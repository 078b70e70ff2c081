"""Parse typed input: several lines in quotes, paths of images, and completions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specollama.backends.ollama.schema import LOAD_OPTIONS, SAMPLING_OPTIONS
from specollama.cli.chat.commands import COMMANDS, SETTINGS, CommandFault
from specollama.cli.terminal.attachments import encode_image
from specollama.errors import UsageError

QUOTES = '"""'
_SYSTEM = "/set system "  # the one command that takes several lines
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")

_PATH = re.compile(  # an apostrophe within a word quotes nothing
    r"""(?<!\w)'(?P<single>[^'\n]+)' | (?<!\w)"(?P<double>[^"\n]+)" | (?<!\S)(?P<bare>(?:\\.|[^\s\\])+)""", re.VERBOSE
)
_BEFORE, _AFTER = "([{<`", ".,;:!?)]}>`"  # what may stand around a path in a sentence


def is_unfinished(text: str) -> bool:
    """Whether it begins several lines that aren't ended yet."""
    said = text.strip().removeprefix(_SYSTEM)
    return said.startswith(QUOTES) and (len(said) < 2 * len(QUOTES) or not said.endswith(QUOTES))


def strip_quotes(text: str) -> str:
    """Several lines without the quotes around them, of which those at the end may be missing."""
    text = text.strip()
    if not text.startswith(QUOTES):
        return text
    return text.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def is_command(text: str) -> bool:
    """Whether a line is a command; a path at its beginning may be an image's."""
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    return word.startswith("/") and "/" not in word[1:] and not _image(word)


@dataclass(frozen=True, slots=True)
class TypedMessage:
    """A message as it goes to the model. `files`: the images, as they were named; `images`: the same in base64."""

    text: str
    images: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def extract_images(text: str) -> TypedMessage:
    """The message, its images' paths taken out and read. Raises CommandFault for one that can't be, or is too large."""
    images, files, kept, place = list[str](), list[str](), list[str](), 0
    for begin, end, file in _images(text):
        kept.append(text[place:begin])
        place = end
        images.append(_encoded(file))
        files.append(str(file))
    rest = "".join([*kept, text[place:]])
    return TypedMessage(re.sub(r"(?<=\S) {2,}(?=\S)", " ", rest).strip() if files else text, images, files)


def _encoded(file: Path) -> str:
    try:
        return encode_image(file)
    except UsageError as error:
        raise CommandFault(str(error)) from error


def _images(text: str) -> Iterator[tuple[int, int, Path]]:
    """Where images are named, and which."""
    place = 0
    while found := _PATH.search(text, place):
        place = found.start() + 1  # what isn't an image's name may have one in it
        quoted = found["single"] or found["double"]
        if quoted and (file := _image_file(quoted)):
            place = found.end()
            yield found.start(), place, file
        elif found["bare"] and (named := _image(found["bare"])):
            word, file = named
            begin = text.index(word, found.start())
            place = begin + len(word)
            yield begin, place, file


def _image(word: str) -> tuple[str, Path] | None:
    """The image that a word names, by itself or with a sentence's punctuation around it: the name, and the file."""
    ended = word.rstrip(_AFTER)
    for name in (word, ended, ended.lstrip(_BEFORE)):
        if file := _image_file(name):
            return name, file
    return None


def _image_file(word: str) -> Path | None:
    """The image that a word names, if there is such a file."""
    path = re.sub(r"\\(.)", r"\1", word.removeprefix("file://"))
    if not path.lower().endswith(IMAGES):
        return None
    try:
        file = Path(os.path.expanduser(path))
        return file if file.is_file() else None
    except (OSError, ValueError):  # no name that a file can have
        return None


def completions(before: str, pairs: Sequence[str], conversations: Sequence[str]) -> Iterator[tuple[str, int]]:
    """What could be typed next, and how many characters of what is there it replaces.

    `before`: the text up to the cursor.
    """
    line = before.rpartition("\n")[2]
    if line.startswith("/") and before == line and " " not in line:
        yield from ((f"/{name}", len(line)) for name in COMMANDS if f"/{name}".startswith(line))
    word = line.rpartition(" ")[2]
    if line.startswith("/") and before == line and " " in line:
        found = _arguments(line.split(" ")[:-1], pairs, conversations)
        yield from ((each, len(word)) for each in found if each.startswith(word))
    if word.startswith(("./", "../", "~", "/")) and (word != line or "/" in word[1:]):
        yield from _files(word)


def _arguments(words: Sequence[str], pairs: Sequence[str], conversations: Sequence[str]) -> Sequence[str]:
    command = words[0].removeprefix("/")
    if len(words) == 1:
        of = {"pair": pairs, "load": conversations, "help": tuple(COMMANDS)}
        return of.get(command) or (COMMANDS[command].words if command in COMMANDS else ())
    if command == "set" and len(words) == 2:
        if words[1] == "parameter":
            return sorted(SAMPLING_OPTIONS | LOAD_OPTIONS)
        return SETTINGS[words[1]].words if words[1] in SETTINGS else ()
    return ()


def _files(word: str) -> Iterator[tuple[str, int]]:
    folder, _, begun = word.rpartition("/")
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder) or "/"), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(begun) and (begun or not entry.name.startswith(".")):
            name = entry.name.replace(" ", "\\ ") + ("/" if entry.is_dir() else "")
            yield f"{folder}/{name}", len(word)
