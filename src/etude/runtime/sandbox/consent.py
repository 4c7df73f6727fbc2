"""Whether the user allowed to run code without a sandbox."""

from __future__ import annotations

import os

FLAG = "--unsafe-no-sandbox"
UNSAFE = "ETUDE_UNSAFE_NO_SANDBOX"
"""The variable that the flag sets, for this process and those that it starts."""


def unsafe() -> bool:
    """Whether code may be run with the user's own rights."""
    return os.environ.get(UNSAFE) == "1"
