"""Files that a user names and that aren't what they should be: one line, at once, and no traceback."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from specollama.backends.llama_cpp.gguf_metadata import read_header, refuse_unreadable
from specollama.config.loading import read_config
from specollama.config.plain_file import open_plain
from specollama.errors import SpecollamaError

ARRAY, STRING, UINT8, UINT32 = 9, 8, 0, 4


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words)) + words.encode()


def header(*fields: bytes, tensors: int = 0, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields) if count is None else count) + b"".join(fields)


def array(kind: int, length: int, content: bytes = b"") -> bytes:
    return text("key") + struct.pack("<IIQ", ARRAY, kind, length) + content


def nested(depth: int) -> bytes:
    return text("key") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", UINT8, 0)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(header(nested(100_000)), id="nested"),
        pytest.param(header(nested(1000)), id="nested less"),
        pytest.param(header(array(UINT32, 2**62)), id="long array"),
        pytest.param(header(array(UINT32, 2**63 - 1)), id="longest array"),
        pytest.param(header(array(STRING, 2**62, text("a"))), id="many texts"),
        pytest.param(header(array(UINT8, 2**25, b"x" * 100)), id="short file"),
        pytest.param(header(array(77, 1)), id="unknown kind"),
        pytest.param(header(struct.pack("<Q", 2**63) + b"a"), id="long key"),
        pytest.param(header(text("key") + struct.pack("<I", 99)), id="unknown type"),
        pytest.param(header(struct.pack("<Q", 2) + b"\xff\xfe"), id="no UTF-8"),
        pytest.param(header(count=2**62), id="many fields"),
        pytest.param(header(tensors=2**62), id="many tensors"),
        pytest.param(header(text("t") + struct.pack("<I", 2**32 - 1), tensors=1, count=0), id="many dimensions"),
        pytest.param(b"GGUF", id="magic alone"),
        pytest.param(b"GGML" + b"x" * 100, id="another format"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_damaged_model_file_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(SpecollamaError, match=r"model\.gguf is (a damaged|not a) GGUF file") as fault:
        read_header(file)
    assert "\n" not in str(fault.value)


def test_arrays_in_arrays_are_read_as_far_as_anybody_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(nested(3)))
    assert read_header(file).fields == {"key": [[[[]]]]}


READERS: dict[str, Callable[[Path], object]] = {
    "model": read_header,
    "model to open": refuse_unreadable,
    "configuration": read_config,
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("reader", READERS)
def test_a_fifo_is_told_and_not_waited_for(tmp_path: Path, reader: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(SpecollamaError, match=r"fifo.*it isn't a plain file"):
        READERS[reader](fifo)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no devices here")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_told(reader: str, device: str) -> None:
    with pytest.raises(SpecollamaError, match=f"{device}: "):
        READERS[reader](Path(device))


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_is_told(tmp_path: Path, reader: str) -> None:
    with pytest.raises(SpecollamaError, match=r"[Ii]s a directory"):
        READERS[reader](tmp_path)


def test_a_plain_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    with open_plain(tmp_path / "link") as file:
        assert file.read() == b"text"
