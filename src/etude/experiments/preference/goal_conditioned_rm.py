"""The claim of the goal-conditioned reward model: right from wrong answers, on the way too, against a plain one.

Both learn from the same pairs for as many steps. They are asked about answers that a policy sampled: a value is read at
the end, and after 25, 50 and 75 % of the tokens. A vote of the policy is taken on the same problems with the filter and
without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from etude.core.episodes import Episode, Problem
from etude.core.rows import to_batch
from etude.evaluation.pairs import Pair
from etude.experiments.arms import Training, pairs, run, started, variant
from etude.tasks.language.sums import Sums

TASK, MODEL, WARM, STEPS, POOL = Sums(terms=(4,)), "tiny", 90, 250, 4000
CHANGES = {"problems": 64, "optimizer.lr": 1e-3}
ASKED, OTHERS, SAMPLES, LOST, SKIP = 200, 100, 16, 0.1, 2
"""Problems of the test, others that the threshold is found on, samples of each, the share of right answers that the
threshold costs, and tokens that are not looked at: answers are of seven or eight."""
SHARES = {"auroc": 1.0, "auroc at three quarters": 0.75, "auroc half way": 0.5, "auroc at a quarter": 0.25}


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """AUROC of the value by share of the answer; tokens and accuracy of votes."""
    own = {
        "goal": variant("goal-conditioned-rm", {**CHANGES, **(arm or {})}),
        "plain": variant("reward-model", {**CHANGES, **(baseline or {})}),
    }
    with (
        started(TASK, steps=WARM, start=MODEL, changes={"optimizer.lr": 3e-4}) as first,
        TemporaryDirectory() as folder,
    ):
        kept = {(name, seed): str(Path(folder) / f"{name}-{seed}") for name in own for seed in seeds}
        pool = traces()
        run(Training(n, m, TASK, s, STEPS, MODEL, pool, kept[n, s], problems=1) for s in seeds for n, m in own.items())
        found = {key: judged(first.folder, scorer) for key, scorer in kept.items()}
        votes = [voted(first.folder, kept["goal", seed], seed) for seed in seeds]
    arms = [{name: [found[which, seed][name] for seed in seeds] for name in SHARES} for which in own]
    for place, figures in enumerate(arms):
        for name in ("tokens", "vote"):
            figures[name] = [vote[name][place] for vote in votes]
    return pairs(seeds, *arms, start={"auroc": [0.5] * len(seeds)})  # what a value that says nothing comes to


def traces() -> list[Problem]:
    """Sums with a right solution and one with a wrong running total."""
    made, pool = [], TASK.problems("train")
    for i in range(POOL):
        (right, _), (wrong, _) = TASK.given_solutions(pool[i])
        info = {**pool[i].info, "chosen": ",".join(right), "rejected": ",".join(wrong)}
        made.append(replace(pool[i], info=info))
    return made


def judged(policy: str, scorer: str) -> dict[str, float]:
    """AUROC of a reward model's values of sampled answers, by how much of them it has seen."""
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    looked = evaluate_split(LanguagePolicy.load(policy, device="cpu"), TASK, "test", problems=ASKED, samples=SAMPLES)
    said = [episode for row in looked.episodes for episode in row]
    values = seen(LanguagePolicy.load(scorer, device="cpu"), said)
    return {name: auroc(looked.correct.ravel(), values[share]) for name, share in SHARES.items()}


@torch.no_grad()
def seen(scorer: Any, episodes: Sequence[Episode]) -> dict[float, NDArray[np.float64]]:
    """A reward model's values [N] of the first share of each answer, rounded up."""
    from etude.policies.micro_batches import micro_batches
    from etude.rewards.model import TOKENS

    batch = to_batch(episodes, scorer.tokenizer.pad_token_id, 1.0, scorer.device)
    found = {share: np.zeros(len(batch)) for share in SHARES.values()}
    for piece in micro_batches(scorer, batch, TOKENS):
        rows = batch.rows(piece, trim=True)
        values = scorer.evaluate(rows, {"values"}).values
        for place, own, mask in zip(piece.tolist(), values, rows.action_mask):
            along = own[mask]
            for share, into in found.items():
                into[place] = float(along[int(np.ceil(share * (len(along) - 1)))])
    return found


def auroc(right: NDArray[np.bool_], values: NDArray[np.float64]) -> float:
    """The chance that a right answer has a higher value than a wrong one, ties counting a half.

    >>> auroc(np.array([True, False, True, False]), np.array([2.0, 1.0, 1.0, 0.0]))
    0.875
    """
    gap = values[right][:, None] - values[~right]
    return float((gap > 0).mean() + (gap == 0).mean() / 2)


def voted(policy: str, scorer: str, seed: int) -> dict[str, tuple[float, float]]:
    """Tokens of a problem, and share of right results, of votes with the filter and without it."""
    from etude.evaluation.searched import search_split
    from etude.planners.search import MajorityVote
    from etude.policies.language import LanguagePolicy

    asks = LanguagePolicy.load(policy, device="cpu")
    searches = filtered(asks, scorer, seed), MajorityVote(samples=SAMPLES)
    kept = [search_split(asks, paired(), "test", search, problems=ASKED, seed=seed) for search in searches]
    tokens, right = ([float(np.mean(getattr(k, what))) for k in kept] for what in ("tokens", "correct"))
    return {"tokens": (tokens[0], tokens[1]), "vote": (right[0], right[1])}


def filtered(policy: Any, scorer: str, seed: int) -> Any:
    """A vote whose threshold a tenth of the right answers to other problems would not reach."""
    from etude.core.slots import Context
    from etude.core.streams import Stream
    from etude.experience.groups import Groups
    from etude.planners.goals import FilteredVote, GoalLikeness
    from etude.planners.trees import Trees
    from etude.rewards.model import RewardModel

    vote = FilteredVote(samples=SAMPLES, skip=SKIP, guide=GoalLikeness(scored_by=RewardModel(model=scorer))).bind()
    task, others = paired(), TASK.problems("train")
    context = Context(task, policy, Stream(seed).split("threshold"), max_tokens=task.max_tokens)
    how = Groups().sampling(context)
    trees = Trees([others[POOL + i] for i in range(OTHERS)], context, how, how)
    nodes = [node for group in trees.complete(trees.roots, SAMPLES) for node in group]
    lowest = np.array([min(q[vote.skip :], default=1.0) for q in vote.guide.along(nodes, trees)])
    right = np.array([task.success(episode) for episode in trees.judged(nodes)])
    return vote.replace(threshold=float(np.quantile(lowest[right], LOST))).bind()


class PairedSums(Sums):
    """Sums whose training problems have pairs."""

    def problems(self, split: str) -> Sequence[Problem]:
        return traces() if split == "train" else super().problems(split)


def paired() -> PairedSums:
    return PairedSums(**TASK.fields())
