"""The executor that starts nothing: one object of this process plays the role, for every rank in turn."""

from __future__ import annotations

from typing import Any

from etude.core.errors import ConfigError
from etude.runtime.executors.lines import ready
from etude.runtime.executors.roles import Answer, Before, collected, dispatch_of, divided


class Local:
    """Calls a role in this process, in as many pieces as there are ranks.

    Args:
        role: an object of the role's class.
        apart: whether it has nothing of what this process has, and must be given what other executors give their ranks
            first (`Before`), such as weights.
    """

    def __init__(self, role: object, ranks: int = 1, apart: bool = False) -> None:
        if ranks < 1:
            raise ConfigError(f"A role has at least one rank, got {ranks}.")
        self.role, self.ranks, self.apart = role, ranks, apart
        self._prepared: str | None = None

    def ask(self, method: str, before: Before | None = None, /, **arguments: Any) -> Any:
        """What the method comes to, piece by piece."""
        how = dispatch_of(type(self.role), method)
        if before is not None and self.apart and self._prepared != before.stamp:
            with before.make() as given:
                getattr(self.role, before.method)(**given)
            self._prepared = before.stamp
        call = getattr(self.role, method)
        return collected(how, [call(**piece) for piece in divided(how, arguments, self.ranks)])

    def begin(self, method: str, before: Before | None = None, /, **arguments: Any) -> Answer:
        """The same: the answer is there at once."""
        return ready(self.ask(method, before, **arguments))

    def close(self) -> None:
        """Nothing was started."""
