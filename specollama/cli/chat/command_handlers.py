"""What the commands of a chat do."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from specollama.cli.chat.commands import COMMANDS, Call, CommandFault, Setting, help_text, parse_setting
from specollama.cli.chat.input_parsing import with_images
from specollama.cli.chat.pair_choice import Choice, merged, of_any_pair, pair_names
from specollama.cli.chat.progress import Room
from specollama.cli.chat.session import Session
from specollama.cli.terminal import options, output
from specollama.cli.terminal.editor import edited
from specollama.config import private_file
from specollama.config.settings import FileRef, Overrides
from specollama.errors import MissingPackage, RunError, SpecollamaError, UsageError, one_line
from specollama.pairs.conversation import Talk
from specollama.pairs.history_store import Kept, Store, exported
from specollama.pairs.report import aligned, stats_lines

Handler = Callable[[Session, str], str]
"""Carries a command out, given what follows it; answers what is to be said. Raises CommandFault or SpecollamaError."""


def carry_out(session: Session, call: Call) -> None:
    """A command; what is wrong with it is a line, and the chat goes on."""
    try:
        session.say(HANDLERS[call.command.name](session, call.rest))
    except (CommandFault, SpecollamaError) as fault:
        said = str(fault).removeprefix("--")  # settings are worded as the flags that they are elsewhere
        session.say(f"error: {said}" if isinstance(fault, RunError) else said)


def _help(session: Session, rest: str) -> str:
    return help_text(rest)


def _set(session: Session, rest: str) -> str:
    setting, value = parse_setting(rest)
    return _SETTERS[setting.name](session, setting, value)


def _set_parameter(session: Session, setting: Setting, value: str) -> str:
    name, _, text = value.partition(" ")
    if not name:
        raise CommandFault(f"/set parameter: give a NAME and a VALUE; {_parameters(session)}")
    given: dict[str, Any] = dict(session.flags.get("options") or {})
    if text.strip():
        given[name] = _value(name, text.strip())
    else:
        given.pop(name, None)
    session.tune(_flags(session, options=given))
    return f"{name} = {json.dumps(given[name])}" if name in given else f"{name}: as the pair has it"


def _value(name: str, text: str) -> Any:
    if name == "stop":
        return text.split()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flags(session: Session, **changed: Any) -> Overrides:
    merged: Any = {**session.flags, **changed}
    flags: Overrides = merged
    return flags


def _set_system(session: Session, setting: Setting, value: str) -> str:
    session.talk.system = value.removeprefix('"""').removesuffix('"""').strip() or None
    return "the system message is set" if session.talk.system else "no system message"


def _set_format(session: Session, setting: Setting, value: str) -> str:
    if value in ("", "off", "json"):
        session.format = "json" if value == "json" else None
    else:
        try:
            session.format = json.loads(value)
        except ValueError as error:
            raise CommandFault(f"/set format: neither json, off nor a JSON schema ({error})") from None
    return "answers in JSON" if session.format else "answers as they come"


def _set_think(session: Session, setting: Setting, value: str) -> str:
    session.think = {"on": True, "off": False}.get(value, value)
    return f"think: {value}"


def _set_history(session: Session, setting: Setting, value: str) -> str:
    if value == "on" and session.store is None:
        session.store = Store()
    session.history = value == "on"
    session.reader.keep(session.history)
    session.keep()
    return "the conversation is kept" if session.history else "nothing more is kept"


def _set_look(session: Session, setting: Setting, value: str) -> str:
    setattr(session.look, setting.name, value if setting.name == "theme" else value == "on")
    return f"{setting.name}: {value}"


_SETTERS: dict[str, Callable[[Session, Setting, str], str]] = {
    "parameter": _set_parameter,
    "system": _set_system,
    "format": _set_format,
    "think": _set_think,
    "history": _set_history,
    **dict.fromkeys(("fold", "verbose", "wordwrap", "markdown", "theme"), _set_look),
}


def _show(session: Session, rest: str) -> str:
    if rest not in _SHOWN:
        raise CommandFault(f"/show {rest or 'WHAT'}: what can be shown: {', '.join(_SHOWN)}")
    return _SHOWN[rest](session)


def _info(session: Session) -> str:
    target = session.pair.settings.target
    length = session.runner.run(session.pair.context_length())
    context = [("context", f"{length} tokens")] if length else []
    if isinstance(target, FileRef):
        return aligned([("file", one_line(str(target.path))), *context])
    if session.pair.without_ollama:
        return aligned([("model", str(target)), ("server", target.endpoint.url), *context])
    model, _ = session.runner.run(session.pair.models())
    details = model.show.details
    lines = [
        ("model", model.name),
        ("server", target.endpoint.url),
        ("family", details.family),
        ("parameters", details.parameter_size),
        ("quantisation", details.quantization_level),
        ("capabilities", ", ".join(model.show.capabilities)),
    ]
    return aligned([(name, one_line(text)) for name, text in lines if text] + context)


def _parameters(session: Session) -> str:
    own = session.pair.settings.options
    return aligned([(name, json.dumps(value)) for name, value in own.items()]) or "no parameters are set"


def _pair_settings(session: Session) -> str:
    settings = session.pair.settings
    lines = [
        ("pair", settings.name or "given by flags"),
        ("target", str(settings.target)),
        ("draft", ", ".join(map(str, settings.drafts)) or "none"),
        ("route", str(settings.route)),
        ("rule", str(settings.rule)),
        ("lookahead", str(settings.lookahead)),
        ("status", session.progress.line() or "no reply yet"),
        ("context", session.room.words() or "not known yet"),
    ]
    return aligned(lines)


def _stats(session: Session) -> str:
    return aligned(stats_lines(session.stats)) if session.stats else "no reply yet"


def _thinking(session: Session) -> str:
    answer = session.talk.answer
    return answer.thinking if answer and answer.thinking else "the last reply had no thinking"


_SHOWN: dict[str, Callable[[Session], str]] = {
    "info": _info,
    "system": lambda session: session.talk.system or "no system message",
    "parameters": _parameters,
    "pair": _pair_settings,
    "stats": _stats,
    "thinking": _thinking,
}


def _pair(session: Session, rest: str) -> str:
    if not rest:
        return f"{_pair_settings(session)}\nthere are: {', '.join(pair_names(session.config))}"
    session.switch(Choice(name=rest), of_any_pair(session.flags))
    session.given = of_any_pair(session.given)
    return f"now with {rest}; the conversation goes on"


def _route(session: Session, rest: str) -> str:
    if rest:
        session.tune(_flags(session, route=rest))
    return f"route: {session.pair.settings.route}"


def _lookahead(session: Session, rest: str) -> str:
    if rest:
        session.tune(_flags(session, lookahead=options.lengths(rest)))
    return f"lookahead: {session.pair.settings.lookahead}"


def _origin(session: Session, rest: str) -> str:
    if rest not in ("on", "off", ""):
        raise CommandFault(f"/origin {rest}: must be on or off")
    session.look.origin = not session.look.origin if not rest else rest == "on"
    return f"origin: {'on' if session.look.origin else 'off'}"


def _retry(session: Session, rest: str) -> str:
    before = list(session.talk.turns)
    question = session.talk.undo()
    if question is None:
        return "there is no question yet"
    session.talk.turns.append(question)  # images that wait are the next question's
    session.answer(instead=before)
    return ""


def _undo(session: Session, rest: str) -> str:
    question = session.talk.undo()
    if question is None:
        return "there is nothing to take back"
    session.begun, session.room = question.content, Room(0, session.room.length)
    session.talk.images = list(question.images)
    session.keep()
    return f"taken back: {question.content if len(question.content) < 60 else question.content[:57] + '...'}"


def _edit(session: Session, rest: str) -> str:
    text = edited("", os.environ)
    if not text.strip():
        return "nothing was written"
    message = with_images(text.strip())
    session.say(message.text)
    session.ask(message.text, message.images)
    return ""


def _copy(session: Session, rest: str) -> str:
    answer = session.talk.answer
    if answer is None:
        return "there is no answer yet"
    if not sys.stdout.isatty():
        raise CommandFault("/copy: there is no terminal whose clipboard could be asked")
    coded = base64.b64encode(answer.content.encode()).decode()
    sys.stdout.write(f"\x1b]52;c;{coded}\x07")  # OSC 52: works through ssh, too
    sys.stdout.flush()
    return f"{len(answer.content)} characters given to the terminal's clipboard"


def _save(session: Session, rest: str) -> str:
    store = session.store or Store()
    kept = replace(session.held(), name=rest or session.kept.name)
    if not session.talk.turns:
        return "there is nothing to save yet"
    session.kept, session.store, session.history = store.save(kept), store, True
    session.reader.keep(True)
    return f"kept as {session.kept.name or f'number {session.kept.id}'}"


def _load(session: Session, rest: str) -> str:
    if not rest:
        raise CommandFault("/load: give a name or a number; /list shows them")
    kept = (session.store or Store()).load(rest)
    said, before = "", session.choice
    choice = Choice.of(kept.pair)
    try:
        _go_on(session, kept, choice if choice.given else before)
    except (UsageError, MissingPackage) as error:
        if not choice.given or choice == before:
            raise
        said = f"with the pair that is open, since the one it was held with can't be: {error}\n"
        _go_on(session, kept, before)
    session.kept, session.room, session.begun = kept, Room(0, None), ""
    return said + recalled(kept)


def _go_on(session: Session, kept: Kept, choice: Choice) -> None:
    given = session.given if choice == session.choice else of_any_pair(session.given)
    session.go_on(choice, merged(kept, choice, given))
    session.given = given


def recalled(kept: Kept) -> str:
    """What is said of a conversation that goes on."""
    answer = kept.talk.answer
    last = f"\nit ended: ...{answer.content[-200:]}" if answer else ""
    return f"{kept.name or f'number {kept.id}'}: {kept.talk.title} ({len(kept.talk.turns)} turns){last}"


def _list(session: Session, rest: str) -> str:
    return listed((session.store or Store()), rest)


def listed(store: Store, text: str = "") -> str:
    """The kept conversations, or those in which a text was said."""
    found = store.summaries(text)
    lines = [
        (f"{each.id}", f"{each.updated[:16].replace('T', ' ')}  {one_line(each.name or '-')}  {one_line(each.title)}")
        for each in found
    ]
    return aligned(lines) or (f"no conversation has {text!r} in it" if text else "no conversation is kept yet")


def _export(session: Session, rest: str) -> str:
    name, force = _forced(rest)
    if not name:
        raise CommandFault("/export: give a FILE.md or FILE.json")
    exported(
        session.held(), Path(os.path.expanduser(name)), output.overwriting(force=force), force=f"/export {_FORCE} FILE"
    )
    return f"written to {name}"


_FORCE = "--force"


def _forced(rest: str) -> tuple[str, bool]:
    """The file's name, and whether it is written over where it is there."""
    word, _, name = rest.partition(" ")
    return (name.strip(), True) if word == _FORCE else (rest, False)


