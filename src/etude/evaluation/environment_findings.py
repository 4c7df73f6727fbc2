"""What can be found out about an environment, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.experience.spaces import action_size, is_text, leaf_values, leaves, observation_shape
from etude.policies.control.leaves import Leaf, Leaves

SHORTEST_LIMIT = 50
"""Episodes that always end after the same number of steps, at least this many, end because of a time limit."""

Level = Literal["fault", "warning", "fact"]


@dataclass(frozen=True)
class Finding:
    """One thing about an environment: a fault stops training, a warning may cost returns, a fact is only told.

    Args:
        about: 'spaces', 'observation', 'reward', 'seeding', ...: what it is about.
        sentence: what, where, and what to do.
    """

    level: Level
    about: str
    sentence: str


@dataclass
class Episode:
    """How one ended."""

    length: int
    terminated: bool
    truncated: bool


def of_spaces(observations: spaces.Space[Any], actions: spaces.Space[Any]) -> Iterator[Finding]:
    """What policies say to the spaces."""
    from etude.policies.control.distributions import distribution

    try:
        shape = observation_shape(observations)
    except ConfigError as error:
        yield Finding("fault", "spaces", str(error))
        return
    try:
        distribution(actions)
    except ConfigError as error:
        yield Finding("fault", "spaces", str(error))
        return
    yield Finding("fact", "spaces", f"observations {shape} from {_short(observations)}; actions {_short(actions)}.")
    yield from of_leaves(observations, shape)
    for key, leaf in leaves(actions):
        if isinstance(leaf, spaces.Box) and (odd := _odd_range(leaf)):
            yield Finding(
                "warning", "spaces",
                f"Actions{key} {odd}, and a new policy's have mean 0 and standard deviation 1: "
                "gymnasium.wrappers.RescaleAction(env, -1, 1) makes them fit.",
            )  # fmt: skip


def of_leaves(observations: spaces.Space[Any], shape: tuple[int, ...]) -> Iterator[Finding]:
    """What will be done with each leaf of observations that are more than a vector."""
    for key, space in leaves(observations):
        if is_text(space):
            yield Finding(
                "warning", "observation",
                f"observation{key} is text, which no policy here reads: it is left out. If episodes differ in it, say "
                "it in numbers.",
            )  # fmt: skip
    for leaf in shape.leaves if isinstance(shape, Leaves) else ():
        yield Finding("fact", "observation", f"observation{leaf.key}: {_use(leaf)}.")


def _use(leaf: Leaf) -> str:
    """What becomes of a leaf, by the networks that a run takes where nothing else is said."""
    size = f"{leaf.size} number{'s' if leaf.size > 1 else ''}"
    match leaf.kind:
        case "image":
            bounds = f"[{leaf.low:g}, {leaf.high:g}] scaled to [0, 1]"
            if leaf.high <= leaf.low:
                bounds = "as it is, since its space has no bounds"
            return f"an image of {' x '.join(map(str, leaf.shape))} (channels, height, width), {bounds}, through a CNN"
        case "vector":
            return f"{size}, normalised, through a perceptron"
        case "choice":
            return f"choices one-hot, {size}, through a perceptron"
    return f"which of the {leaf.size} options are allowed; others get probability 0, and the policy does not see it"


def _odd_range(box: spaces.Box) -> str:
    """What is odd about the range of actions; nothing if a standard normal fits into it."""
    low, high = float(np.min(box.low)), float(np.max(box.high))
    if not np.isfinite([low, high]).all():
        return ""
    if np.any((box.low > 0) | (box.high < 0)) or np.any(box.high - box.low > 20) or np.any(box.high - box.low < 0.2):
        return f"range from {low:g} to {high:g}"
    return ""


def of_ends(episodes: list[Episode], played: int) -> Iterator[Finding]:
    """Whether and how episodes end."""
    if not episodes:
        yield Finding(
            "warning", "ends",
            f"No episode ended in {played:,} steps: set terminated or truncated, or wrap it in "
            "gymnasium.wrappers.TimeLimit; returns are only known of episodes that end.",
        )  # fmt: skip
        return
    lengths = [e.length for e in episodes]
    span = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    ended = sum(e.terminated for e in episodes)
    cut = sum(e.truncated for e in episodes)
    yield Finding(
        "fact", "ends", f"{len(episodes)} episodes of {span} steps; {ended} terminated, {cut} truncated.",
    )  # fmt: skip
    if limit := _likely_limit(episodes):
        every = f"Every episode terminated after exactly {limit} steps"
        if ended < len(episodes) or min(lengths) < limit:
            number = sum(e.length == limit for e in episodes)
            every = (
                f"{number} of {len(episodes)} episodes terminated after exactly {limit} steps, the most that any took"
            )
        yield Finding(
            "warning", "ends",
            f"{every}, which looks like a time limit: report it as truncated, or the values of states before it are "
            "learned wrong.",
        )  # fmt: skip
    elif len(episodes) >= 3 and ended == cut == len(episodes):
        yield Finding(
            "warning", "ends",
            "terminated and truncated are always set together: terminated is for ends after which nothing follows, "
            "truncated for a time limit.",
        )  # fmt: skip


def _likely_limit(episodes: list[Episode]) -> int:
    """Length at which so many episodes terminated, and none went on, that it looks like a time limit; 0 for none.

    At least three, and five times as many as at a step of the fifth of the length before it.
    """
    longest = max(e.length for e in episodes)
    last = [e for e in episodes if e.length == longest]
    before = sum(longest * 0.8 <= e.length < longest for e in episodes)
    suspect = longest >= SHORTEST_LIMIT and len(last) >= 3 and all(e.terminated and not e.truncated for e in last)
    return longest if suspect and len(last) >= 5 * before / (0.2 * longest) else 0


def random_actions(space: spaces.Space[Any]) -> Iterator[Any]:
    """The corners of the space, where it has any, then random actions: the same ones each time."""
    space = deepcopy(space)
    space.seed(0)
    if isinstance(space, spaces.Box) and np.isfinite(space.low).all() and np.isfinite(space.high).all():
        yield from (space.low.copy(), space.high.copy())
    while True:
        yield space.sample()


def flat_actions(space: spaces.Space[Any], members: int, count: int) -> Iterator[np.ndarray]:
    """Random actions [M, E, A] as policies give them; member m's do not depend on M."""
    size, counts = action_size(space), np.array([n for _, leaf in leaves(space) for n in _choices(leaf)])
    streams = [Stream(m).split("check", "actions").numpy for m in range(members)]
    while True:
        normal = np.stack([g.normal(size=(count, size)) for g in streams])
        uniform = np.stack([g.random((count, size)) for g in streams])
        yield np.where(counts > 0, np.floor(uniform * np.maximum(counts, 1)), normal).astype(np.float32)


