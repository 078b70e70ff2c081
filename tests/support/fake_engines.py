"""Servers with the engines' wire formats over the toy model.

A field that an engine doesn't know is a 400, and what doesn't fit into its context.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tests.support import toy
from tests.support.serving import Answer, read_body, send_answer, whole
from tests.support.toy import END, Toy

NAME = "toy-7b"


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Sampling(Body):
    """What vLLM and TensorRT-LLM both know."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class Options(BaseModel):
    include_usage: bool


class VLLMRows(Sampling):
    model: str
    prompt: list[list[int]]
    max_tokens: int
    logprobs: int
    return_tokens_as_token_ids: bool
    seed: int | None = None


class TRTRows(Sampling):
    model: str
    prompt: list[list[int]]
    max_tokens: int
    logprobs: int
    detokenize: bool
    seed: int | None = None


class Stream(Sampling):
    model: str
    prompt: list[int]
    stream: bool
    stream_options: Options
    max_tokens: int | None = None
    seed: int | None = None


class Chat(Sampling):
    model: str
    messages: list[dict[str, str]]
    stream: bool
    max_tokens: int | None = None
    seed: int | None = None


class ChatCount(Body):
    model: str
    messages: list[dict[str, str]]
    max_tokens: int
    temperature: float


class TokenizeText(Body):
    model: str
    prompt: str
    add_special_tokens: bool


class TokenizeChat(Body):
    model: str
    messages: list[dict[str, str]]
    add_generation_prompt: bool


class Detokenize(Body):
    model: str
    tokens: list[int]


class TRTTokenize(Body):
    prompt: str


class SGLangDetokenize(Body):
    tokens: list[list[int]]
    skip_special_tokens: bool


class SGLangSampling(Sampling):
    max_new_tokens: int = 128


class SGLangOnePass(Body):
    input_ids: list[int]
    sampling_params: SGLangSampling
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int


class SGLangRows(Body):
    input_ids: list[list[int]]
    sampling_params: SGLangSampling
    return_logprob: bool
    top_logprobs_num: int


class SGLangStream(Body):
    input_ids: list[int]
    sampling_params: SGLangSampling
    stream: bool


class LlamaSampling(Body):
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    cache_prompt: bool
    n_predict: int
    seed: int | None = None


class LlamaRows(LlamaSampling):
    prompt: list[list[int]]
    n_probs: int
    return_tokens: bool
    id_slot: int
    response_fields: list[str]


class LlamaStream(LlamaSampling):
    prompt: list[int]
    stream: bool
    stop: list[str]


class LlamaTokenize(Body):
    content: str
    add_special: bool
    parse_special: bool


class LlamaDetokenize(Body):
    tokens: list[int]


class LlamaTemplate(Body):
    messages: list[dict[str, str]]


@dataclass
class Asked:
    path: str
    body: dict[str, Any]


class TooLong(Exception):
    """A prompt and the tokens that are to follow don't fit into the context."""


Handler = Callable[[dict[str, Any]], Answer]


def events(*bodies: Any, done: bool = True) -> Answer:
    lines = [f"data: {json.dumps(body)}\n\n".encode() for body in bodies]
    return Answer([*lines, *([b"data: [DONE]\n\n"] if done else [])], kind="text/event-stream")


def visible(token: int) -> str:
    """What a lone token prints in a reply: nothing for control tokens and parts of characters."""
    shown = toy.text([token], special=False)
    return "" if "\ufffd" in shown else shown


