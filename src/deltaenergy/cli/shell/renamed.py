"""Options that were called otherwise once. The old names still work, are not in --help, and are told the new one."""

from __future__ import annotations

from collections.abc import Sequence

from deltaenergy.cli.shell.console import err

# By command: the old name and the new one.
RENAMED = {
    "score": {"--known": "--id"},
    "tune": {"--calibrate": "--id"},
}


def with_new_names(arguments: Sequence[str]) -> list[str]:
    """The arguments with today's names, after a line on standard error for each old one."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    renamed = RENAMED.get(command, {})
    end = arguments.index("--") if "--" in arguments else len(arguments)
    told: set[str] = set()
    current = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        new = renamed.get(name) if position < end else None
        current.append(argument if new is None else f"{new}{equals}{value}")
        if new is not None and name not in told:
            err.print(f"Note: {name} is called {new} now; the old name still works.")
            told.add(name)
    return current