def _choices(leaf: spaces.Space[Any]) -> list[int]:
    """Options of each number of a flat action; 0 where it is continuous."""
    match leaf:
        case spaces.Discrete():
            return [int(leaf.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in leaf.nvec.flatten()]
        case spaces.MultiBinary():
            return [2] * action_size(leaf)
    return [0] * action_size(leaf)


def same(one: object, two: object, space: spaces.Space[Any]) -> bool:
    """Whether two observations are equal."""
    return all(
        np.array_equal(a, b, equal_nan=_real(a)) for a, b in zip(leaf_values(space, one), leaf_values(space, two))
    )


def _real(value: object) -> bool:
    return np.asarray(value).dtype.kind in "fc"


def difference(one: list[Any], two: list[Any], space: spaces.Space[Any]) -> tuple[int, str] | None:
    """The first step at which two traces differ, and in what; None if they are equal."""
    for t, (a, b) in enumerate(zip(one, two)):
        for (key, _), x, y in zip(leaves(space), leaf_values(space, a[0]), leaf_values(space, b[0])):
            if not np.array_equal(x, y, equal_nan=_real(x)):
                return t, f"observation{key}"
        for i, name in enumerate(("reward", "terminated", "truncated"), 1):
            if a[i] != b[i]:
                return t, f"{name} ({a[i]} and {b[i]})"
    return None


def plain(action: object) -> str:
    """An action as part of a sentence."""
    text = " ".join(str(action.tolist() if hasattr(action, "tolist") else action).split())
    return text if len(text) < 80 else text[:77] + "..."


def _short(space: spaces.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) < 100 else text[:97] + "..."


def capital(sentence: str) -> str:
    """With a capital letter."""
    return sentence[:1].upper() + sentence[1:]


def clean(text: str) -> str:
    """A warning of Gymnasium without its colours and label."""
    for mark in ("\x1b[33m", "\x1b[31m", "\x1b[0m", "WARN: "):
        text = text.replace(mark, "")
    return " ".join(text.split())
