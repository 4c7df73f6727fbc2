"""What is wrong with logs: a sentence for each fault, all of a file at once, found before anything is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    found = [*_endless(steps), *_not_finite(steps)]
    if not found or all(len(fault.episodes) for fault in found):
        found += [*_both(steps), *_short(steps), *_flat(steps), *_indices(steps), *_disagreeing(steps)]
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
    constant = np.flatnonzero(np.ptp(steps.observations, axis=0) == 0)
    if len(constant):
        told = (
            f"Observations never change in column {', '.join(map(str, constant))}: leave it out, or mend what logs it."
        )
        yield Fault(told, meant="constant-observations")
    if np.ptp(steps.rewards) == 0:
        told = f"All rewards are {steps.rewards[0]:g}: there is nothing to prefer."
        yield Fault(told, meant="constant-rewards")


def _indices(steps: Steps) -> Iterator[Fault]:
    """Columns that count rows or episodes."""
    count = len(steps.rewards)
    for column in range(steps.observations.shape[1]):
        values = steps.observations[:, column]
        if count > 2 and (np.diff(values) == 1).all():
            told = f"Observations count the rows in column {column}, which is an index and says nothing: leave it out."
        elif len(steps.ends) > 2 and (values - values[0] == steps.episode).all():
            told = (
                f"Observations count the episodes in column {column}, which is an index and says nothing: leave it out."
            )
        else:
            continue
        yield Fault(told, meant="index")


def _inside(steps: Steps) -> Numbers:
    """Rows whose next row is of the same episode."""
    return np.flatnonzero(~steps.last)


def _disagreeing(steps: Steps) -> Iterator[Fault]:
    if steps.following is None:
        return
    rows = _inside(steps)
    scale = steps.observations.std(0) + 1e-12
    apart = np.abs(steps.following[rows] - steps.observations[rows + 1]) / scale
    wrong = rows[(apart > 1e-3).any(1)]
    if len(wrong):
        told = f"{steps.raw.name('next_observations')} are not what the following row saw in {_rows(steps, wrong)}."
        yield Fault(told, np.unique(steps.episode[wrong]))


def _jumps(steps: Steps) -> Iterator[Fault]:
    rows = _inside(steps)
    if len(rows) < 100:
        return
    scale = steps.observations.std(0) + 1e-12
    size = (np.abs(steps.observations[rows + 1] - steps.observations[rows]) / scale).max(1)
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
        f"These are logs of another environment: they hold {seen.shape[1]} numbers of an observation (from "
        f"{np.nanmin(seen):.4g} to {np.nanmax(seen):.4g}) and {done.shape[1]} of an action (from {np.nanmin(done):.4g} "
        f"to {np.nanmax(done):.4g}), and {spaces.said_by} has {spaces.observation_space} and {spaces.action_space}."
    )


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
    apart = np.abs(steps.actions - middle) / half
    bad = np.flatnonzero((apart > 1 + ROUNDING).any(1))
    bounds = f"{low.tolist()} to {high.tolist()}"
    if len(bad):
        least, most = steps.actions.min(0).tolist(), steps.actions.max(0).tolist()
        told = (
            f"Actions from {least} to {most} leave the bounds of {spaces.said_by}, {bounds}, in {_rows(steps, bad)}: "
            "are they in its units?"
        )
        yield Fault(told, np.unique(steps.episode[bad]))
    elif (apart.max(0) < REACHED).any():
        least, most = steps.actions.min(0).tolist(), steps.actions.max(0).tolist()
        told = f"Actions from {least} to {most} never come near the bounds of {spaces.said_by}, {bounds}: other units?"
        yield Fault(told, meant="small-actions")


def _strange(steps: Steps, spaces: Spaces) -> Iterator[Fault]:
    """Observations that this environment never shows."""
    space = spaces.observation_space
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    slack = ROUNDING * np.where(np.isfinite(high - low), high - low, 1.0)
    bad = ((steps.observations < low - slack) | (steps.observations > high + slack)).any(1)
    if bad.any():
        rows = np.flatnonzero(bad)
        yield Fault(f"{_side_by_side(steps, spaces)} So in {_rows(steps, rows)}.", np.unique(steps.episode[rows]))
