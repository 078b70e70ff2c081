"""What a server answers is bounded, and lines cost what their bytes do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import httpx
import pytest

from specollama.backends.http import (
    UnusableAnswer,
    is_remote,
    map_httpx_errors,
    open_client,
    raw_pieces,
    read_json,
    read_whole,
    split_lines,
)
from specollama.errors import BrokenReply, ConfigError, Unreachable


async def stream(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def answer(*pieces: bytes, **headers: str) -> httpx.Response:
    request = httpx.Request("GET", "http://x")
    return httpx.Response(200, headers=headers, content=stream(pieces), request=request)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntw", b"o\n", b"\nthree"], [b"one", b"two", b"", b"three"]),
        ([b"a", b"b", b"c\n"], [b"abc"]),
        ([], []),
        ([b"\n\n"], [b"", b""]),
    ],
)
async def test_lines_are_cut_at_newlines_wherever_the_pieces_are(pieces: list[bytes], lines: list[bytes]) -> None:
    assert [line async for line in split_lines(stream(pieces))] == lines


async def test_what_comes_after_the_last_newline_is_left_out_where_lines_have_to_end() -> None:
    assert [line async for line in split_lines(stream([b"one\ntw", b"o\nun"]), ended=True)] == [b"one", b"two"]


async def test_a_line_without_end_is_given_up() -> None:
    with pytest.raises(UnusableAnswer, match="a line of more than 0 MiB"):
        assert [line async for line in split_lines(stream([b"ok\n", *[b"x" * 10] * 100]), 100)]


async def test_a_whole_answer_is_bounded() -> None:
    assert (await read_whole(answer(b"x" * 60, b"y" * 40), 100)).content == b"x" * 60 + b"y" * 40
    with pytest.raises(UnusableAnswer, match="larger than 0 MiB"):
        await read_whole(answer(b"x" * 60, b"y" * 41), 100)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP, identity"])
async def test_a_compressed_answer_is_not_unpacked(encoding: str) -> None:
    with pytest.raises(UnusableAnswer, match="compressed"):
        assert [piece async for piece in raw_pieces(answer(b"x", **{"content-encoding": encoding}))]


@pytest.mark.parametrize("content", [b"NaN", b'{"a": Infinity}', b"[" * 100_000, b"{", b""])
def test_json_that_is_none_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever its words
        read_json(content)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (UnusableAnswer("the answer is compressed"), BrokenReply, r"^http://x: the answer is compressed$"),
        (TimeoutError(), Unreachable, "gave no byte in time"),
    ],
)
def test_what_was_given_up_is_told_in_one_line(error: Exception, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words), map_httpx_errors("http://x", "", ""):
        raise error


@pytest.mark.parametrize(
    ("host", "remote"),
    [
        ("127.0.0.1", False),
        ("127.1", False),
        ("127.8.9.10", False),
        ("0x7f.1", False),
        ("2130706433", False),
        ("[::1]", False),
        ("[::ffff:127.0.0.1]", False),
        ("[::ffff:10.0.0.1]", True),
        ("LOCALHOST", False),
        ("localhost.", False),
        ("ollama.localhost", False),
        ("localhost.example", True),
        ("10.0.0.1", True),
        ("10.1", True),
        ("tower", True),
        ("cafe", True),
    ],
)
def test_this_machine_is_known_by_all_its_spellings(host: str, remote: bool) -> None:
    assert is_remote(f"http://{host}:11434") is remote


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("socks5://127.0.0.1:1080", r"^http://tower: the proxy in ALL_PROXY is a SOCKS proxy.*pip install socksio"),
        ("odd://127.0.0.1:1080", r"^http://tower: the proxy in ALL_PROXY can't be used"),
    ],
)
def test_a_proxy_that_can_not_be_used_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, proxy: str, words: str
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigError, match=words) as fault:
        open_client("http://tower")
    assert "\n" not in str(fault.value)
    assert open_client("http://127.1")
