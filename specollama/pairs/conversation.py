"""History of a chat: questions, answers, and undo. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import Message

TITLE = 60  # characters


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A question or an answer. An answer has thinking, counters, and a flag if the user stopped it early."""

    role: str
    content: str
    images: tuple[str, ...] = ()  # base64
    thinking: str = ""
    stats: Mapping[str, Any] | None = None
    stopped: bool = False

    def message(self) -> Message:
        """The message to send: without the thinking, which is not part of later prompts."""
        return Message(role=self.role, content=self.content, images=list(self.images) or None)


@dataclass(slots=True)
class ChatHistory:
    """Questions and answers in turn. `images` go with the next question."""

    system: str | None = None
    turns: list[ChatTurn] = field(default_factory=list)
    images: list[str] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        before = [Message(role="system", content=self.system)] if self.system else []
        return [*before, *(turn.message() for turn in self.turns)]

    @property
    def title(self) -> str:
        """The first question, shortened to TITLE characters."""
        words = " ".join(self.turns[0].content.split()) if self.turns else ""
        return words if len(words) <= TITLE else words[: TITLE - 3].rstrip() + "..."

    @property
    def answer(self) -> ChatTurn | None:
        """The last answer, or None."""
        return next((turn for turn in reversed(self.turns) if turn.role == "assistant"), None)

    def add_question(self, content: str, images: Sequence[str] = ()) -> None:
        self.turns.append(ChatTurn("user", content, (*self.images, *images)))
        self.images = []

    def add_answer(self, answer: ChatTurn) -> bool:
        """Add a full or partial answer. If it is empty, remove its question and return False."""
        if answer.content:
            self.turns.append(answer)
            return True
        self.images = list(self.turns.pop().images)
        return False

    def undo(self) -> ChatTurn | None:
        """Remove the last question and its answer. Returns the question, or None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn.role == "user":
                return turn
        return None
