"""Recording a reply, and the file that traces are added to."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

from specollama.config import paths
from specollama.config.settings import PairSettings
from specollama.errors import RunError, SpecollamaError, one_line
from specollama.pairs.pair import Pair
from specollama.pairs.report import stats_object
from specollama.pairs.request import ChatInput
from specollama.pairs.trace.records import (
    Alternative,
    DraftedToken,
    EndLine,
    Line,
    ReplyLine,
    RoundLine,
    StatusLine,
    TokenLine,
)
from specollama.spec_decode.events import Done, Event, Status, Text
from specollama.spec_decode.types import RoundRecord

TOP_TOKENS = 5
"""Most probable tokens that a traced reply asks for, where its target's server writes it alone."""


class TraceRecorder:
    """The lines of one reply. Give it to `Pair.with_observer` as `round`, and every event to `event`.

    `texts`: whether they carry texts. `clock`: nanoseconds.
    """

    def __init__(
        self,
        settings: PairSettings,
        *,
        texts: bool,
        label: str = "",
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._texts, self._clock, self._began = texts, clock, clock()
        self._rounds = 0
        self.ended = False
        head = ReplyLine(
            id=secrets.token_hex(4),
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            label=label,
            pair=settings.name,
            target=str(settings.target),
            drafts=[str(draft) for draft in settings.drafts],
            texts=texts,
        )
        self.lines: list[Line] = [head]

    def round(self, done: RoundRecord) -> None:
        self._rounds += done.result.drafted > 0
        sure = [*done.draft.confidence, *[None] * len(done.draft.tokens)]
        drafted = [
            DraftedToken(text=self._text(token.text), confidence=round_figures(confidence))
            for token, confidence in zip(done.draft.tokens, sure, strict=False)
        ]
        verdict = done.result
        self.lines.append(
            RoundLine(
                at=self._at,
                round=self._rounds if verdict.drafted else 0,
                source=done.draft.source,
                drafting=round(done.draft_seconds * 1e9),
                scoring=round(done.score_seconds * 1e9),
                drafted=drafted,
                sent=verdict.drafted,
                tested=verdict.tested,
                accepted=verdict.accepted,
                emitted=len(verdict.emitted),
            )
        )

    def event(self, event: Event) -> None:
        if isinstance(event, Status):
            self.lines.append(StatusLine(at=self._at, speculation=event.on, detail=event.detail))
        elif isinstance(event, Text):
            self.lines.append(self._token(event))
        elif isinstance(event, Done):
            self._end(EndLine(at=self._at, reason=event.reason.value, stats=stats_object(event.stats)))

    def fail(self, fault: str = "") -> None:
        """No more events will come, if they didn't all come."""
        if not self.ended:
            self._end(EndLine(at=self._at, fault=fault))

    def _end(self, line: EndLine) -> None:
        self.ended = True
        self.lines.append(line)

    @property
    def _at(self) -> int:
        return self._clock() - self._began

    def _text(self, text: str) -> str | None:
        return text if self._texts else None

    def _token(self, event: Text) -> TokenLine:
        top = [Alternative(text=self._text(token.text), logprob=round_figures(token.logprob)) for token in event.top]
        return TokenLine(
            at=self._at,
            round=event.round,
            origin=event.origin.value,
            length=len(event.text),
            text=self._text(event.text),
            thinking=event.thinking,
            confidence=round_figures(event.confidence),
            logprob=round_figures(event.logprob),
            top=top,
        )


def round_figures(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


class TraceFile:
    """Where traces are added, a whole reply at a time: those of replies that run at once don't mix.

    Raises RunError, when it is made, where the file can't be written: not after an hour. When that fails later, no
    reply is lost for it: nothing more is written, `fault` says why, and `told` is called with it.
    """

    def __init__(self, file: Path, *, texts: bool, told: Callable[[str], None] = lambda fault: None) -> None:
        self.file, self.texts, self.fault = file, texts, ""
        self._told = told
        if fault := self._append(""):
            raise RunError(fault)

    def recorder(self, settings: PairSettings, label: str = "") -> TraceRecorder:
        return TraceRecorder(settings, texts=self.texts, label=label)

    def add(self, recorder: TraceRecorder) -> None:
        recorder.fail()
        if not self.fault and (fault := self._append(trace_text(recorder))):
            self.fault = f"{fault}; no more is traced"
            self._told(self.fault)

    def _append(self, text: str) -> str:
        """Why it couldn't be done; "" when it was."""
        try:
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "a", encoding="utf-8") as out:
                out.write("\n" + text if text and _torn(self.file) else text)
        except OSError as error:
            return one_line(f"--trace {self.file}: {error.strerror or error}")
        return ""


def _torn(file: Path) -> bool:
    """Whether its last line has no end, since who wrote it was killed; of a pipe, or what can't be read, unknown."""
    try:
        if not file.is_file():
            return False
        with file.open("rb") as written_before:
            size = written_before.seek(0, os.SEEK_END)
            written_before.seek(max(0, size - 1))
            return written_before.read(1) not in (b"", b"\n")
    except OSError:
        return False


class ReplySource(Protocol):
    """What gives replies: a pair, or a side of a benchmark."""

    def reply(self, conversation: ChatInput, /) -> AsyncGenerator[Event, None]: ...


async def traced_reply(
    source: ReplySource, conversation: ChatInput, settings: PairSettings, trace: TraceFile, label: str = ""
) -> AsyncGenerator[Event, None]:
    """The events of a reply, which is added to the trace however it ends. Raises what the reply raises."""
    recorder = trace.recorder(settings, label)
    watched = source.with_observer(recorder.round) if isinstance(source, Pair) else source
    try:
        async with aclosing(watched.reply(conversation)) as events:
            async for event in events:
                recorder.event(event)
                yield event
    except SpecollamaError as error:
        recorder.fail(str(error))
        raise
    finally:
        trace.add(recorder)


def trace_text(recorder: TraceRecorder) -> str:
    """Its lines as they stand in a file."""
    return "".join(line.model_dump_json(exclude_none=True) + "\n" for line in recorder.lines)


def last_trace_file() -> Path:
    """Where a chat leaves the trace of its last reply for `specollama trace --last`."""
    return paths.state_folder() / "last-reply.jsonl"
