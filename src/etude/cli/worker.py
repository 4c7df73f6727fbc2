"""`python -m etude.cli.worker`: does one command after another, so that short runs need not each wait for the imports.

Standard input has a line for each: `{"arguments": [...], "log": path}`. What the command prints goes to its log; its
exit status comes back as a line. A command that was interrupted is the last one.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def serve() -> None:
    """Work until there is no further line."""
    answers = os.fdopen(os.dup(1), "w")
    try:
        for line in sys.stdin:
            order = json.loads(line)
            status = run(order["arguments"], order["log"])
            print(status, file=answers, flush=True)
            if status in (130, 143):
                return
    except (KeyboardInterrupt, BrokenPipeError):
        return


def run(arguments: Sequence[str], log: str) -> int:
    """Exit status of `etude ARGUMENTS`, with what it printed in `log`."""
    from etude.cli import main

    sys.argv = ["etude", *arguments]
    with Path(log).open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        main()
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()  # a model is in cycles: the next one should have its memory


if __name__ == "__main__":
    serve()
