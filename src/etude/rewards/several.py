"""Rewards as users give them: one or several functions, by name or themselves, with weights.

--reward format.py:score=0.2 --reward answers.py:score
reward=["format.py:score=0.2", "answers.py:score"]
reward=[(format_score, 0.2), score]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from etude.core.errors import ConfigError
from etude.core.registry import reference
from etude.core.slots import Reward
from etude.rewards.function import CallableReward, FunctionReward

One: TypeAlias = str | Callable[..., Any] | Reward
Scoring: TypeAlias = One | tuple[One, float] | Sequence[One | tuple[One, float]]
"""A reward as users give it: 'module:function', 'file.py:function', 'file.py:function=WEIGHT', a function over
completions, a part; such a thing with its weight; or several of these."""
WEIGHTED = re.compile(r"(?P<name>.*:[^:=]*)=(?P<weight>[^=]*)")


def reward_parts(given: Scoring) -> tuple[Reward, ...]:
    """The parts for what a user gave; several functions are told apart by columns of their own.

    >>> [(part.function, part.weight, part.column) for part in reward_parts(["a.py:score=0.5", "b.py:score"])]
    [('a.py:score', 0.5, 'a.score'), ('b.py:score', 1.0, 'b.score')]

    Raises: ConfigError for a weight that is no number, or for what has none.
    """
    parts = [_weighted(*pair) for pair in _pairs(given)]
    functions = [p for p in parts if isinstance(p, FunctionReward) and not p.column]
    if len(functions) < 2:
        return tuple(parts)
    labels = dict(zip(map(id, functions), _labels(functions)))
    return tuple(p.replace(column=labels[id(p)]) if id(p) in labels else p for p in parts)


def names(given: Scoring | None) -> list[str]:
    """The functions that were given by name, without their weights.

    >>> names(["a.py:score=0.5", "b.py:score"])
    ['a.py:score', 'b.py:score']
    """
    return [] if given is None else [one for one, _ in _pairs(given) if isinstance(one, str)]


def text(given: Scoring | None) -> str | list[str] | None:
    """What a run records of its rewards; a function that has no name is in angle brackets.

    >>> text([("a.py:score", 0.5), lambda completions: [0.0]])
    ['a.py:score=0.5', '<<lambda>>']
    """
    if given is None:
        return None
    said = [_named(one) + ("" if weight is None else f"={weight!r}") for one, weight in _pairs(given)]
    return said[0] if len(said) == 1 else said


def _named(one: One) -> str:
    return one if isinstance(one, str) else reference(one) or f"<{getattr(one, '__qualname__', one)}>"


def unnamed(given: Scoring | None) -> list[Any] | None:
    """The functions and parts that have no name, in their order."""
    if given is None:
        return None
    return [one for one, _ in _pairs(given) if not isinstance(one, str) and reference(one) is None]


def only_python(said: str | Sequence[str] | None) -> str | None:
    """The first of the rewards that a run recorded which only lived in Python."""
    listed = [said] if isinstance(said, str) else said or []
    return next((one for one in listed if one.startswith("<")), None)


def _pairs(given: Scoring) -> list[tuple[One, float | None]]:
    """Each thing with its weight, None where nothing was said."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (int, float)):
        return [_pair(given)]
    if isinstance(given, Sequence) and not isinstance(given, str):
        if not given:
            raise ConfigError("reward is an empty list: name a function, or leave it out for the task's own reward.")
        return [_pair(one) for one in given]
    return [_pair(given)]


def _pair(one: Any) -> tuple[One, float | None]:
    if isinstance(one, tuple):
        if len(one) != 2 or isinstance(one[1], bool) or not isinstance(one[1], (int, float)):
            raise ConfigError(f"A reward with its weight is a pair, as in (score, 0.2); got {one!r}.")
        return _pair(one[0])[0], float(one[1])
    if isinstance(one, str) and (match := WEIGHTED.fullmatch(one)):
        try:
            return match["name"], float(match["weight"])
        except ValueError:
            raise ConfigError(
                f"The weight of a reward is a number, as in {match['name']}=0.2; got {match['weight']!r}."
            ) from None
    if not isinstance(one, (str, Reward)) and not callable(one):
        raise ConfigError(f"A reward is a function, the name of one, or a part; got {one!r}.")
    return one, None


def _weighted(one: One, weight: float | None) -> Reward:
    part = reward_part(one)
    if weight is None:
        return part
    if "weight" not in part.fields():
        raise ConfigError(f"{type(part).__name__} has no weight: give it as it is, without {weight:g}.")
    return part.replace(weight=weight)


def _labels(parts: Sequence[FunctionReward]) -> list[str]:
    """A name for each function: its own, with that of its file where another one has the same."""
    short = [p.called for p in parts]
    full = [s if short.count(s) == 1 else f"{_home(p)}.{s}" for p, s in zip(parts, short)]
    seen: Counter[str] = Counter()
    for i, label in enumerate(full):
        seen[label] += 1
        full[i] = label if seen[label] == 1 else f"{label}-{seen[label]}"
    return full


def _home(part: FunctionReward) -> str:
    function: Any = part.function
    if isinstance(function, str):
        return Path(function.rpartition(":")[0]).name.removesuffix(".py")
    return str(getattr(function, "__module__", "python"))


def reward_part(function: One) -> Reward:
    """The reward part for a function, by name or itself, or for a part, which is left as it is.

    A function that another process can import runs in a worker; a lambda, or one from a notebook or from the script
    that is running, runs in this process (CallableReward).
    """
    if isinstance(function, Reward):
        return function
    if isinstance(function, str):
        return FunctionReward(function)
    name = reference(function)
    return FunctionReward(name) if name else CallableReward(function)