@dataclass
class Fake:
    """One server. `faults`: answers that come in place of the engine's, path by path; `asked`: all requests.

    `context`: tokens of a prompt and its reply.
    """

    model: Toy = field(default_factory=Toy)
    faults: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    context: int = 4096

    unlimited = 1000  # tokens, where a request for a completion sets no limit
    handlers: dict[str, Callable[[Any, dict[str, Any]], Answer]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Each engine has its own handlers, by path."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = await read_body(receive)
        path, body = scope["path"], json.loads(raw) if raw else {}
        self.asked.append(Asked(path, body))
        if path in self.faults:
            await send_answer(self.faults[path], send)
            return
        handler = self.handlers.get(path)
        try:
            answer = handler(self, body) if handler else whole({"detail": "Not Found"}, 404)
        except (ValidationError, TooLong) as error:
            answer = whole({"error": {"message": str(error), "code": 400}}, 400)
        await send_answer(answer, send)

    def fits(self, prompt: list[int], wanted: int) -> None:
        if len(prompt) + wanted > self.context:
            raise TooLong(f"{len(prompt)} tokens and {wanted} more are too many for {self.context}")

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [each.body for each in self.asked if each.path == path]

    def listed(self, owner: str, **more: Any) -> Callable[[Any, dict[str, Any]], Answer]:
        return lambda _, body: whole({"object": "list", "data": [{"id": NAME, "owned_by": owner, **more}]})

    def chat(self, body: dict[str, Any]) -> Answer:
        if "stream" not in body:
            count = len(toy.tokens(toy.prompt(ChatCount(**body).messages)))
            return whole({"choices": [], "usage": {"prompt_tokens": count}})
        asked = Chat(**body)
        context = toy.tokens(toy.prompt(asked.messages))
        drawn = self.model.run(context, asked.max_tokens or 1000, asked.temperature, asked.seed)
        pieces = [{"choices": [{"delta": {"content": visible(token)}}]} for token in drawn]
        return events(*pieces, {"choices": [{"delta": {}, "finish_reason": reason(drawn)}]})

    def stream(self, body: dict[str, Any]) -> Answer:
        asked = Stream(**body)
        limit = asked.max_tokens or self.unlimited
        self.fits(asked.prompt, limit)
        drawn = self.model.run(asked.prompt, limit, asked.temperature, asked.seed)
        pieces = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in grown(drawn)]
        end = {"choices": [{"index": 0, "text": "", "finish_reason": reason(drawn)}]}
        return events(*pieces, end, {"choices": [], "usage": {"completion_tokens": len(drawn)}})


def reason(drawn: list[int]) -> str:
    return "stop" if END in drawn else "length"


def grown(drawn: list[int]) -> Iterator[str]:
    """The text of a stream, token by token; a part of a character waits for the rest."""
    shown = ""
    for end in range(1, len(drawn) + 1):
        text = toy.text(drawn[:end], special=False)
        if not text.endswith("\ufffd"):
            yield text.removeprefix(shown)
            shown = text


