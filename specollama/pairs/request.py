"""The input of a pair: a chat or a completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import Message


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What is to be answered.

    `options` are Ollama's, by its names; those that are set here win over the pair's. `format`: "json" or a JSON
    schema. `think`: whether a thinking model thinks, or how much; None: as it does by itself. `top_logprobs`: how many
    of the most probable tokens a plain reply shows at each place, so far as its server can (a speculated one shows what
    it had to know). `truncate` False: what no longer fits the context is refused, never cut off at the beginning.
    """

    messages: Sequence[Message]
    options: Mapping[str, Any] = field(default_factory=dict)
    format: Any = None
    tools: Sequence[Mapping[str, Any]] = ()
    think: bool | str | None = None
    top_logprobs: int = 0
    truncate: bool = True

    @property
    def raw(self) -> bool:
        """A chat always goes through a template."""
        return False

    @property
    def has_images(self) -> bool:
        return any(message.images for message in self.messages)

    def body(self) -> dict[str, Any]:
        """The fields of a request to /api/chat that are its own."""
        return {
            "messages": [message.body() for message in self.messages],
            **({} if self.format in (None, "") else {"format": self.format}),
            **({"tools": list(self.tools)} if self.tools else {}),
            **({} if self.think is None else {"think": self.think}),
            **({"logprobs": True, "top_logprobs": self.top_logprobs} if self.top_logprobs else {}),
            **({} if self.truncate else {"truncate": False}),
        }


@dataclass(frozen=True, slots=True)
class CompletionInput:
    """A prompt to complete, with the fields of /api/generate in their meaning there.

    `raw`: the prompt goes to the model as it is, without a template.
    """

    prompt: str
    options: Mapping[str, Any] = field(default_factory=dict)
    format: Any = None
    think: bool | str | None = None
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: Sequence[int] = ()
    raw: bool = False
    images: Sequence[str] = ()

    @property
    def has_images(self) -> bool:
        return bool(self.images)

    def body(self) -> dict[str, Any]:
        """The fields of a request to /api/generate that are its own."""
        texts = {"suffix": self.suffix, "system": self.system, "template": self.template}
        return {
            "prompt": self.prompt,
            **{name: text for name, text in texts.items() if text},
            **({} if self.format in (None, "") else {"format": self.format}),
            **({} if self.think is None else {"think": self.think}),
            **({"context": list(self.context)} if self.context else {}),
            **({"raw": True} if self.raw else {}),
            **({"images": list(self.images)} if self.images else {}),
        }


ReplyInput = ChatInput | CompletionInput
