"""What is wrong with logs: a sentence for each fault, all of a file at once, found before anything is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from etude.experience.logs.steps import Steps
from etude.experience.logs.table import Numbers, Spaces

SHOWN = 20
"""Rows, or episodes, of a fault that are named."""
ROUNDING = 1e-4
"""Of the range of an action: beyond the bounds by less is rounding."""
REACHED = 0.02
"""Of the range: actions that never go farther from its middle are in other units."""
JUMP = 20.0
"""A step so many times the usual one is a jump, unless a hundredth of all are as large."""
STATES = 2 / 3
"""Of the whole numbers up to the largest: with so many of them, a column looks like numbers of states."""


@dataclass(frozen=True)
class Fault:
    """Something wrong.

    Args:
        episodes: those that it is in, so that leaving them out mends it; none: it is the file's.
        meant: what `--set task.allow=` calls it, if it can be meant; '' if it cannot.
    """

    sentence: str
    episodes: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))
    meant: str = ""


def faults(steps: Steps, spaces: Spaces | None) -> list[Fault]:
    """Everything that is wrong with the numbers; spaces are the environment's or the format's own, if there are any."""
    endless = list(_endless(steps))
    found = [*endless, *_not_finite(steps), *_both(steps), *_short(steps), *_flat(steps), *_indices(steps)]
    found += _disagreeing(steps, bool(endless))
    if not endless:  # an end that nobody knows of would be a jump, and times may begin anew there
        found += [*_jumps(steps), *_disorder(steps), *_twice(steps)]
    if spaces is not None:
        found += _elsewhere(steps, spaces)
    return found


def _rows(steps: Steps, rows: Numbers) -> str:
    """Rows for people, the first of them, with their episodes."""
    each = ", ".join(f"{r:,} (episode {steps.episode[r]:,})" for r in rows[:SHOWN])
    return f"row{'s' * (len(rows) > 1)} {each}{f' and {len(rows) - SHOWN:,} more' if len(rows) > SHOWN else ''}"


def _episodes(which: Numbers) -> str:
    """Episodes for people, the first of them."""
    each = ", ".join(f"{e:,}" for e in which[:SHOWN])
    return f"episode{'s' * (len(which) > 1)} {each}{f' and {len(which) - SHOWN:,} more' if len(which) > SHOWN else ''}"


def _endless(steps: Steps) -> Iterator[Fault]:
    if len(steps.ends) == 1 and steps.cut:
        yield Fault(
            "No row ends an episode: there are no terminals and no timeouts. Give a column that says where one ends "
            "(terminals, timeouts, or --columns done=NAME or episode=NAME), or --set task.episode_length=N."
        )


def _not_finite(steps: Steps) -> Iterator[Fault]:
    columns = {"observations": steps.observations, "actions": steps.actions, "rewards": steps.rewards,
               "terminals": steps.terminals, "timeouts": steps.timeouts}  # fmt: skip
    if steps.logp is not None:
        columns["behaviour_logp"] = steps.logp
    if steps.following is not None:
        columns["next_observations"] = steps.following
    for name, values in columns.items():
        bad = ~np.isfinite(values)
        each = bad if bad.ndim == 1 else bad.any(1)
        if each.any():
            rows = np.flatnonzero(each)
            where = "" if bad.ndim == 1 else f" (column {', '.join(map(str, np.flatnonzero(bad.any(0))))})"
            told = f"{steps.raw.name(name)}{where} hold NaN or infinity in {_rows(steps, rows)}."
            yield Fault(told, np.unique(steps.episode[rows]))


# Numbers that are not finite are a fault of their own, and hide no other


def _limits(values: Numbers) -> tuple[Numbers, Numbers]:
    """[D] the least and the largest finite number of each column; inf and -inf where there is none."""
    known = np.isfinite(values)
    return values.min(0, where=known, initial=np.inf), values.max(0, where=known, initial=-np.inf)


def _deviation(values: Numbers) -> Numbers:
    """[D] of the finite numbers of each column, a little above 0."""
    known = np.isfinite(values)
    count = np.maximum(known.sum(0), 1)
    squares = values - values.sum(0, where=known) / count
    squares *= squares
    found: Numbers = np.sqrt(squares.sum(0, where=known) / count) + 1e-12
    return found


def _apart(one: Numbers, other: Numbers) -> Numbers:
    """Absolute differences, NaN where one of two numbers is not finite: no comparison holds of it."""
    found: Numbers = np.full(np.broadcast_shapes(one.shape, other.shape), np.nan)
    np.subtract(one, other, out=found, where=np.isfinite(one) & np.isfinite(other))
    np.abs(found, out=found)
    return found


def _counts(values: Numbers, numbers: Numbers) -> bool:
    """Whether values are these numbers, from wherever they begin."""
    begins = (values - numbers)[np.isfinite(values)]
    return len(begins) > 2 and bool((begins == begins[0]).all())


def _both(steps: Steps) -> Iterator[Fault]:
    rows = np.flatnonzero((steps.terminals > 0) & (steps.timeouts > 0))
    if len(rows):
        told = f"A row is both a terminal and a timeout, of which it can be one: {_rows(steps, rows)}."
        yield Fault(told, np.unique(steps.episode[rows]), "both-ends")


def _short(steps: Steps) -> Iterator[Fault]:
    which = np.flatnonzero(steps.lengths == 1)
    if len(which):
        yield Fault(f"Episodes of one step: {_episodes(which)}.", which, "one-step-episodes")


def _flat(steps: Steps) -> Iterator[Fault]:
    low, high = _limits(steps.observations)
    constant = np.flatnonzero(low == high)
    if len(constant):
        told = (
            f"Observations never change in column {', '.join(map(str, constant))}: leave it out, or mend what logs it."
        )
        yield Fault(told, meant="constant-observations")
    low, high = _limits(steps.rewards)
    if low == high:
        yield Fault(f"All rewards are {low:g}: there is nothing to prefer.", meant="constant-rewards")


def _indices(steps: Steps) -> Iterator[Fault]:
    """Columns that count rows or episodes, and one that looks like the number of a state."""
    for column in range(steps.observations.shape[1]):
        values = steps.observations[:, column]
        if _counts(values, np.arange(len(values))):
            told = f"count the rows in column {column}, which is an index and says nothing: leave it out."
        elif len(steps.ends) > 2 and _counts(values, steps.episode):
            told = f"count the episodes in column {column}, which is an index and says nothing: leave it out."
        elif _are_states(steps):
            told = (
                f"are whole numbers from {values.min():g} to {values.max():g} in one column, which looks like the "
                "number of a state, and a network would take it for a size: give a column of 0 and 1 for each state "
                "(one-hot)."
            )
        else:
            continue
        yield Fault(f"Observations {told}", meant="index")


def _are_states(steps: Steps) -> bool:
    """Whether observations are one column of integers that come again and leave out few from 0, or 1, to the largest.

    What is measured seldom does: a room is never at 1 degree.
    """
    if steps.raw.columns["observations"].dtype.kind not in "iu" or steps.observations.shape[1] != 1:
        return False
    seen = np.unique(steps.observations)
    again = 3 <= len(seen) <= len(steps.observations) / 2
    return again and seen[0] in (0, 1) and len(seen) >= STATES * (seen[-1] - seen[0] + 1)


def _inside(steps: Steps) -> Numbers:
    """Rows whose next row is of the same episode."""
    return np.flatnonzero(~steps.last)


def _disagreeing(steps: Steps, endless: bool) -> Iterator[Fault]:
    if steps.following is None:
        return
    rows = _inside(steps)
    apart = _apart(steps.following[rows], steps.observations[rows + 1]) / _deviation(steps.observations)
    wrong = rows[(apart > 1e-3).any(1)]
    if len(wrong):
        told = f"{steps.raw.name('next_observations')} are not what the following row saw in {_rows(steps, wrong)}"
        yield Fault(f"{told}{', as where an episode ends' * endless}.", np.unique(steps.episode[wrong]))


def _jumps(steps: Steps) -> Iterator[Fault]:
    rows = _inside(steps)
    apart = _apart(steps.observations[rows + 1], steps.observations[rows]) / _deviation(steps.observations)
    size = np.fmax.reduce(apart, axis=1)  # of the columns that are known
    rows, size = rows[np.isfinite(size)], size[np.isfinite(size)]
    if len(rows) < 100:
        return
    usual, rare = np.median(size), np.quantile(size, 0.99)
    far = rows[(size > JUMP * usual) & (size > JUMP / 4 * rare)]
    if len(far):
        told = (
            f"Observations jump inside of an episode, by up to {size.max() / max(usual, 1e-12):.0f} times the usual "
            f"step, after {_rows(steps, far)}: an end may be missing there."
        )
        yield Fault(told, np.unique(steps.episode[far]), "jumps")


def _disorder(steps: Steps) -> Iterator[Fault]:
    times = steps.raw.columns.get("times")
    if times is None or len(times) != len(steps.rewards):
        return
    rows = _inside(steps)
    wrong = rows[times[rows + 1] <= times[rows]]
    if len(wrong):
        told = f"Times in {steps.raw.name('times')} do not go on after {_rows(steps, wrong)}: sort the file."
        yield Fault(told, np.unique(steps.episode[wrong]))


def _twice(steps: Steps) -> Iterator[Fault]:
    seen: dict[bytes, int] = {}
    again: list[int] = []
    for number, (start, end) in enumerate(zip(steps.starts, steps.ends)):
        place = slice(start, end + 1)
        columns = (steps.observations[place], steps.actions[place], steps.rewards[place])
        key = hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in columns)).digest()
        if seen.setdefault(key, number) != number:
            again.append(number)
    if again:
        yield Fault(f"Episodes that are there already: {_episodes(np.array(again))}.", np.array(again), "duplicates")


# What an environment shows and takes


def _elsewhere(steps: Steps, spaces: Spaces) -> list[Fault]:
    """What does not agree with spaces: first their shapes, then their ranges."""
    from etude.experience.logs.steps import choices_of

    seen, done = spaces.observation_space, spaces.action_space
    width = int(np.prod(seen.shape)) if seen.shape is not None else -1
    numbers = 1 if choices_of(done) else int(np.prod(done.shape))
    if width != steps.observations.shape[1] or numbers != steps.actions.shape[1]:
        return [Fault(_side_by_side(steps, spaces))]
    return _of_choices(steps, done) if choices_of(done) else [*_beyond(steps, spaces), *_strange(steps, spaces)]


def _side_by_side(steps: Steps, spaces: Spaces) -> str:
    seen, done = steps.observations, steps.actions
    return (
        f"These are logs of another environment: they hold {seen.shape[1]} numbers of an observation ({_range(seen)}) "
        f"and {done.shape[1]} of an action ({_range(done)}), and {spaces.said_by} has {spaces.observation_space} and "
        f"{spaces.action_space}."
    )


def _range(values: Numbers) -> str:
    low, high = _limits(values)
    return f"from {low.min():.4g} to {high.max():.4g}"


def _of_choices(steps: Steps, space: Any) -> list[Fault]:
    values = steps.actions[:, 0]
    low, high = int(space.start), int(space.start + space.n - 1)
    bad = np.flatnonzero(~((values == np.round(values)) & (values >= low) & (values <= high)))
    if not len(bad):
        return []
    told = f"Actions are no choice from {low} to {high} in {_rows(steps, bad)}."
    return [Fault(told, np.unique(steps.episode[bad]))]


def _beyond(steps: Steps, spaces: Spaces) -> Iterator[Fault]:
    """Actions outside of the bounds by more than rounding, or that never come near them."""
    space = spaces.action_space
    if not space.is_bounded():
        return
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    half, middle = (high - low) / 2, (high + low) / 2
    apart = _apart(steps.actions, middle) / half
    least, most = (x.tolist() for x in _limits(steps.actions))
    bad = np.flatnonzero((apart > 1 + ROUNDING).any(1))
    bounds = f"{low.tolist()} to {high.tolist()}"
    if len(bad):
        told = (
            f"Actions from {least} to {most} leave the bounds of {spaces.said_by}, {bounds}, in {_rows(steps, bad)}: "
            "are they in its units?"
        )
        yield Fault(told, np.unique(steps.episode[bad]))
    elif (np.fmax.reduce(apart) < REACHED).any():
        told = f"Actions from {least} to {most} never come near the bounds of {spaces.said_by}, {bounds}: other units?"
        yield Fault(told, meant="small-actions")


def _strange(steps: Steps, spaces: Spaces) -> Iterator[Fault]:
    """Observations that this environment never shows."""
    space = spaces.observation_space
    if isinstance(space, Discrete):
        return
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    slack = ROUNDING * np.where(np.isfinite(high - low), high - low, 1.0)
    bad = ((steps.observations < low - slack) | (steps.observations > high + slack)).any(1)
    if bad.any():
        rows = np.flatnonzero(bad)
        yield Fault(f"{_side_by_side(steps, spaces)} So in {_rows(steps, rows)}.", np.unique(steps.episode[rows]))
