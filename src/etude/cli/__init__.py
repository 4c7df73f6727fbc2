"""The command line: one file per verb, loaded when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `etude`: errors that etude raises on purpose are sentences, not tracebacks."""
    from etude.cli.app import app
    from etude.core.errors import EtudeError

    try:
        app(sys.argv[1:])
    except EtudeError as error:
        print(f"etude: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("etude: Stopped by Ctrl-C.", file=sys.stderr)
        raise SystemExit(130) from None
