"""A role in a worker process: messages name one of its methods, and its arguments."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from etude.core import errors
from etude.core.errors import EtudeError
from etude.runtime.serving import load

SENT = {
    kind.__name__: kind
    for kind in (
        errors.ConfigError, errors.DataError, errors.RewardError, errors.EnvironmentFault, errors.WorkerError,
        errors.InvariantError, errors.NonFiniteError, errors.CheckpointError, errors.RunFolderError, EtudeError,
    )
}  # fmt: skip
"""Errors that are raised again on the other side, by name; of others, the nearest of their bases."""


class RoleServer:
    """Answers with what a method `returned`, or the name and text of the error of etude's own that it `raised`.

    What was warned of on the way is in the answer's `warned`, once each.

    Args:
        role: 'module:name' of what makes the role.
        arguments: what that is called with.
    """

    greeting = None

    def __init__(self, role: str, arguments: Mapping[str, Any]) -> None:
        self.role: Any = load(role)(**arguments)

    def __call__(self, message: Mapping[str, Any]) -> dict[str, Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                answer = {"returned": getattr(self.role, message["method"])(**message["arguments"])}
            except EtudeError as error:
                name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in SENT)
                answer = {"raised": [name, str(error)]}
        told = [w for w in caught if issubclass(w.category, UserWarning)]
        return {**answer, "warned": list(dict.fromkeys(str(w.message) for w in told))}


def received(answer: Mapping[str, Any]) -> Any:
    """What a method returned in its process. Raises what it raised there, warns of what it warned of."""
    for sentence in answer["warned"]:
        warnings.warn(sentence, stacklevel=2)
    if "raised" in answer:
        name, text = answer["raised"]
        raise SENT[name](text)
    return answer["returned"]
