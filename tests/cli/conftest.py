"""The command line, called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Answer, Cli


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run `etude ARGS` in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*args: object) -> Answer:
        from etude.cli import main

        monkeypatch.setattr(sys, "argv", ["etude", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as exit:
            code = int(exit.code or 0)
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return run


@pytest.fixture
def forget() -> Callable[[str], None]:
    """Forget an imported module, as a new process would have."""
    return lambda name: (sys.modules.pop(name, None), None)[1]
