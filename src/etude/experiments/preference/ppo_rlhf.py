"""The claim of PPO on a learned reward: what is learned from a model that only saw pairs.

Right answers are counted by the task, which neither arm ever asks. What both optimise is the reward model's score, and
on that it is judged whether the arm without the pull to the start, that nothing holds back, has learned at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, by_label, model_folder, spread, trained
from etude.tasks.language.preferences import Preferences

TASK, STEPS, PROBLEMS = Preferences(), 20, 16
SCORER_STEPS, SCORER = 150, {"optimizer.lr": 5e-4}
"""How the reward model is trained."""


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Accuracy and reward after PPO on the reward of one model: against the start, and without a pull to it."""
    scorer = Cell("scorer", variant("reward-model", SCORER), TASK, START, SCORER_STEPS)
    with model_folder(scorer.folder()) as folder:
        trained(scorer)[0].policy.save(folder)
        method = variant("ppo-rlhf", {"rewards.reward-model.model": str(folder), "problems": PROBLEMS})
        arms = {"ppo-rlhf": method, "free": variant(method, {"rewards.kl-penalty.coefficient": 0.0})}
        cells = [Cell(name, arm, TASK, seed, STEPS) for seed in seeds for name, arm in arms.items()]
        before = both(Cell("start", method, TASK, START, 0))
        found = by_label([cell.label for cell in cells], spread(both, cells))
    (right, score), (free, free_score) = (zip(*found[name]) for name in arms)
    at_start = {"accuracy": [before[0]] * len(seeds), "score": [before[1]] * len(seeds)}
    return pairs(
        seeds, {"accuracy": right, "score": score, "accuracy without the pull": right},
        {"accuracy": at_start["accuracy"], "score": free_score, "accuracy without the pull": free},
        start=at_start,
    )  # fmt: skip


def both(cell: Cell) -> tuple[float, float]:
    """Accuracy on test problems, and the reward model's mean score of the same answers."""
    from etude.evaluation.language import evaluate_split
    from etude.rewards.model import RewardModel

    loop = trained(cell)[0]
    scorer = next(part for part in loop.method.rewards if isinstance(part, RewardModel))
    looked = evaluate_split(loop.policy, TASK, "test", problems=400, samples=2, seed=START, rewards=(scorer,))
    return float(looked.correct.mean()), float(looked.rewards.mean()) / scorer.weight
