"""The claim of SPA-RL: turns paid by an additive model of the return, against the return at the end.

A game is worth the share of milestones that were reached, paid in its last turn. Every seed has an estimator of its
own, of games that the start plays; its c_t of each turn of test games are held against the milestones that the turn
really reached, which nobody who trains is ever told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, pairs, variant
from etude.experiments.cells import Cell, by_label, model_folder, spread, trained
from etude.tasks.agents.milestones import Milestones

if TYPE_CHECKING:
    from etude.core.episodes import Episode

TASK, POLICY, STEPS = Milestones(pays="share"), "tiny-agent", 40
CHANGES = {"problems": 32, "experience.size": 4}
ESTIMATOR, ESTIMATOR_STEPS = {
    "experience.whose.model": POLICY, "optimizer.lr": 4e-4, "problems": 32, "epochs": 4, "minibatches": 8,
}, 25  # fmt: skip
"""How estimators are trained: 3,200 games, each of them read four times."""
PROBLEMS = 400
ARMS: dict[str, dict[str, Any]] = {
    "spa-rl": {}, "alpha = 0": {"rewards.redistribute.alpha": 0.0}, "beta = 0": {"rewards.redistribute.beta": 0.0},
}  # fmt: skip


class Looked(NamedTuple):
    """What a policy came to: shares of games won and of turns that could be done, and completions learned from."""

    success: float
    executable: float
    completions: float


class Estimator(NamedTuple):
    """An estimator to be trained, and where it is saved."""

    cell: Cell
    folder: Path


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Deliveries and turns that could be done after as many games, paid by turns or for the delivery."""
    with ExitStack() as open_folders:
        learned = variant("spa-estimator", ESTIMATOR)
        scorers = [Cell("estimator", learned, TASK, seed, ESTIMATOR_STEPS, POLICY) for seed in seeds]
        folders = [open_folders.enter_context(model_folder(cell.folder())) for cell in scorers]
        agreement = spread(agreeing, [Estimator(*each) for each in zip(scorers, folders)])
        cells = [
            Cell(label, method, TASK, seed, STEPS, POLICY)
            for seed, folder in zip(seeds, folders)
            for label, method in _arms(str(folder), arm or {}, baseline or {}).items()
        ]
        start = looked(Cell("start", variant("ppo", CHANGES), TASK, START, 0, POLICY))
        found = by_label([cell.label for cell in cells], spread(looked, cells))
    return _pairs(seeds, found, start, agreement)


def _arms(scorer: str, arm: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    own = {**CHANGES, "rewards.redistribute.model": scorer, **arm}
    paid = {label: variant("spa-rl", {**own, **changes}) for label, changes in ARMS.items()}
    return {**paid, "ppo": variant("ppo", {**CHANGES, **baseline})}


def _pairs(
    seeds: Sequence[int], found: Mapping[str, Sequence[Looked]], start: Looked, agreement: Sequence[float]
) -> list[Pair]:
    success = {label: [each.success for each in of] for label, of in found.items()}
    executable = {label: [each.executable for each in of] for label, of in found.items()}
    own = {
        "success": success["spa-rl"], "executable": executable["spa-rl"],
        "success against the start": success["spa-rl"], "success against alpha = 0": success["spa-rl"],
        "success against beta = 0": success["spa-rl"], "executable against beta = 0": executable["spa-rl"],
        "rank correlation with milestones": agreement,
    }  # fmt: skip
    other = {
        "success": success["ppo"], "executable": executable["ppo"],
        "success against the start": [start.success] * len(seeds),
        "success against alpha = 0": success["alpha = 0"], "success against beta = 0": success["beta = 0"],
        "executable against beta = 0": executable["beta = 0"],
    }  # fmt: skip
    before = {"success": [start.success] * len(seeds), "executable": [start.executable] * len(seeds)}
    counts = tuple([each.completions for each in found[label]] for label in ("spa-rl", "ppo"))
    return pairs(seeds, own, other, start=before, budgets={"completions": (counts[0], counts[1])})


def looked(cell: Cell) -> Looked:
    """Train a policy and have it play the test problems twice."""
    from etude.evaluation.language import evaluate_split

    loop, metrics = trained(cell)
    played = evaluate_split(loop.policy, TASK, "test", problems=PROBLEMS, samples=2, seed=START)
    done = [said for row in played.episodes for e in row for said in executed_turns(e)]
    return Looked(float(played.correct.mean()), sum(done) / len(done), float(sum(line["rows"] for line in metrics)))


def executed_turns(episode: Episode) -> list[bool]:
    """Of each turn whether it could be done."""
    from etude.core.task import VALID

    return [bool(said.info[VALID]) for said in episode.turns]


def agreeing(estimator: Estimator) -> float:
    """Train an estimator and save it; how its c_t and the milestones of turns of test games agree, by Spearman."""
    from scipy.stats import spearmanr

    from etude.advantages.turns import turn_ends
    from etude.core.rows import to_batch
    from etude.evaluation.language import evaluate_split
    from etude.policies.language import LanguagePolicy
    from etude.rewards.redistribute import contributions

    scorer = trained(estimator.cell)[0].policy
    scorer.save(estimator.folder)
    told, policy = TASK.replace(pays="milestones"), LanguagePolicy.load(POLICY, device="cpu")
    played = evaluate_split(policy, told, "test", problems=PROBLEMS // 2, samples=2, seed=START)
    episodes = [e for row in played.episodes for e in row]
    batch = to_batch(episodes, policy.tokenizer.pad_token_id, 1.0, policy.device)
    said = contributions(scorer, batch)[turn_ends(batch)]
    reached = [turn.reward for e in episodes for turn in e.turns]
    return float(spearmanr(said.numpy(), reached).statistic)
