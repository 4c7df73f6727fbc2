"""Four ways from a policy that thinks long to one that answers short (Kimi k1.5, arXiv:2501.12599, section 2.4).

average_weights     (a) between the long and a short policy
shortest_correct    (b) data for `sft`: of each problem's completions the shortest right one
length_pairs        (c) data for `dpo`: the shortest right one against longer ones
second_phase        (d) the method again, with the length reward from the start and a smaller limit
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from etude.core.complete import complete_token
from etude.core.episodes import Episode, Problem
from etude.core.method import Method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy

LONGER = 1.5
"""How many times longer than the chosen answer a right one has to be to be rejected."""


@torch.no_grad()
def average_weights(long: Path | str, short: Path | str, out: Path | str, share: float = 0.5) -> Path:
    """Save (1 - share) long + share short of two policies of the same shape, given as folders; returns `out`."""
    from etude.policies.language import LanguagePolicy

    mine, other = (LanguagePolicy.load(str(folder), device="cpu") for folder in (long, short))
    for p, q in zip(mine.model.parameters(), other.model.parameters(), strict=True):
        p.lerp_(q, share)
    mine.save(Path(out))
    return Path(out)


def shortest_correct(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], *, samples: int = 8, seed: int = 0
) -> list[Problem]:  # fmt: skip
    """Problems whose worked answer is the shortest right one of `samples` completions; those without are left out."""
    shortest = []
    for problem, episodes in zip(problems, sampled(policy, task, problems, samples, seed)):
        if right := [e for e in episodes if task.success(e)]:
            best = min(right, key=lambda e: e.action_count)
            shortest.append(dataclasses.replace(problem, info={**problem.info, "demonstration": best.completion}))
    return shortest


def length_pairs(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], *, samples: int = 8, seed: int = 0
) -> list[Problem]:  # fmt: skip
    """Pairs of the shortest right completion (chosen) and each longer one that is wrong or 1.5 times as long."""
    pairs = []
    for problem, episodes in zip(problems, sampled(policy, task, problems, samples, seed)):
        right = [e for e in episodes if task.success(e)]
        if not right:
            continue
        best = min(right, key=lambda e: e.action_count)
        for number, e in enumerate(episodes):
            if rejected(e, best, bool(task.success(e))):
                info = {**problem.info, "chosen": best.completion, "rejected": e.completion}
                pairs.append(dataclasses.replace(problem, id=f"{problem.id}/{number}", info=info))
    return pairs


def rejected(episode: Episode, best: Episode, right: bool) -> bool:
    """Whether a completion loses against the shortest right one for its length."""
    size, least = episode.action_count, best.action_count
    return size > LONGER * least if right else size > least


def sampled(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], samples: int, seed: int
) -> list[list[Episode]]:
    """`samples` completions of each problem."""
    how = Groups()
    context = Context(task, policy, Stream(seed).split("short"), max_tokens=task.max_tokens)
    episodes = rollout(fresh(problems, samples, context.stream), context, how.sampling(context))
    return [episodes[i : i + samples] for i in range(0, len(episodes), samples)]


def second_phase(method: Method, max_tokens: int) -> Method:
    """The method with a smaller limit of completions, and length rewarded from its first step on."""
    from etude.methods.rlvr.kimi_k1_5 import LengthReward

    complete = complete_token(method)
    rewards = [p for p in complete.rewards if not isinstance(p, LengthReward)]
    return method.replace(
        experience=complete.experience.replace(max_tokens=max_tokens), rewards=(*rewards, LengthReward(start=0.0))
    )
