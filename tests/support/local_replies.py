"""Replies of an opened pair, gathered."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from specollama.config.settings import FileRef, PairSettings
from specollama.pairs.routes.local_models import LocalModels
from specollama.spec_decode.events import Done, Text
from specollama.spec_decode.metrics import Stats
from specollama.spec_decode.types import AcceptanceMethod, DoneReason, Route, SamplingOptions

SETTINGS = PairSettings(None, FileRef(Path("target.gguf")), (), route=Route.LOCAL)
COLD = SamplingOptions(temperature=0, num_predict=32)


def settings(lookahead: int | str = "auto", rule: AcceptanceMethod = AcceptanceMethod.AUTO) -> PairSettings:
    route = Route.PLAIN if lookahead == 0 else Route.LOCAL
    return PairSettings(None, SETTINGS.target, (), lookahead=lookahead, rule=rule, route=route)  # type: ignore[arg-type]


async def reply(
    pair: LocalModels, prompt: str, sampling: SamplingOptions = COLD, chosen: PairSettings = SETTINGS
) -> tuple[str, DoneReason, Stats]:
    text = ""
    async with aclosing(pair.make_decoder(prompt, sampling, chosen).events()) as events:
        async for event in events:
            if isinstance(event, Text):
                text += event.text
            if isinstance(event, Done):
                return text, event.reason, event.stats
    raise AssertionError("a reply ends with Done")


def turn(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
