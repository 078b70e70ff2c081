"""How far a command is, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from specollama.cli.terminal import output


@contextmanager
def progress(total: int, done: int = 0) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Tells on stderr what is done (the first function) and that a part is finished (the second).

    Drawn only when told, which is between replies: a bar that moves by itself would take time from what is timed.
    """
    aside = output.stderr()
    if not aside.is_terminal:
        number = count(done + 1)
        yield lambda what: None, lambda name: aside.print(f"{next(number)}/{total} {escape(name)}")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=aside, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield (
            lambda what: bar.update(task, description=what, refresh=True),
            lambda name: bar.update(task, advance=1, refresh=True),
        )
