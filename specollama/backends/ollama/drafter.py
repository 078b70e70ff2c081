"""Drafter that runs a draft model on an Ollama server."""

from __future__ import annotations

from dataclasses import replace

from specollama.backends.ollama.client import OllamaServer
from specollama.backends.ollama.request_bodies import RequestTemplate
from specollama.backends.ollama.schema import TOP_LOGPROBS_LIMIT, Logprob
from specollama.backends.ollama.target import REPLACEMENT, ReplyObserver, top_tokens, unnoted
from specollama.spec_decode.acceptance import position_seed, renormalize_visible
from specollama.spec_decode.interfaces import Drafter
from specollama.spec_decode.retokenization import Tokenizer, retokenize_draft
from specollama.spec_decode.sampler_support import restrict_to_shown, support
from specollama.spec_decode.types import AcceptanceMethod, Distribution, Draft, Token, VerifyResult


class OllamaDrafter:
    """A draft model on an Ollama server: N tokens in one request, with the distributions they were sampled from.

    Under REJECTION it samples as the target does, from few enough tokens that q is always known. Under any other rule
    it proposes its most probable tokens. `vocabulary` is the target's tokenizer, given if the draft model has the same
    one; without it q is unknown. `row_tokens`: the num_predict with which the server returns one token.
    """

    def __init__(
        self,
        server: OllamaServer,
        requests: RequestTemplate,
        *,
        rule: AcceptanceMethod,
        seed: int,
        vocabulary: Tokenizer | None = None,
        row_tokens: int = 1,
        note: ReplyObserver = unnoted,
    ) -> None:
        sampled = rule is AcceptanceMethod.REJECTION
        options = (
            restrict_to_shown(requests.options, TOP_LOGPROBS_LIMIT)
            if sampled
            else replace(requests.options, temperature=0)
        )
        self._server = server
        self._requests = replace(requests, options=options)
        self._seed = seed
        self._vocabulary = vocabulary if sampled else None
        self._lost = row_tokens - 1  # tokens that the server samples but doesn't return
        self._note = note
        self._asked = 0

    async def propose(self, text: str, count: int) -> Draft:
        self._asked += 1
        seed = position_seed(self._seed, self._asked)
        reply = await self._server.generate(self._requests.raw(text, num_predict=count + self._lost, seed=seed))
        self._note(reply)
        if not reply.logprobs:
            return Draft((Token(reply.response),)) if reply.response else Draft()
        tokens: list[Token] = []
        q: list[Distribution | None] = []
        for entry in reply.logprobs[:count]:
            known, distribution = self._drawn(entry)
            if not known:
                break
            tokens.append(Token(entry.token, entry.logprob))
            q.append(distribution)
        return Draft(tuple(tokens), tuple(q))

    def learn(self, verdict: VerifyResult) -> None:
        """The model learns nothing from one round to the next."""

    def _drawn(self, entry: Logprob) -> tuple[bool, Distribution | None]:
        """Whether the entry is one visible token, and the distribution that it was sampled from.

        A character of several tokens comes as one entry, with the row of its last fragment: the draw at this
        place was hidden, and nothing is drafted there.
        """
        if REPLACEMENT in entry.token or not entry.token:
            return False, None
        top = top_tokens(entry)
        probabilities = support(top, self._requests.options)
        if self._vocabulary is None or probabilities is None:
            return True, None
        distribution = renormalize_visible(top, probabilities, self._vocabulary.unambiguous_texts)
        if distribution is None:
            return True, None
        listed = any(token.text == entry.token and token.logprob == entry.logprob for token in top)
        return listed and entry.token in distribution, distribution


class RetokenizingDrafter:
    """Wraps a drafter with another tokenizer, and retokenizes its drafts into target tokens."""

    def __init__(self, drafter: Drafter, vocabulary: Tokenizer) -> None:
        self._drafter = drafter
        self._vocabulary = vocabulary

    async def propose(self, text: str, count: int) -> Draft:
        draft = await self._drafter.propose(text, count + 1)  # the last token is dropped
        if not draft.tokens:
            return draft
        texts = retokenize_draft(text, draft.text, self._vocabulary)
        return Draft(tuple(Token(shown) for shown in texts[:count]), source=draft.source)

    def learn(self, verdict: VerifyResult) -> None:
        self._drafter.learn(verdict)
