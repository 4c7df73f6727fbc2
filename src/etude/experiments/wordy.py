"""What experiments on wordy sums share."""

from __future__ import annotations

import numpy as np

from etude.experience.groups import Groups
from etude.experiments.arms import START
from etude.tasks.language.wordy import Wordy

WARM = 200
"""Supervised steps after which a policy is as wordy as the worked answers."""


def tokens_written(folder: str, task: Wordy, percentile: float, temperature: float = 1.0) -> int:
    """A percentile of the lengths that the policy in a folder writes on training problems, if nothing cuts them."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load(folder, device="cpu")
    how = Groups(temperature=temperature)
    looked = evaluate_split(policy, task, "train", problems=200, samples=2, seed=START, experience=how)
    return int(np.percentile([e.action_count for row in looked.episodes for e in row], percentile))
