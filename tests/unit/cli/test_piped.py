"""What is piped in: text as people write it, and one line about what isn't text or no image."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from specollama.cli.terminal.attachments import load_attachments
from specollama.cli.terminal.standard_streams import read_piped_text
from specollama.config.private_file import write_private
from specollama.errors import UsageError


def pipe(monkeypatch: pytest.MonkeyPatch, content: bytes, encoding: str = "utf-8") -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding=encoding, newline="\n"))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Grün 雪\n".encode(), "Grün 雪\n"),
        (b"\xef\xbb\xbfHi.\n", "Hi.\n"),
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"a\rb", "a\rb"),
        (b"", ""),
    ],
)
def test_a_piped_text_is_read_as_it_was_meant(monkeypatch: pytest.MonkeyPatch, content: bytes, text: str) -> None:
    pipe(monkeypatch, content)
    assert read_piped_text() == text


def test_a_terminals_own_encoding_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "Grün".encode("latin-1"), "latin-1")
    assert read_piped_text() == "Grün"


def test_what_is_not_utf_8_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "Sag Grün".encode("latin-1"))
    with pytest.raises(UsageError) as fault:
        read_piped_text()
    assert str(fault.value) == (
        "standard input isn't UTF-8 (byte 0xfc at 6): convert it, as `iconv -f latin1 -t utf-8` does"
    )


IMAGES = [b"\x89PNG\r\n\x1a\n...", b"\xff\xd8\xff\xe0...", b"GIF89a", b"BM....", b"RIFF\x00\x00\x00\x00WEBPVP8 "]


@pytest.mark.parametrize("content", IMAGES)
def test_an_image_is_taken_whatever_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "picture").write_bytes(content)
    assert len(load_attachments([tmp_path / "picture"])) == 1


@pytest.mark.parametrize("content", [b"Dear diary", b"", b"%PDF-1.7", b"RIFF\x00\x00\x00\x00WAVEfmt ", b"\x00" * 64])
def test_what_is_no_image_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(UsageError) as fault:
        load_attachments([file])
    assert str(fault.value) == f"--image {file}: isn't an image (PNG, JPEG, WebP, GIF or BMP)"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is needed")
def test_a_full_disk_is_told_with_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device") as fault:
        write_private(Path("/dev/full"), "text")
    assert fault.value.filename == "/dev/full"
