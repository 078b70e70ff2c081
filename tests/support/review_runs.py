"""Runs whose replies were written by hand, where no model is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from specollama.tools.review.log_entries import ItemAnswered, PairCall, Piece, RunOpened, text_digest
from specollama.tools.review.run_folder import ReviewRun, open_run


@contextmanager
def synced(*folders: Path) -> Iterator[list[str]]:
    """What is put on the disk, in its order: a file's name and its bytes as they are by then, or a folder's name."""
    on_disk, real = list[str](), os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        found = os.fstat(descriptor)
        places = [*folders, *(file for folder in folders for file in folder.iterdir())]
        [place] = [each for each in places if os.path.samestat(each.stat(), found)]
        on_disk.append(place.name if place.is_dir() else f"{place.name}: {place.read_bytes().decode()}")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        yield on_disk


def first(ids: Sequence[str], quorum: int = 1) -> RunOpened:
    return RunOpened(
        version="0",
        call=PairCall(),
        settings={},
        prompts="p.jsonl",
        prompts_sha256="",
        items=tuple(ids),
        quorum=quorum,
        seed=1,
    )


def answered(id: str, text: str, attempt: int = 1) -> ItemAnswered:
    return ItemAnswered(
        id=id,
        attempt=attempt,
        messages=[{"role": "user", "content": f"Say {id}."}],
        options={},
        metadata={"to": f"{id}@example.org"},
        seed=7,
        text=text,
        thinking="",
        done_reason="stop",
        pieces=(Piece(text=text, origin="accepted", logprob=-0.1),) if text else (),
        stats={"route": "lanes", "eval_count": 1},
        target="target",
        target_digest="",
        prompt_digest="",
        digest=text_digest(text),
    )


@contextmanager
def run_of(folder: Path, quorum: int = 1, **texts: str) -> Iterator[ReviewRun]:
    """An open run whose items have these replies; None of a text: it has none."""
    with open_run(folder, "machine") as run:
        run.append("machine", first(list(texts), quorum))
        for id, text in texts.items():
            run.append("machine", answered(id, text))
        yield run
