"""`specollama data`: what is kept on this disk, where, how large; and its deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from specollama.cli.terminal import completion, output
from specollama.config import paths
from specollama.config.schema import suggest_names
from specollama.errors import UsageError
from specollama.tools import stored_data
from specollama.tools.stored_data import KINDS, Stored

_GONE = "gone"


def data(
    delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join((*KINDS, _GONE)),
            autocompletion=completion.one_of((*KINDS, _GONE)),
            help="Delete a kind; gone: copies of draft models that are gone. Repeatable.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show what specollama keeps on this disk, where and how large, or delete a kind of it."""
    if delete:
        _delete([_chosen(name) for name in delete], yes=yes)
        return
    found, orphans = stored_data.stored_data(), stored_data.orphaned_copies()
    if json:
        print(output.json_text([_object(each) for each in (*found, orphans)]))
        return
    _show(found)
    if orphans.files:
        _offer(orphans, yes=yes)


def _chosen(name: str) -> Stored:
    if name == _GONE:
        return stored_data.orphaned_copies()
    if name not in KINDS:
        raise UsageError(f"--delete {name}: no such kind{suggest_names(name, (*KINDS, _GONE))}")
    return next(each for each in stored_data.stored_data() if each.name == name)


def _delete(kinds: Sequence[Stored], *, yes: bool) -> None:
    for kind in kinds:
        if not kind.files:
            output.stderr().out(f"{kind.name}: nothing is there")
        elif yes or _agreed(kind):
            size = decimal(kind.size)
            stored_data.delete(kind.files)
            output.stderr().out(f"{kind.name}: deleted {size}")
        else:
            output.stderr().out(f"{kind.name}: kept")


def _agreed(kind: Stored) -> bool:
    """The user's answer. Raises UsageError where nobody can be asked."""
    if not output.can_ask():
        raise UsageError(f"--delete {kind.name} asks at a terminal; give --yes to delete without being asked")
    return output.ask_yes_no(f"Delete {kind.holds} ({decimal(kind.size)})?")


def _offer(orphans: Stored, *, yes: bool) -> None:
    if yes or output.can_ask():
        _delete([orphans], yes=yes)
    else:
        size = decimal(orphans.size)
        output.stderr().out(f"{size} are {orphans.holds}: specollama data --delete {_GONE}")


def _show(found: Sequence[Stored]) -> None:
    console = output.stdout()
    for each in found:
        size = decimal(each.size) if each.files else "-"
        console.out(f"{each.name:<13} {size:>9}  {each.place}  ({each.holds})")
    console.out(f"{decimal(sum(each.size for each in found))} in all; the configuration is in {paths.config_folder()}")


def _object(each: Stored) -> dict[str, Any]:
    return {
        "kind": each.name,
        "holds": each.holds,
        "place": str(each.place),
        "files": len(each.files),
        "size": each.size,
    }