class FakeVLLM(Fake):
    unlimited = 16

    def __post_init__(self) -> None:
        self.handlers = {
            "/v1/models": self.listed("vllm", max_model_len=self.context),
            "/version": lambda _, body: whole({"version": "0.30.0"}),
            "/tokenize": FakeVLLM.tokenize,
            "/detokenize": lambda _, body: whole({"prompt": toy.text(Detokenize(**body).tokens)}),
            "/v1/completions": FakeVLLM.completions,
            "/v1/chat/completions": Fake.chat,
        }

    def tokenize(self, body: dict[str, Any]) -> Answer:
        found = toy.prompt(TokenizeChat(**body).messages) if "messages" in body else TokenizeText(**body).prompt
        ids = toy.tokens(found)
        return whole({"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None})

    def completions(self, body: dict[str, Any]) -> Answer:
        if "stream" in body:
            return self.stream(body)
        asked = VLLMRows(**body)
        assert asked.max_tokens == 1
        assert asked.return_tokens_as_token_ids
        choices = [self.choice(index, ids, asked) for index, ids in enumerate(asked.prompt)]
        return whole({"choices": choices[::-1], "usage": {}})  # the order is that of `index`

    def choice(self, index: int, ids: list[int], asked: VLLMRows) -> dict[str, Any]:
        self.fits(ids, 1)
        drawn = self.model.next(ids, asked.temperature, asked.seed)
        top = {f"token_id:{token}": logprob for token, logprob in self.model.logprobs(ids)}
        shown = {"tokens": [f"token_id:{drawn}"], "token_logprobs": [-0.1], "top_logprobs": [top], "text_offset": [0]}
        return {"index": index, "text": visible(drawn), "logprobs": shown, "finish_reason": reason([drawn])}


class FakeTensorRTLLM(Fake):
    def __post_init__(self) -> None:
        self.handlers = {
            "/v1/models": self.listed("tensorrt_llm"),
            "/version": lambda _, body: whole({"version": "1.4.0"}),
            "/_internal/tokenize": type(self).tokenize,
            "/v1/completions": FakeTensorRTLLM.completions,
            "/v1/chat/completions": Fake.chat,
        }

    def tokenize(self, body: dict[str, Any]) -> Answer:
        ids = toy.tokens(TRTTokenize(**body).prompt)
        return whole({"count": len(ids), "tokens": ids})

    def completions(self, body: dict[str, Any]) -> Answer:
        if "stream" in body:
            return self.stream(body)
        asked = TRTRows(**body)
        assert asked.max_tokens == 1
        assert not asked.detokenize
        assert asked.temperature > 0 or asked.top_k == 1
        choices = [self.choice(index, ids, asked) for index, ids in enumerate(asked.prompt)]
        return whole({"choices": choices, "usage": {}})

    def choice(self, index: int, ids: list[int], asked: TRTRows) -> dict[str, Any]:
        drawn = self.model.next(ids, asked.temperature, asked.seed)
        shown = {"tokens": [toy.text([drawn])], "token_logprobs": [-0.1], "top_logprobs": [], "text_offset": [0]}
        answer = {"index": index, "text": "", "token_ids": [drawn], "logprobs": shown, "context_logits": None}
        return answer | {"finish_reason": reason([drawn]), "stop_reason": None}


class FakeSGLang(Fake):
    shift = 0  # places that the log-probabilities of the prompt are off by

    def __post_init__(self) -> None:
        self.handlers = {
            "/v1/models": self.listed("sglang", max_model_len=self.context),
            "/server_info": lambda _, body: whole({"version": "0.5.9", "max_running_requests": 32}),
            "/tokenize": FakeSGLang.tokenize,
            "/detokenize": FakeSGLang.detokenize,
            "/generate": FakeSGLang.generate,
            "/v1/chat/completions": Fake.chat,
        }

    def tokenize(self, body: dict[str, Any]) -> Answer:
        ids = toy.tokens(TokenizeText(**body).prompt)
        return whole({"tokens": ids, "count": len(ids), "max_model_len": 4096})

    def detokenize(self, body: dict[str, Any]) -> Answer:
        asked = SGLangDetokenize(**body)
        return whole({"text": [toy.text(ids, special=not asked.skip_special_tokens) for ids in asked.tokens]})

    def generate(self, body: dict[str, Any]) -> Answer:
        if "stream" in body:
            return self.streamed(SGLangStream(**body))
        if "logprob_start_len" in body:
            return whole(self.one_pass(SGLangOnePass(**body)))
        asked = SGLangRows(**body)
        return whole([self.answer(ids, asked.sampling_params) for ids in asked.input_ids])

    def answer(self, ids: list[int], params: SGLangSampling) -> dict[str, Any]:
        assert params.max_new_tokens == 1
        self.fits(ids, 1)
        drawn = self.model.next(ids, params.temperature)
        shown = [[logprob, token, None] for token, logprob in self.model.logprobs(ids)]
        finish = {"type": "stop", "matched": END} if drawn == END else {"type": "length", "length": 1}
        meta = {"output_token_logprobs": [[-0.1, drawn, None]], "output_top_logprobs": [shown]}
        counts = {"prompt_tokens": len(ids), "completion_tokens": 1, "cached_tokens": 0}
        return {"text": visible(drawn), "output_ids": [drawn], "meta_info": meta | counts | {"finish_reason": finish}}

    def one_pass(self, asked: SGLangOnePass) -> dict[str, Any]:
        """The entry at `logprob_start_len` is null: its predictor's logits aren't computed."""
        ids, start = asked.input_ids, asked.logprob_start_len
        scored = range(start + 1 + self.shift, len(ids))
        tops = [[[logprob, token, None] for token, logprob in self.model.logprobs(ids[:place])] for place in scored]
        answer = self.answer(ids, asked.sampling_params)
        answer["meta_info"] |= {
            "input_token_logprobs": [[None, ids[start], None], *([-0.5, ids[place], None] for place in scored)],
            "input_top_logprobs": [None, *tops],
        }
        return answer

    def fits(self, prompt: list[int], wanted: int) -> None:
        """The last place of its context stays empty."""
        super().fits(prompt, wanted + 1)

    def streamed(self, asked: SGLangStream) -> Answer:
        self.fits(asked.input_ids, asked.sampling_params.max_new_tokens)
        drawn = self.model.run(asked.input_ids, asked.sampling_params.max_new_tokens, asked.sampling_params.temperature)
        texts = list(grown(drawn))
        whole_so_far = ["".join(texts[: place + 1]) for place in range(len(texts))]
        bodies = [
            {"text": text, "meta_info": {"completion_tokens": place, "finish_reason": None}}
            for place, text in enumerate(whole_so_far, 1)
        ]
        finish = {"type": reason(drawn)}
        return events(
            *bodies,
            {"text": whole_so_far[-1], "meta_info": {"completion_tokens": len(drawn)} | {"finish_reason": finish}},
        )


class FakeLlamaServer(Fake):
    """It was started with a seed, which holds where a request has none; that of -1 is another each time."""

    slots = 8
    seed = 7

    def __post_init__(self) -> None:
        self.handlers = {
            "/v1/models": self.listed("llamacpp"),
            "/props": FakeLlamaServer.props,
            "/tokenize": FakeLlamaServer.tokenize,
            "/detokenize": lambda _, body: whole({"content": toy.text(LlamaDetokenize(**body).tokens)}),
            "/apply-template": lambda _, body: whole({"prompt": toy.prompt(LlamaTemplate(**body).messages)}),
            "/completion": FakeLlamaServer.completion,
            "/v1/chat/completions": Fake.chat,
        }

    def props(self, body: dict[str, Any]) -> Answer:
        settings = {"n_ctx": self.context}
        return whole(
            {"default_generation_settings": settings, "total_slots": self.slots, "model_path": f"/models/{NAME}.gguf"}
        )

    def tokenize(self, body: dict[str, Any]) -> Answer:
        return whole({"tokens": toy.tokens(LlamaTokenize(**body).content)})

    def completion(self, body: dict[str, Any]) -> Answer:
        if "stream" in body:
            return self.streamed(LlamaStream(**body))
        asked = LlamaRows(**body)
        assert asked.n_predict == 1
        assert asked.id_slot == -1
        answers = [self.answer(index, ids, asked) for index, ids in enumerate(asked.prompt)]
        return whole(answers[::-1])  # the order is that of `index`

    def answer(self, index: int, ids: list[int], asked: LlamaRows) -> dict[str, Any]:
        self.fits(ids, 1)
        drawn = self.model.next(ids, asked.temperature, self.seeded(asked))
        text = visible(drawn)
        answer = {"index": index, "content": text, "tokens": [drawn]}
        answer["stop_type"] = "eos" if drawn == END else "limit"
        top = [{"id": token, "token": toy.text([token]), "logprob": lp} for token, lp in self.model.logprobs(ids)]
        shown = [{"id": drawn, "token": text, "bytes": [], "logprob": -0.1, "top_logprobs": top}]
        part = not text and drawn != END
        return {**answer, "completion_probabilities": [] if part else shown}

    def seeded(self, asked: LlamaSampling) -> int | None:
        return self.seed if asked.seed is None else asked.seed if asked.seed >= 0 else None

    def streamed(self, asked: LlamaStream) -> Answer:
        room = self.context - len(asked.prompt)
        limit = room if asked.n_predict < 0 else min(room, asked.n_predict)
        drawn = self.model.run(asked.prompt, limit, asked.temperature, self.seeded(asked))
        bodies = [{"content": text, "stop": False} for text in grown(drawn)]
        return events(*bodies, {"content": "", "stop": True, "stop_type": "eos" if END in drawn else "limit"})


FAKES: dict[str, type[Fake]] = {
    "vllm": FakeVLLM,
    "sglang": FakeSGLang,
    "tensorrt-llm": FakeTensorRTLLM,
    "llama-server": FakeLlamaServer,
}
