"""Whether a method takes the actions that logs hold, and which others do where it does not."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box, Discrete, Space

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.population import Member, Population
from etude.core.registry import compositions, family, files
from etude.core.worlds import World
from etude.experience.logs.table import Logs


def check_takes(method: Method, logs: Logs) -> None:
    """Raise ConfigError for a method that does not act in the space of logs, with its nearest that do: those that share
    a word of its id, or that imitate. What has nothing to do with the kind of actions is raised as it is."""
    space = logs.spaces.action_space
    problem = _problem(method, logs, space)
    if problem is None:
        return
    elsewhere = Box(-1.0, 1.0, (1,)) if isinstance(space, Discrete) else Discrete(2)
    others = [each.id for each in _of_logs() if _problem(each, logs, space) is None]
    if not others or _problem(method, logs, elsewhere) is not None:
        raise problem
    words = set(method.id.split("-")) - {"discrete"}
    near, imitating = ([name for name in others if own & set(name.split("-"))] for own in (words, {"bc"}))
    named = near or imitating
    raise ConfigError(
        f"{method.id} does not take the actions of {logs.where}, {space}: {' and '.join(named)} "
        f"{'does' if len(named) == 1 else 'do'}, and {len(others) - len(named)} more of the family offline (etude "
        "methods)."
    )


def _of_logs() -> list[Method]:
    """The methods of the package that learn from logs of control."""
    names = [name for name in files("methods") if family("methods", name) == "offline"]
    found = [each for name in names for each in compositions(name) if World.CONTROL in each.worlds]
    return [each for each in found if getattr(each.slots().get("experience"), "reads_logs", False)]


def _problem(method: Method, logs: Logs, actions: Space[Any]) -> ConfigError | None:
    """Why its policy, seeing what logs hold, cannot act in a space."""
    from etude.experience.spaces import observation_shape
    from etude.policies.control.replay import acting

    try:
        acting(method, observation_shape(logs.spaces.observation_space), actions, Population([Member(0)]))
    except ConfigError as error:
        return error
    return None
