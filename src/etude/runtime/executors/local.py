"""The executor that starts nothing: one object of this process plays the role, for every rank in turn."""

from __future__ import annotations

from typing import Any

from etude.core.errors import ConfigError
from etude.runtime.executors.roles import Before, collected, dispatch_of, divided


class Local:
    """Calls a role in this process, in as many pieces as there are ranks.

    What other executors give their ranks first (`Before`), such as weights, is here already.

    Args:
        role: an object of the role's class.
    """

    def __init__(self, role: object, ranks: int = 1) -> None:
        if ranks < 1:
            raise ConfigError(f"A role has at least one rank, got {ranks}.")
        self.role, self.ranks = role, ranks

    def ask(self, method: str, before: Before | None = None, /, **arguments: Any) -> Any:
        """What the method comes to, piece by piece."""
        how = dispatch_of(type(self.role), method)
        call = getattr(self.role, method)
        return collected(how, [call(**piece) for piece in divided(how, arguments, self.ranks)])

    def close(self) -> None:
        """Nothing was started."""
