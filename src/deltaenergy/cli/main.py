"""The command `deltaenergy`. Heavy imports happen when a command runs."""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from deltaenergy.cli import commands
from deltaenergy.cli.shell.app import app
from deltaenergy.cli.shell.console import err
from deltaenergy.cli.shell.exits import exit_code_of
from deltaenergy.core.progress import show_progress
from deltaenergy.errors import InputError, ResultWarning, used_up_its_memory

# Importing torch creates about a hundred thousand objects that stay; by default the collector walks them many times.
COLLECT_AFTER = 50_000

# In the order of the help.
for name in ("demo", "score", "sort", "explain", "calibrate", "tune", "evaluate", "monitor", "serve"):
    importlib.import_module(f"deltaenergy.cli.commands.{name}")
for module in pkgutil.iter_modules(commands.__path__, "deltaenergy.cli.commands."):
    importlib.import_module(module.name)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: every command ends with one message and an exit code, never a traceback."""
    gc.set_threshold(max(COLLECT_AFTER, gc.get_threshold()[0]))
    atexit.register(gc.freeze)  # nor walk them again when the process ends
    _share_few_threads()
    if not os.environ.get("TERMINAL_WIDTH", "1").isdecimal():  # which typer reads as a number
        del os.environ["TERMINAL_WIDTH"]
    given = list(sys.argv[1:] if arguments is None else arguments)
    code = exit_code_of(lambda: _run(given), given)
    if used_up_its_memory():  # libraries that failed halfway may crash when Python ends, and change the exit code
        os._exit(code)
    sys.exit(code)


def _share_few_threads() -> None:
    """Let libraries use one thread each where the system allows few: some end the process when they get fewer.

    They read these variables at import.
    """
    wanted, wait = 4 * (os.cpu_count() or 1), threading.Event()
    threads = [threading.Thread(target=wait.wait, daemon=True) for _ in range(wanted)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
            os.environ[name] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    finally:
        wait.set()


def _run(given: list[str]) -> object:
    _show_warnings_plainly()
    for argument in given:
        if "\0" in argument:
            raise InputError(f"The argument {argument!r} has a NUL character, which no name or path can have.")
    # Removed here, so it works before and after the command.
    end = given.index("--") if "--" in given else len(given)
    err.typed_as, err.hushed = {}, "--quiet" in given[:end]
    show_progress(False if err.hushed else None)
    given = [*(argument for argument in given[:end] if argument != "--quiet"), *given[end:]]
    return app(args=given, prog_name="deltaenergy", standalone_mode=False)


def _show_warnings_plainly() -> None:
    """Show Python warnings and our log in one line, without file and source line."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning) and not issubclass(category, ResultWarning):
            err.print(f"Warning: {message}", style="yellow")

    warnings.showwarning = show
    log = logging.getLogger("deltaenergy")
    if not any(isinstance(handler, _ToConsole) for handler in log.handlers):
        log.addHandler(_ToConsole())
        log.setLevel(logging.INFO)


class _ToConsole(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if err.is_terminal or not record.name.startswith("deltaenergy.models.lite"):
            err.print(record.getMessage(), style="dim" if record.levelno < logging.WARNING else None)
