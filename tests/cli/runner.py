"""Run the command line in this process and catch what it prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from deltaenergy.cli import common
from deltaenergy.cli.main import run


@dataclass(frozen=True)
class Result:
    """Exit code and both streams of one command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


class Runner:
    """`runner("score", "photos", …)` -> Result. Exceptions other than SystemExit fail the test: no tracebacks."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        """Run one command."""
        self._capsys.readouterr()
        # The consoles were made at import; point them at the streams of this test.
        common.out.file, common.err.file = None, None
        with pytest.raises(SystemExit) as exit_:
            run([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        code = exit_.value.code
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)
