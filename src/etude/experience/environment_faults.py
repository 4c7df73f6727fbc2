"""What an environment may answer, and the words for what it may not (faults of environments that others wrote).

Two kinds of check. `misfit` looks at one observation as the environment returned it: its structure, shapes and dtypes.
It runs for each environment and step, so it only compares attributes. `Guard` looks at the numbers of all
environments together: finite, inside of the space's bounds, a few numpy operations per step.
"""

from __future__ import annotations

import numbers
import signal
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from etude.experience.spaces import leaf_values, leaves

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

FAILURES = 3
"""Episodes in a row that one environment may fail before the run stops."""
SAID = ("cost", "subgoal_progress")
"""What of an environment's own infos is passed on: a number of each step (`core.control.Step`)."""
LARGEST = float(np.finfo(np.float32).max)
ROUNDING = 1e-6
"""How far beyond a bound a number may be, relative to the bound: sums and casts round."""
Bound: TypeAlias = float | np.ndarray
"""Of the numbers at a leaf: everywhere the same, or [*shape]."""
FIVE = "(observation, reward, terminated, truncated, info)"


def misfit(space: spaces.Space[Any], value: Any, key: str = "") -> str | None:
    """Why one observation does not have the structure, shape or dtype of its space; None if it has.

    >>> misfit(spaces.Box(-1, 1, (3,)), np.zeros(3))
    'the observation must be a numpy array of float32 (3,), got an array of float64 (3,)'
    """
    if isinstance(space, spaces.Box) and space.shape:
        fits = isinstance(value, np.ndarray) and value.shape == space.shape and _castable(value.dtype, space.dtype)
        return None if fits else _wrong(key, f"a numpy array of {space.dtype} {space.shape}", value)
    if isinstance(space, spaces.Box):
        return None if np.shape(value) == () and isinstance(value, _numbers) else _wrong(key, "a number", value)
    if isinstance(space, spaces.Discrete):
        fits = isinstance(value, (int, np.integer)) or _integers(value, ())
        return None if fits else _wrong(key, "a whole number", value)
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return None if _integers(value, space.shape) else _wrong(key, f"whole numbers {space.shape}", value)
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            return _wrong(key, f"a dictionary with the keys {', '.join(map(repr, space.spaces))}", value)
        reasons = (misfit(s, value[k], f"{key}[{k!r}]") for k, s in space.spaces.items())
        return next(filter(None, reasons), None)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            return _wrong(key, f"a tuple of {len(space.spaces)}", value)
        reasons = (misfit(s, v, f"{key}[{i}]") for i, (s, v) in enumerate(zip(space.spaces, value)))
        return next(filter(None, reasons), None)
    return None


_numbers = (numbers.Number, np.number, np.ndarray)


def _castable(have: np.dtype[Any], want: np.dtype[Any] | None) -> bool:
    return have == want or (want is not None and np.can_cast(have, want))


def _integers(value: object, shape: tuple[int, ...]) -> bool:
    return isinstance(value, np.ndarray) and value.shape == shape and value.dtype.kind in "iub"


def _wrong(key: str, must: str, value: object) -> str:
    return f"the observation{key} must be {must}, got {shown(value)}"


def shown(value: object) -> str:
    """A value as the end of 'got ...'."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    if isinstance(value, Mapping):
        return f"a dictionary with the keys {', '.join(map(repr, value)) or 'none'}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


def wrong_reset(space: spaces.Space[Any], returned: object) -> str | None:
    """Why `reset` returned something that cannot be used; None if it is as it must be."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return f"reset must return (observation, info), got {shown(returned)}"
    return misfit(space, returned[0]) or wrong_info(returned[1])


def wrong_step(space: spaces.Space[Any], returned: object) -> str | None:
    """Why `step` returned something that cannot be used; None if it is as it must be."""
    if not (isinstance(returned, tuple) and len(returned) == 5):
        old = " (that is the interface of the old gym: split done into terminated and truncated)"
        four = isinstance(returned, tuple) and len(returned) == 4
        return f"step must return {FIVE}, got {shown(returned)}{old if four else ''}"
    observation, reward, terminated, truncated, info = returned
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if flag is not True and flag is not False and not isinstance(flag, np.bool_):
            return f"{name} must be True or False, got {shown(flag)}"
    return misfit(space, observation) or wrong_number("the reward", reward) or wrong_info(info)


def wrong_number(name: str, value: Any) -> str | None:
    """Why a reward or a cost is no number; None if it is one. Whether it is finite is seen elsewhere."""
    if isinstance(value, (int, float, np.floating, np.integer, np.bool_)):
        return None
    if np.shape(value) == () and hasattr(value, "__float__"):
        return None
    return f"{name} must be one number, got {shown(value)}"


def quick(space: spaces.Space[Any]) -> Callable[[object], bool]:
    """A fast test of what `step` returned: True if `wrong_step` has nothing to say, False if it may have."""
    if not (isinstance(space, spaces.Box) and space.shape):
        return lambda found: False
    shape, dtype, flags, reals = space.shape, space.dtype, (bool, np.bool_), (float, np.float64, int)

    def usual(answer: object) -> bool:
        if type(answer) is not tuple or len(answer) != 5:
            return False
        observation, reward, terminated, truncated, info = answer
        return (
            type(observation) is np.ndarray and observation.shape == shape and observation.dtype == dtype
            and type(terminated) in flags and type(truncated) in flags and type(reward) in reals and type(info) is dict
            and all(key not in info or type(info[key]) in reals for key in SAID)
        )  # fmt: skip

    return usual


