"""Everything that logs say of a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.core.errors import DataError
from etude.core.method import Method
from etude.core.population import PerMember
from etude.core.streams import Stream
from etude.evaluation.off_policy.distance import action_distance, beyond_logs
from etude.evaluation.off_policy.episodes import Episodes, Estimate, Numbers
from etude.evaluation.off_policy.fqe import FQE, Counted, FittedQ, Progress, uncounted
from etude.evaluation.off_policy.importance import (
    cumulative_weights,
    per_decision,
    weighted_per_decision,
)  # fmt: skip
from etude.evaluation.off_policy.policies import Judged
from etude.evaluation.off_policy.q_rows import Acts
from etude.experience.logs.table import Logs

USUAL = 0.99
"""The discount of methods that say none."""
FEWEST = 5
"""Episodes without which nothing is estimated."""


@dataclass(frozen=True)
class Judgement:
    """Estimates by name, of the return of so many steps; what has to be known about them, a sentence each."""

    estimates: dict[str, Estimate]
    sentences: list[str]
    horizon: int


def judge(
    judged: Judged, logs: Logs, behaviour: Callable[[], tuple[Numbers, str]], gamma: float, seed: int,
    fqe: FQE | None = None, counted: Counted = uncounted,
) -> Judgement:  # fmt: skip
    """What the policy earns, by all estimators, and how far it leaves the logs.

    Args:
        behaviour: log mu(a|s) [N], and where it comes from; asked only where it is needed.
        counted: shows how far the fits are.

    Raises: DataError for fewer than five episodes, ConfigError for logs of other spaces.
    """
    episodes, stream, fitted = Episodes.of(logs), Stream(seed, ("judge",)), fqe or FQE()
    check_enough(logs)
    on = judged.on(logs, stream.split("actions").torch)
    found = {"logged": replace(per_decision(episodes, np.ones(episodes.rows.shape), gamma), effective=None)}
    sentences = [_what(logs, episodes, gamma)]
    fits = [on.acts]
    if on.logp is not None:
        fits.append(judged.on(logs, stream.split("actions").torch, likeliest=True).acts)
    with counted(len(fits) * fitted.updates) as progress:
        q, *likeliest = [_fit(fitted, episodes, acts, gamma, stream, progress) for acts in fits]
    found["fqe"] = found["fqe/deterministic"] = q.estimate()
    if on.logp is None:
        sentences.append(
            "The policy does one thing in each state, of which numbers have no density: nothing can be weighted by "
            "importance, and FQE alone estimates."
        )
    else:
        logp, said = behaviour()
        weights = cumulative_weights(episodes, on.logp - logp)
        found["importance-sampling"] = per_decision(episodes, weights, gamma)
        found["weighted-importance-sampling"] = weighted_per_decision(episodes, weights, gamma)
        found["doubly-robust"] = q.doubly_robust(weights)
        found["fqe/deterministic"] = likeliest[0].estimate()
        sentences.append(said)
    found["action-distance"] = action_distance(episodes, on.acts)
    found["beyond-logs"] = beyond_logs(episodes, on.acts)
    return Judgement(found, sentences, episodes.horizon)


def check_enough(logs: Logs) -> None:
    """Raise DataError for fewer episodes than an estimate takes."""
    if logs.episodes < FEWEST:
        raise DataError(f"An estimate needs at least {FEWEST} episodes, and {logs.where} gives it {logs.episodes}.")


def _fit(fqe: FQE, episodes: Episodes, acts: Acts, gamma: float, stream: Stream, progress: Progress) -> FittedQ:
    return fqe.fit(episodes, acts, fqe.counts(episodes.count, stream.split("episodes")), gamma, stream, progress)


def _what(logs: Logs, episodes: Episodes, gamma: float) -> str:
    """What is estimated."""
    early = episodes.cut_early()
    cut = (
        "" if not early else f" Cut before that: {early:,} of them, and what they would have earned then is not known."
    )
    return (
        f"Estimated is the return of {episodes.horizon:,} steps, discounted by {gamma:g}, from {episodes.count:,} "
        f"episodes ({len(logs.rewards):,} rows) of {logs.where}.{cut}"
    )


def discount_of(method: Method, member: int) -> float | None:
    """The discount that a member learns with; None where its method says none."""
    gamma = _gamma(method)
    return None if gamma is None else float(gamma.numbers[member] if isinstance(gamma, PerMember) else gamma)


def discounts_of(method: Method) -> set[float]:
    """Those of all members."""
    gamma = _gamma(method)
    return set() if gamma is None else set(map(float, gamma.numbers if isinstance(gamma, PerMember) else [gamma]))


def _gamma(method: Method) -> Any:
    """The field of that name, of the parts that have it."""
    slots = method.slots()
    parts = (getattr(slots.get("sampling"), "horizon", None), slots.get("advantages"))
    return next((gamma for part in parts if (gamma := getattr(part, "gamma", None)) is not None), None)