def _trace(session: Session, rest: str) -> str:
    if session.recorded is None:
        return "no reply yet"
    from specollama.pairs.trace.records import sorted_out
    from specollama.tools.trace_page.page import page  # here, since few chats need it

    name, force = _forced(rest)
    file, shown = Path(os.path.expanduser(name or "last-reply.html")), page(sorted_out(session.recorded.lines)[-1])
    try:
        private_file.write_new(file, shown, output.overwriting(force=force), force=f"/trace {_FORCE} FILE")
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error
    return f"written to {file}"


def _clear(session: Session, rest: str) -> str:
    system = session.talk.system
    session.kept = Kept(Talk(system))  # what was kept stays: another one begins
    session.room, session.begun = Room(0, session.room.length), ""
    return "the conversation is forgotten" + (", but for what was kept of it" if session.history else "")


def _bye(session: Session, rest: str) -> str:
    raise EOFError


HANDLERS: dict[str, Handler] = {
    "help": _help,
    "set": _set,
    "show": _show,
    "stats": lambda session, rest: _stats(session),
    "pair": _pair,
    "route": _route,
    "lookahead": _lookahead,
    "origin": _origin,
    "retry": _retry,
    "undo": _undo,
    "edit": _edit,
    "copy": _copy,
    "save": _save,
    "load": _load,
    "list": _list,
    "export": _export,
    "trace": _trace,
    "clear": _clear,
    "bye": _bye,
}
assert HANDLERS.keys() == COMMANDS.keys()
