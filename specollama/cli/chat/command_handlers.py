"""Handlers of the chat's commands."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from specollama.cli.chat.commands import COMMANDS, ChatSetting, CommandCall, CommandFault, help_text, parse_setting
from specollama.cli.chat.input_parsing import extract_images
from specollama.cli.chat.pair_choice import PairChoice, merge_flags, pair_names, portable_flags
from specollama.cli.chat.progress import ContextUsage
from specollama.cli.chat.session import ChatSession
from specollama.cli.terminal import options, output
from specollama.cli.terminal.editor import edit_text
from specollama.config import private_file
from specollama.config.settings import FileRef, Overrides
from specollama.errors import MissingPackage, RunError, SpecollamaError, UsageError, one_line
from specollama.pairs.conversation import ChatHistory
from specollama.pairs.history_store import ConversationStore, SavedConversation, export_conversation
from specollama.pairs.report import align_columns, stats_lines

Handler = Callable[[ChatSession, str], str]
"""Runs a command with its arguments; returns the text to show. Raises CommandFault or SpecollamaError."""


def run_command(session: ChatSession, call: CommandCall) -> None:
    """Run a command. Its error is shown as one line, and the chat continues."""
    try:
        session.say(HANDLERS[call.command.name](session, call.rest))
    except (CommandFault, SpecollamaError) as fault:
        said = str(fault).removeprefix("--")  # settings are worded as the flags that they are elsewhere
        session.say(f"error: {said}" if isinstance(fault, RunError) else said)


def _help(session: ChatSession, rest: str) -> str:
    return help_text(rest)


def _set(session: ChatSession, rest: str) -> str:
    setting, value = parse_setting(rest)
    return _SETTERS[setting.name](session, setting, value)


def _set_parameter(session: ChatSession, setting: ChatSetting, value: str) -> str:
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


def _flags(session: ChatSession, **changed: Any) -> Overrides:
    merged: Any = {**session.flags, **changed}
    flags: Overrides = merged
    return flags


def _set_system(session: ChatSession, setting: ChatSetting, value: str) -> str:
    session.history_so_far.system = value.removeprefix('"""').removesuffix('"""').strip() or None
    return "the system message is set" if session.history_so_far.system else "no system message"


def _set_format(session: ChatSession, setting: ChatSetting, value: str) -> str:
    if value in ("", "off", "json"):
        session.format = "json" if value == "json" else None
    else:
        try:
            session.format = json.loads(value)
        except ValueError as error:
            raise CommandFault(f"/set format: neither json, off nor a JSON schema ({error})") from None
    return "answers in JSON" if session.format else "answers as they come"


def _set_think(session: ChatSession, setting: ChatSetting, value: str) -> str:
    session.think = {"on": True, "off": False}.get(value, value)
    return f"think: {value}"


def _set_history(session: ChatSession, setting: ChatSetting, value: str) -> str:
    if value == "on" and session.store is None:
        session.store = ConversationStore()
    session.history = value == "on"
    session.reader.set_history(session.history)
    session.save()
    return "the conversation is kept" if session.history else "nothing more is kept"


def _set_look(session: ChatSession, setting: ChatSetting, value: str) -> str:
    setattr(session.view, setting.name, value if setting.name == "theme" else value == "on")
    return f"{setting.name}: {value}"


_SETTERS: dict[str, Callable[[ChatSession, ChatSetting, str], str]] = {
    "parameter": _set_parameter,
    "system": _set_system,
    "format": _set_format,
    "think": _set_think,
    "history": _set_history,
    **dict.fromkeys(("fold", "verbose", "wordwrap", "markdown", "theme"), _set_look),
}


def _show(session: ChatSession, rest: str) -> str:
    if rest not in _SHOWN:
        raise CommandFault(f"/show {rest or 'WHAT'}: what can be shown: {', '.join(_SHOWN)}")
    return _SHOWN[rest](session)


def _info(session: ChatSession) -> str:
    target = session.pair.settings.target
    length = session.runner.run(session.pair.context_length())
    context = [("context", f"{length} tokens")] if length else []
    if isinstance(target, FileRef):
        return align_columns([("file", one_line(str(target.path))), *context])
    if session.pair.is_without_ollama:
        return align_columns([("model", str(target)), ("server", target.endpoint.url), *context])
    model, _ = session.runner.run(session.pair.model_infos())
    details = model.show.details
    lines = [
        ("model", model.name),
        ("server", target.endpoint.url),
        ("family", details.family),
        ("parameters", details.parameter_size),
        ("quantisation", details.quantization_level),
        ("capabilities", ", ".join(model.show.capabilities)),
    ]
    return align_columns([(name, one_line(text)) for name, text in lines if text] + context)


def _parameters(session: ChatSession) -> str:
    own = session.pair.settings.options
    return align_columns([(name, json.dumps(value)) for name, value in own.items()]) or "no parameters are set"


def _pair_settings(session: ChatSession) -> str:
    settings = session.pair.settings
    lines = [
        ("pair", settings.name or "given by flags"),
        ("target", str(settings.target)),
        ("draft", ", ".join(map(str, settings.drafts)) or "none"),
        ("route", str(settings.route)),
        ("rule", str(settings.rule)),
        ("lookahead", str(settings.lookahead)),
        ("status", session.progress.line() or "no reply yet"),
        ("context", session.context_usage.text() or "not known yet"),
    ]
    return align_columns(lines)


def _stats(session: ChatSession) -> str:
    return align_columns(stats_lines(session.stats)) if session.stats else "no reply yet"


def _thinking(session: ChatSession) -> str:
    answer = session.history_so_far.answer
    return answer.thinking if answer and answer.thinking else "the last reply had no thinking"


_SHOWN: dict[str, Callable[[ChatSession], str]] = {
    "info": _info,
    "system": lambda session: session.history_so_far.system or "no system message",
    "parameters": _parameters,
    "pair": _pair_settings,
    "stats": _stats,
    "thinking": _thinking,
}


def _pair(session: ChatSession, rest: str) -> str:
    if not rest:
        return f"{_pair_settings(session)}\nthere are: {', '.join(pair_names(session.config))}"
    session.switch(PairChoice(name=rest), portable_flags(session.flags))
    session.given = portable_flags(session.given)
    return f"now with {rest}; the conversation goes on"


def _route(session: ChatSession, rest: str) -> str:
    if rest:
        session.tune(_flags(session, route=rest))
    return f"route: {session.pair.settings.route}"


def _lookahead(session: ChatSession, rest: str) -> str:
    if rest:
        session.tune(_flags(session, lookahead=options.parse_lengths(rest)))
    return f"lookahead: {session.pair.settings.lookahead}"


def _origin(session: ChatSession, rest: str) -> str:
    if rest not in ("on", "off", ""):
        raise CommandFault(f"/origin {rest}: must be on or off")
    session.view.origin = not session.view.origin if not rest else rest == "on"
    return f"origin: {'on' if session.view.origin else 'off'}"


def _retry(session: ChatSession, rest: str) -> str:
    before = list(session.history_so_far.turns)
    question = session.history_so_far.undo()
    if question is None:
        return "there is no question yet"
    session.history_so_far.turns.append(question)  # images that wait are the next question's
    session.answer(instead=before)
    return ""


def _undo(session: ChatSession, rest: str) -> str:
    question = session.history_so_far.undo()
    if question is None:
        return "there is nothing to take back"
    session.prefilled_input, session.context_usage = question.content, ContextUsage(0, session.context_usage.length)
    session.history_so_far.images = list(question.images)
    session.save()
    return f"taken back: {question.content if len(question.content) < 60 else question.content[:57] + '...'}"


def _edit(session: ChatSession, rest: str) -> str:
    text = edit_text("", os.environ)
    if not text.strip():
        return "nothing was written"
    message = extract_images(text.strip())
    session.say(message.text)
    session.ask(message.text, message.images)
    return ""


def _copy(session: ChatSession, rest: str) -> str:
    answer = session.history_so_far.answer
    if answer is None:
        return "there is no answer yet"
    if not sys.stdout.isatty():
        raise CommandFault("/copy: there is no terminal whose clipboard could be asked")
    coded = base64.b64encode(answer.content.encode()).decode()
    sys.stdout.write(f"\x1b]52;c;{coded}\x07")  # OSC 52: works through ssh, too
    sys.stdout.flush()
    return f"{len(answer.content)} characters given to the terminal's clipboard"


def _save(session: ChatSession, rest: str) -> str:
    store = session.store or ConversationStore()
    if not session.history_so_far.turns:
        return "there is nothing to save yet"
    if session.saved.name and rest not in ("", session.saved.name):
        store.save(replace(session.current(), name=rest, id=None, revision=None))
        return f"a copy is kept as {rest}; this one goes on as {session.saved.name}"
    kept = replace(session.current(), name=rest or session.saved.name)
    session.saved, session.store, session.history = store.save(kept), store, True
    session.reader.set_history(True)
    return f"kept as {session.saved.name or f'number {session.saved.id}'}"


def _load(session: ChatSession, rest: str) -> str:
    if not rest:
        raise CommandFault("/load: give a name or a number; /list shows them")
    kept = (session.store or ConversationStore()).load(rest)
    said, before = "", session.choice
    choice = PairChoice.of(kept.pair)
    try:
        _resume(session, kept, choice if choice.given else before)
    except (UsageError, MissingPackage) as error:
        if not choice.given or choice == before:
            raise
        said = f"with the pair that is open, since the one it was held with can't be: {error}\n"
        _resume(session, kept, before)
    session.saved, session.context_usage, session.prefilled_input = kept, ContextUsage(0, None), ""
    resumed = resumed_text(kept)
    if session.terminal:
        session.take_back_unanswered()
    return said + resumed


def _resume(session: ChatSession, kept: SavedConversation, choice: PairChoice) -> None:
    given = session.given if choice == session.choice else portable_flags(session.given)
    session.resume(choice, merge_flags(kept, choice, given))
    session.given = given


def resumed_text(kept: SavedConversation) -> str:
    """Summary shown when a conversation continues."""
    answer = kept.history.answer
    last = f"\nit ended: ...{answer.content[-200:]}" if answer else ""
    return f"{kept.name or f'number {kept.id}'}: {kept.history.title} ({len(kept.history.turns)} turns){last}"


def _list(session: ChatSession, rest: str) -> str:
    return list_text((session.store or ConversationStore()), rest)


def list_text(store: ConversationStore, text: str = "") -> str:
    """The kept conversations, or those in which a text was said."""
    found = store.summaries(text)
    lines = [
        (f"{each.id}", f"{each.updated[:16].replace('T', ' ')}  {one_line(each.name or '-')}  {one_line(each.title)}")
        for each in found
    ]
    return align_columns(lines) or (f"no conversation has {text!r} in it" if text else "no conversation is kept yet")


def _export(session: ChatSession, rest: str) -> str:
    name, force = _forced(rest)
    if not name:
        raise CommandFault("/export: give a FILE.md or FILE.json")
    export_conversation(
        session.current(),
        Path(os.path.expanduser(name)),
        output.overwriting(force=force),
        force=f"/export {_FORCE} FILE",
    )
    return f"written to {name}"


_FORCE = "--force"


def _forced(rest: str) -> tuple[str, bool]:
    """The file's name, and whether it is written over where it is there."""
    word, _, name = rest.partition(" ")
    return (name.strip(), True) if word == _FORCE else (rest, False)


def _trace(session: ChatSession, rest: str) -> str:
    if session.last_trace is None:
        return "no reply yet"
    from specollama.pairs.trace.records import group_replies
    from specollama.tools.trace_page.page import page  # here, since few chats need it

    name, force = _forced(rest)
    file, shown = Path(os.path.expanduser(name or "last-reply.html")), page(group_replies(session.last_trace.lines)[-1])
    try:
        private_file.write_new(file, shown, output.overwriting(force=force), force=f"/trace {_FORCE} FILE")
    except OSError as error:
        raise UsageError(one_line(f"{file}: {error.strerror or error}")) from error
    return f"written to {file}"


def _clear(session: ChatSession, rest: str) -> str:
    system = session.history_so_far.system
    session.saved = SavedConversation(ChatHistory(system))  # what was kept stays: another one begins
    session.context_usage, session.prefilled_input = ContextUsage(0, session.context_usage.length), ""
    return "the conversation is forgotten" + (", but for what was kept of it" if session.history else "")


def _bye(session: ChatSession, rest: str) -> str:
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
