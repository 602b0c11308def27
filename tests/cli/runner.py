"""Run the command line in this process and catch what it prints."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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
    """`runner("score", "photos", …)` -> Result. An error of ours (exit code 70) fails the test with its traceback."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        """Run one command."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            run([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        code = exit_.value.code
        if code == 70:
            saved = re.search(r"Traceback saved to (.+)\.$", captured.err.strip())
            pytest.fail(captured.err + (Path(saved[1]).read_text(encoding="utf-8") if saved else ""))
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)
