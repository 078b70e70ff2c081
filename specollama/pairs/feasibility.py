"""Decides what can be speculated without loss, and gives the reason where it can't. Pure: no requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.slot_probe import ROWS, SlotProbe
from specollama.config.settings import PairSettings
from specollama.pairs.assumptions import ASSUMED_ACCEPTANCE, prefill_is_too_long
from specollama.pairs.request import ChatInput, CompletionInput, ReplyInput
from specollama.pairs.thinking import CLOSING_TAG, OPENING_TAG
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.spec_decode.sampler_support import resolve_sampling, sampler_obstacle
from specollama.spec_decode.types import Route, SamplingOptions

BUSY = "the models in process are at work on another reply"
_BEGIN_MARKERS = ("<s>", "<bos>", "<BOS_TOKEN>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>")


def merged_options(pair: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Ollama's options as they are sent: the request's over the pair's. A null leaves an option unset, as in Ollama.

    `pair`: the options of the configuration and the command line.
    """
    return {**pair, **{name: value for name, value in request.items() if value is not None}}


@dataclass(frozen=True)
class ReplyContext:
    """The options of one reply, all layers merged. Every reason to run plain rests on what is in effect.

    `target` None: no Ollama describes the model, so that neither a Modelfile nor a version has a say.
    """

    settings: PairSettings
    request: ReplyInput
    target: ModelInfo | None = None

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options to send with the request; the target's server adds the Modelfile's itself."""
        return merged_options(self.settings.options, self.request.options)

    @cached_property
    def in_effect(self) -> dict[str, Any]:
        """The options in effect at the target's server, load-time ones included; unset ones are left out."""
        return merged_options(self._modelfile, self.options)

    @cached_property
    def sampling(self) -> SamplingOptions:
        """The sampling options that the target's server applies."""
        defaults = self.target.defaults if self.target else SamplingOptions()
        return resolve_sampling(self.options, self._modelfile, defaults)

    def body(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The request to the target's server. `options`: those to send; None: all."""
        settings = self.settings
        keep_alive = {} if settings.keep_alive is None else {"keep_alive": settings.keep_alive}
        sent = dict(self.options if options is None else options)
        return {"model": settings.target.model, **self.request.body(), "options": sent, **keep_alive}

    @property
    def wants_nothing(self) -> bool:
        """Whether num_predict is 0: /api/generate takes that as no limit, /api/chat stops at the first token."""
        return self.sampling.num_predict == 0

    @property
    def _modelfile(self) -> Mapping[str, Any]:
        return self.target.parameters if self.target else {}


def why_plain(context: ReplyContext, target: ModelInfo) -> str | None:
    """The reason not to speculate this reply; None if it can be speculated."""
    return (
        why_drafting_is_off(context.settings)
        or request_needs_ollama_endpoint(context.request)
        or ("num_predict is 0" if context.wants_nothing else None)
        or _raw_obstacle(context.request, target)
        or model_obstacle(target, context.in_effect)
    )


def near_tie_text(quantisation: str) -> str:
    """How far apart the target's two best tokens may be for the size of a batch to decide between them; "" if unknown.

    `quantisation`: by llama.cpp's names. Gaps in log-probability, as measured with Qwen2.5-Coder 1.5B on CPUs: what
    another batch moves them by is at most 0.087 at BF16, 0.23 in 95 of 100 places and at most 0.38 at Q4_K_M.
    """
    name = quantisation.upper()
    if name in ("F32", "F16", "BF16"):
        return f"near-ties: gaps below 0.08 ({name})"
    if not (bits := re.search(r"Q(\d)|FP(\d)", name)):
        return ""
    few = int(bits[1] or bits[2]) <= 4
    return f"near-ties: gaps below {'about 0.2, at most 0.38' if few else '0.08 to 0.38'} ({name})"


def why_drafting_is_off(settings: PairSettings) -> str | None:
    """The user's own choice not to draft, as a reason; None if there is none."""
    if settings.route is Route.PLAIN:
        return "route plain was asked for"
    return "lookahead is 0" if settings.lookahead == 0 else None


def request_needs_ollama_endpoint(request: ReplyInput) -> str | None:
    """What only the target's own endpoint can do."""
    if isinstance(request, ChatInput) and request.tools:
        return "tools"
    if request.format not in (None, ""):
        return "format"
    return "images" if request.has_images else None


def request_needs_ollama(context: ReplyContext) -> str | None:
    """The part of a request that only an Ollama can answer: no other engine, and no file opened in process."""
    request = context.request
    if obstacle := request_needs_ollama_endpoint(request):
        return obstacle
    if context.wants_nothing:
        return "num_predict 0"
    if request.think is not None:
        return "think"
    if isinstance(request, CompletionInput):
        parts = {"suffix": request.suffix, "template": request.template, "context": request.context}
        return next((name for name, part in parts.items() if part), None)
    return None


def _raw_obstacle(request: ReplyInput, target: ModelInfo) -> str | None:
    """A raw prompt of a thinking model: whether its thinking is split off depends on the server's version."""
    return f"a raw prompt for {target.name}, which is a thinking model" if request.raw and target.can_think else None


def model_obstacle(target: ModelInfo, in_effect: Mapping[str, Any]) -> str | None:
    """Why no request to a model can be speculated from outside; None when one can.

    `in_effect`: the options that hold at its server.
    """
    if target.is_remote:
        return f"{target.name} is a cloud model"
    if target.show.details.format == "safetensors":
        return f"{target.name} runs on the MLX engine"
    if target.speculates_natively(in_effect):
        return f"{target.name} is speculated by its own server"
    if not target.renders_prompts:
        return "the target's server can't render a chat without answering it (Ollama before 0.11.5)"
    if target.can_think and OPENING_TAG not in target.show.template:
        return f"{target.name} doesn't mark its thinking with {OPENING_TAG}"
    return None


def why_not_split(target: ModelInfo, vocabulary: LlamaTokenizer | None) -> str | None:
    """Why a thinking model's raw reply can't be split into thinking and answer; None when it can."""
    if not target.can_think:
        return None
    if vocabulary is None:
        return f"{target.name} is a thinking model, and its vocabulary isn't known"
    shown = "".join(vocabulary.display_text(token) for token in vocabulary.encode(OPENING_TAG + CLOSING_TAG))
    return None if OPENING_TAG + CLOSING_TAG in shown else f"{target.name} marks its thinking with control tokens"


def why_not_rejection(
    options: SamplingOptions, target: ModelInfo, draft: ModelInfo | None, tokenizers: TokenizerMatch
) -> str | None:
    """Why rejection sampling wouldn't be lossless with a target on an Ollama server; None if it would be.

    With a seed the reply must not depend on what was drafted, which exact match alone gives.
    """
    if draft is None:
        return "prompt lookup draws from nothing that could be compared"
    if options.seed is not None:
        return "a seed asks for a reply that doesn't depend on the draft"
    if options.penalised:
        return "penalties change what log-probabilities don't show"
    if options.not_rebuilt:
        return f"{options.not_rebuilt[0]} changes what log-probabilities don't show"
    if not target.has_known_sampler:
        return "the target's sampler doesn't work in llama.cpp's order"
    if not draft.has_known_sampler:
        return "the draft's sampler doesn't work in llama.cpp's order, and what it drew from isn't known"
    if tokenizers.target is None:
        return tokenizers.why_not_exact
    return None if tokenizers.same else f"draft and target have different tokenizers ({tokenizers.difference})"


def why_not_in_process(context: ReplyContext, target: ModelInfo) -> str | None:
    """Why the reply of a target on an Ollama server can't be computed in process; None if it can."""
    if not context.sampling.greedy and not target.has_known_sampler:
        return "the target's sampler doesn't work in llama.cpp's order"
    obstacle = sampler_obstacle(context.sampling)
    return f"local: {obstacle}" if obstacle else None


def why_context_is_full(prompt_tokens: int, context_length: int | None) -> str | None:
    """Why a prompt leaves no room for a draft; None if it does, or if the context's length (tokens) isn't known."""
    if context_length is None or prompt_tokens + 2 <= context_length:
        return None
    return f"the prompt of {prompt_tokens} tokens fills the context of {context_length}"


def may_double_bos(prompt: str, target: ModelInfo) -> bool:
    """Whether the server may add a second BOS token. Heuristic, used only without the target's tokenizer."""
    adds = target.show.model_info.get("tokenizer.ggml.add_bos_token")
    return adds is not False and prompt.startswith(_BEGIN_MARKERS)


def why_no_rows(*, speculates: bool, has_logprobs: bool, resident: bool, drafts: bool) -> str | None:
    """Why a server can't verify drafts by requests for rows; None if it can.

    `speculates`: it drafts by itself; `resident`: its memory holds the target and, if it `drafts`, the draft model.
    """
    if speculates:
        return "the server drafts by itself, and tells nothing of those tokens"
    if not has_logprobs:
        return "the server gives no log-probabilities"
    if resident:
        return None
    both = "draft and target evict each other: the server's memory doesn't hold both"
    return both if drafts else "the target doesn't stay in the server's memory"


def why_not_lanes(probe: SlotProbe, prompt_tokens: int, lanes: int) -> str | None:
    """Why the route lanes would be slower than plain on these servers; None when it should gain.

    `prompt_tokens`: how much each of the `lanes` but the first has to read before it helps.
    """
    if probe.holes:
        return "tokens come without log-probabilities: the server speculates by itself, or is Ollama before 0.12.11"
    if obstacle := why_no_rows(speculates=False, has_logprobs=True, resident=probe.resident, drafts=bool(probe.draft)):
        return obstacle
    if probe.speedup(ASSUMED_ACCEPTANCE) <= 1:
        cause = "the target works on one request at a time" if probe.slots < 2 else "lanes don't pay here"
        doubt = f" ({probe.doubt})" if probe.doubt else ""
        return f"{cause}: {ROWS} rows{' and their draft' * bool(probe.draft)} cost {_steps(probe)}{doubt}"
    reading = probe.reading * prompt_tokens * (lanes - 1)
    if prefill_is_too_long(reading, probe.step):
        return f"{lanes} lanes would read the prompt of {prompt_tokens} tokens for {reading:.1f} s first"
    return None


def _steps(probe: SlotProbe) -> str:
    if probe.step <= 0:
        return "an unknown number of target steps"
    return f"{(probe.rows + probe.draft) / probe.step:.1f} target steps"
