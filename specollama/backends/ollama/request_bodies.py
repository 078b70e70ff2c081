"""Bodies of the requests to Ollama during a reply; only prompt, length and seed differ between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specollama.backends.ollama.schema import TOP_LOGPROBS_LIMIT
from specollama.spec_decode.types import SamplingOptions


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """The bodies of all requests of one reply to one model.

    `passed_on`: options sent in every request, load-time options among them; if they changed, Ollama would reload the
    model. A `keep_alive` of 0 isn't sent, since it would unload the model after each request: see `unload`.
    """

    model: str
    options: SamplingOptions
    passed_on: Mapping[str, Any] = field(default_factory=dict)
    keep_alive: float | str | None = None

    def raw(self, prompt: str, *, num_predict: int | None, seed: int | None) -> dict[str, Any]:
        """The body of a raw request. The client matches stop strings: a server would swallow the beginning of one."""
        options: dict[str, Any] = {
            **self.options.distribution,
            "num_predict": -1 if num_predict is None else num_predict,
            "stop": [],
            **({} if seed is None else {"seed": seed}),
            **self.passed_on,
        }
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "raw": True,
            "think": False,
            "truncate": False,
            "logprobs": True,
            "top_logprobs": TOP_LOGPROBS_LIMIT,
            "options": options,
        }
        return body | self.keep_alive_field

    def load_only(self) -> dict[str, Any]:
        """The body of a request that loads the model and generates nothing."""
        return {"model": self.model, "prompt": "", "options": dict(self.passed_on), **self.keep_alive_field}

    @property
    def unloads(self) -> bool:
        """Whether `keep_alive` asks for the model to be unloaded after the reply."""
        return re.fullmatch(r"0+(\.0*)?[a-zµ]*", str(self.keep_alive)) is not None

    def unload(self) -> dict[str, Any]:
        """The body of a request that unloads the model."""
        return {"model": self.model, "prompt": "", "keep_alive": 0}

    @property
    def keep_alive_field(self) -> dict[str, Any]:
        return {} if self.keep_alive is None or self.unloads else {"keep_alive": self.keep_alive}