def wrong_info(info: object) -> str | None:
    """Why an info cannot be used."""
    if not isinstance(info, dict):
        return f"info must be a dictionary, got {shown(info)}"
    wrong = (wrong_number(f'info["{key}"]', info[key]) for key in SAID if key in info)
    return next((sentence for sentence in wrong if sentence), None)


class Guard:
    """Are the numbers of a batch of observations finite and inside of their space?

    Args:
        bounds: whether a Box's bounds are taken at their word. Choices (Discrete, ...) always are.
    """

    def __init__(self, space: spaces.Space[Any], bounds: bool = True) -> None:
        self.space = space
        self.limits = [(key, *_limits(leaf, bounds)) for key, leaf in leaves(space)]

    def __call__(self, batch: object) -> tuple[int, str] | None:
        """Row and sentence of the first number that must not be; None if all may be."""
        for (key, low, high), values in zip(self.limits, leaf_values(self.space, batch)):
            if low is not None and high is not None and not _within(values, low, high):
                return self._found(key, low, high, np.asarray(values))
        return None

    def _found(self, key: str, low: Bound, high: Bound, values: np.ndarray) -> tuple[int, str]:
        with np.errstate(invalid="ignore"):
            row, *where = (int(i) for i in np.argwhere(~((values >= low) & (values <= high)))[0])
        value = values[(row, *where)]
        place = f"the observation{key}" + (f"[{', '.join(map(str, where))}]" if where else "")
        if not np.isfinite(value):
            return row, f"{place} is {value}: observations must be finite numbers"
        inside = [np.broadcast_to(x, values.shape)[(row, *where)] for x in (low, high)]
        if abs(float(value)) > LARGEST:
            return row, f"{place} is {value}, which is too large for float32"
        return row, (
            f"{place} is {value}, outside of its space ([{inside[0]:.6g}, {inside[1]:.6g}]): widen the bounds of "
            "observation_space, or clip the observation"
        )


def _within(values: np.ndarray, low: Bound, high: Bound) -> bool:
    """Whether all values lie in [low, high]; False for NaN."""
    if isinstance(low, float):
        return bool(np.max(values) <= high and np.min(values) >= low)
    return bool(((values >= low) & (values <= high)).all())


def _limits(leaf: spaces.Space[Any], bounds: bool) -> tuple[Bound, Bound] | tuple[None, None]:
    """Bounds [*shape] of a leaf's numbers, floats if they are the same everywhere, None for no bounds to check."""
    if isinstance(leaf, spaces.Discrete):
        return float(leaf.start), float(leaf.start + leaf.n - 1)
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.start.astype(np.float64), (leaf.start + leaf.nvec - 1).astype(np.float64)
    if isinstance(leaf, spaces.MultiBinary):
        return 0.0, 1.0
    assert isinstance(leaf, spaces.Box)
    if leaf.dtype.kind != "f":
        info = np.iinfo(leaf.dtype) if leaf.dtype.kind in "iu" else None
        free = info is None or bool((leaf.low == info.min).all() and (leaf.high == info.max).all())
        return (None, None) if free or not bounds else (leaf.low.astype(np.float64), leaf.high.astype(np.float64))
    low, high = (np.clip(x.astype(np.float64), -LARGEST, LARGEST) for x in (leaf.low, leaf.high))
    low, high = low - ROUNDING * np.maximum(1, np.abs(low)), high + ROUNDING * np.maximum(1, np.abs(high))
    low, high = np.maximum(low, -LARGEST), np.minimum(high, LARGEST)
    if not bounds or bool((low == -LARGEST).all() and (high == LARGEST).all()):
        return -LARGEST, LARGEST
    return low, high


def wrong_rewards(rewards: np.ndarray, name: str = "reward") -> tuple[int, str] | None:
    """Row and sentence of the first of the rewards (or costs) [N] that is not finite in float32; None if all are."""
    if bool(rewards.max() <= LARGEST and rewards.min() >= -LARGEST):
        return None
    with np.errstate(invalid="ignore"):
        row = int(np.argwhere(~(np.abs(rewards) <= LARGEST))[0, 0])
    return row, f"the {name} is {rewards[row]}: {name}s must be finite numbers"


STANDARD = sysconfig.get_path("stdlib")
FOREIGN = (str(Path(__file__).parent), str(Path(gymnasium.__file__).parent), "<")


def culprit(error: BaseException) -> str:
    """An exception in one line, with the line of the user's code that it came through last.

    That is the deepest frame outside of installed packages, or else the deepest outside of Gymnasium and this folder.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(FOREIGN)]
    users = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(STANDARD)]
    message = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if not frames:
        return message
    frame = (users or frames)[-1]
    return f"{message} ({frame.filename}, line {frame.lineno}: {(frame.line or '').strip()})"


def noted(infos: Mapping[str, Any], key: str) -> dict[int, Any]:
    """What infos of a vector say under a key, by environment."""
    return {int(i): infos[key][i] for i in np.flatnonzero(infos[f"_{key}"])} if key in infos else {}


def ending(process: BaseProcess) -> str:
    """How a process ended."""
    code = process.exitcode
    if code is not None and code < 0:
        return f"lost its process, which was killed by {signal.Signals(-code).name}"
    return f"lost its process, which ended with exit code {code}"
