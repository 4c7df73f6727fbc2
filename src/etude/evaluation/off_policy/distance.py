"""How far a policy's actions lie from those of logs: what is estimated there, nobody has tried."""

from __future__ import annotations

import numpy as np

from etude.evaluation.off_policy.episodes import Episodes, Estimate, Numbers, student
from etude.evaluation.off_policy.q_rows import Acts

ASKED = 2000
"""Rows, evenly spread, whose nearest ones are looked for."""
RARE = 0.95
"""A step is beyond the logs if it lies farther from all others than this share of logged steps do."""
OTHER_CHOICE = 1e3
"""How far another choice is, beside observations in standard deviations: farther than any of these."""


def action_distance(episodes: Episodes, acts: Acts) -> Estimate:
    """How far what the policy does is from what was done in the same state, means over episodes.

    Of numbers the mean absolute difference, in parts of the range between the bounds; of choices how often the policy
    takes another one.
    """
    apart = (acts.now - acts.actions[:, None]).abs().mean(-1) / 2  # [N, S]
    if acts.choices:
        apart = apart * acts.actions.shape[1]
    rows = (apart * acts.now_chances).sum(1).double().numpy()
    return _of_rows(episodes, rows, np.arange(len(rows)))


def beyond_logs(episodes: Episodes, acts: Acts) -> Estimate:
    """The share of the policy's steps (s, pi(s)) that lie farther from every other logged step than 95% of those do.

    Distances are Euclidean: of observations in standard deviations, of numbers in standard deviations of the logged
    ones; another choice is farther than any. Where the policy does as the logs did, it is 5%.
    """
    from scipy.spatial import cKDTree

    seen = acts.observations.double().numpy()
    done = acts.actions.double().numpy()
    wide = np.full(done.shape[1], OTHER_CHOICE) if acts.choices else 1 / np.maximum(done.std(0), 1e-6)
    seen = (seen - seen.mean(0)) / np.maximum(seen.std(0), 1e-6)
    tree = cKDTree(np.concatenate([seen, done * wide], 1))
    asked = np.unique(np.linspace(0, len(seen) - 1, min(ASKED, len(seen))).astype(int))

    def nearest(actions: Numbers) -> Numbers:
        apart, which = tree.query(np.concatenate([seen[asked], actions * wide], 1), k=2)
        own = which[:, 0] == asked
        found: Numbers = np.where(own, apart[:, 1], apart[:, 0])
        return found

    limit = np.quantile(nearest(done[asked]), RARE)
    now, chances = acts.now.double().numpy()[asked], acts.now_chances.double().numpy()[asked]
    far = np.stack([nearest(now[:, s]) > limit for s in range(now.shape[1])], 1)
    return _of_rows(episodes, (far * chances).sum(1), asked)


def _of_rows(episodes: Episodes, rows: Numbers, index: Numbers) -> Estimate:
    """A mean over rows, with the interval over episodes."""
    which, place = np.unique(episodes.episode[index], return_inverse=True)
    sums, counts = np.bincount(place, rows), np.bincount(place)
    mean = rows.mean()
    return student(float(mean), (sums - counts * mean) * len(which) / len(rows))
