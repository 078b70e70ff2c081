"""Whether two models fit each other: tokens, templates, the delimiters of a chat, thinking."""

from __future__ import annotations

from dataclasses import replace

from specollama.backends.llama_cpp.tokenizer import LlamaTokenizer
from specollama.backends.ollama.model_info import ModelInfo
from specollama.backends.ollama.tokenizer import load_tokenizer
from specollama.errors import EndpointError
from specollama.pairs.feasibility import why_not_split
from specollama.pairs.pair import Pair
from specollama.pairs.tokenizers import TokenizerMatch
from specollama.tools.doctor.findings import Misfit, PairFindings
from specollama.tools.doctor.pair_status import tokenizers_text

_HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


async def with_compatibility(found: PairFindings, pair: Pair, target: ModelInfo, draft: ModelInfo) -> PairFindings:
    """The findings, with how the models fit each other added. Rendering a chat loads the models."""
    tokenizers = await pair.tokenizers(target, draft)
    split = why_not_split(target, tokenizers.target)
    ours, theirs = await _rendered(target), await _rendered(draft)
    return replace(
        found,
        tokenizers=(Misfit if tokenizers.difference else str)(tokenizers_text(tokenizers)),
        templates=_compared(ours, theirs),
        delimiters=await _delimiters(ours, tokenizers, draft),
        thinking=split or ("marks its thinking" if target.can_think else "doesn't think"),
        faults=(split,) if split else (),
    )


async def _rendered(model: ModelInfo) -> str | None:
    """A chat rendered by the model's own template; None where its server can't render."""
    try:
        return await model.server.render({"model": model.name, **_HELLO})
    except EndpointError:
        return None


def _compared(ours: str | None, theirs: str | None) -> str:
    if ours is None or theirs is None:
        return "not known: a server doesn't render chats"
    return "same" if ours.strip() == theirs.strip() else "different: the draft is shown the target's"


async def _delimiters(rendered: str | None, tokenizers: TokenizerMatch, draft: ModelInfo) -> str:
    """Whether the control tokens around the turns of the target's chat are ones for the draft, too."""
    if rendered is None or tokenizers.target is None:
        return "not known"
    if tokenizers.same:
        return "fit"
    vocabulary = await load_tokenizer(draft)
    if not isinstance(vocabulary, LlamaTokenizer):
        return "not known"
    try:
        return unknown_markers(tokenizers.target.control_tokens_in(rendered), vocabulary)
    finally:
        vocabulary.close()


def unknown_markers(markers: tuple[str, ...], draft: LlamaTokenizer) -> str:
    """The target's control tokens that the draft tokenizes as ordinary text."""
    unknown = [marker for marker in markers if draft.control_tokens_in(marker) != (marker,)]
    return Misfit(f"not ones of the draft's: {', '.join(unknown)}") if unknown else "fit"
