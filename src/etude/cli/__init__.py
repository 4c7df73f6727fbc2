"""The command line: one file per verb, loaded when it is called."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Entry point of `etude`: errors that etude raises on purpose are sentences, not tracebacks."""
    from etude.cli.app import app
    from etude.core.errors import EtudeError

    shown = warnings.formatwarning
    warnings.formatwarning = _sentence
    try:
        try:
            app(_without_consent(sys.argv[1:]))
        finally:
            sys.stdout.flush()  # a closed pipe is met here, not at exit
    except EtudeError as error:
        print(f"etude: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # `etude ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at exit
        raise SystemExit(141) from None
    except KeyboardInterrupt:
        print("etude: Stopped by Ctrl-C.", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        warnings.formatwarning = shown


def _sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of ours as its sentence alone; those of other libraries with the line that they come from."""
    if category is UserWarning and Path(__file__).parents[1] in Path(filename).parents:
        return f"etude: warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _without_consent(arguments: list[str]) -> list[str]:
    """The arguments without `--unsafe-no-sandbox`, which any verb takes, and which only a person at a prompt can say.

    It is no option of a run: no file can hold it, and a run that is resumed is told again.
    """
    from etude.runtime.sandbox.consent import FLAG, UNSAFE

    if FLAG in arguments:
        os.environ[UNSAFE] = "1"
        print("etude: Code is run with your own rights, in no sandbox.", file=sys.stderr)
    return [argument for argument in arguments if argument != FLAG]
