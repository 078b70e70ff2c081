"""Ollama's JSON, as it travels: one model per body, each field documented once, units beside it.

Shared by the backends, which read it, and by the servers, which write it. Requests keep only what the client
set (`model_fields_set`), so that a body can be passed on as it came; unknown keys are ignored, as Ollama does.
Responses are dumped with `body()`, which leaves out what Ollama leaves out.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specollama.spec_decode.types import SamplingOptions

TOP_LOGPROBS_LIMIT = 20
"""The largest `top_logprobs` that Ollama accepts."""

LOAD_OPTIONS = frozenset({"num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict"})
"""Options that make Ollama load the model anew when they differ from those it was loaded with."""

PASSED_ON_OPTIONS = LOAD_OPTIONS | {"num_keep"}
"""Options that go into every request as they are: they don't choose between tokens."""

SAMPLING_OPTIONS = frozenset(each.name for each in fields(SamplingOptions)) | {"num_keep"}
"""Options that never load the model anew."""


Count = Annotated[int, Field(ge=0)]
"""A number of tokens, bytes or nanoseconds."""


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)

    def body(self) -> dict[str, Any]:
        """The JSON object, without the fields that are unset (Go's omitempty)."""
        return self.model_dump(mode="json", exclude_none=True)


class TopLogprob(Wire):
    token: str
    """Text of the token; "" when it has none of its own (control token, end, fragment of a character)."""
    logprob: float
    """Natural logarithm of the softmax of the raw logits."""
    bytes: list[int] | None = None
    """UTF-8 of `token`: not the token's own bytes, where it is a fragment."""


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob] | None = None
    """The most probable tokens at this place, most probable first; the chosen one may be missing."""


class GenerateRequest(Wire):
    model: str = ""
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[int] | None = None
    raw: bool = False
    images: list[str] | None = None
    """Base64."""
    stream: bool | None = None
    """None: true."""
    format: Any = None
    """"json", or a JSON schema."""
    keep_alive: float | str | None = None
    """Number: seconds; text: a Go duration. Negative: forever."""
    options: dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    """None: true."""
    shift: bool | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    """0 to 20."""
    debug_render_only: bool = Field(default=False, alias="_debug_render_only")

    model_config = ConfigDict(extra="ignore", populate_by_name=True, protected_namespaces=())


class Message(Wire):
    role: str
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(Wire):
    model: str = ""
    messages: list[Message] = []
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    format: Any = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = Field(default=False, alias="_debug_render_only")

    model_config = ConfigDict(extra="ignore", populate_by_name=True, protected_namespaces=())


class DebugInfo(Wire):
    rendered_template: str = ""
    image_count: int | None = None


class Reply(Wire):
    """What /api/generate and /api/chat have in common. Durations in nanoseconds, counts in tokens."""

    model: str = ""
    created_at: str = ""
    """RFC 3339, UTC, nanoseconds."""
    done: bool = False
    done_reason: str | None = None
    """"stop" (end of sequence or stop string), "length", "load", "unload"."""
    total_duration: Count | None = None
    load_duration: Count | None = None
    prompt_eval_count: Count | None = None
    """All tokens of the prompt, the begin marker and the cached ones included."""
    prompt_eval_duration: Count | None = None
    """Of the part that was not cached."""
    eval_count: Count | None = None
    """Sampled tokens, the end marker and hidden ones included."""
    eval_duration: Count | None = None
    logprobs: list[Logprob] | None = None
    debug_info: DebugInfo | None = Field(default=None, alias="_debug_info")
    error: str | None = None

    model_config = ConfigDict(extra="ignore", populate_by_name=True, protected_namespaces=())

    def body(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


class GenerateReply(Reply):
    response: str = ""
    thinking: str | None = None
    context: list[int] | None = None


class ChatReply(Reply):
    message: Message = Message(role="assistant")


class ModelDetails(Wire):
    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] | None = None
    parameter_size: str = ""
    quantization_level: str = ""


class ShowRequest(Wire):
    model: str = ""
    verbose: bool = False


class ShowReply(Wire):
    license: str | None = None
    modelfile: str = ""
    parameters: str | None = None
    """Modelfile PARAMETERs, one a line: name, spaces, value."""
    template: str = ""
    system: str | None = None
    details: ModelDetails = ModelDetails()
    model_info: dict[str, Any] = {}
    """GGUF metadata; arrays are null unless the request was verbose."""
    capabilities: list[str] = []
    modified_at: str = ""
    remote_host: str | None = None
    remote_model: str | None = None


class ListedModel(Wire):
    name: str
    model: str = ""
    modified_at: str = ""
    size: Count = 0
    """Bytes."""
    digest: str = ""
    """Hexadecimal SHA-256, no prefix."""
    details: ModelDetails = ModelDetails()
    capabilities: list[str] | None = None
    remote_model: str | None = None
    remote_host: str | None = None


class TagsReply(Wire):
    models: list[ListedModel] = []


class RunningModel(Wire):
    name: str
    model: str = ""
    size: Count = 0
    """Bytes."""
    digest: str = ""
    details: ModelDetails = ModelDetails()
    expires_at: str = ""
    size_vram: Count = 0
    """Bytes."""
    context_length: Count = 0
    """Tokens a slot."""


class PsReply(Wire):
    models: list[RunningModel] = []


class VersionReply(Wire):
    version: str = ""


def has_text(chunk: ChatReply | GenerateReply) -> bool:
    text = chunk.response if isinstance(chunk, GenerateReply) else chunk.message.content
    return bool(text)
