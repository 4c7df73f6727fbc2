"""The claim of Kimi k1.5: what its parts add, and four ways from long to short answers where answers have slack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etude.advantages.group import GroupAdvantage
from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.curricula.uniform import Uniform
from etude.evaluation.pairs import Pair
from etude.experiments import cells
from etude.experiments.arms import START, pairs, started, variant
from etude.experiments.cells import Cell, by_label, spread
from etude.experiments.watched import look
from etude.experiments.wordy import WARM
from etude.objectives.policy_gradient import PolicyGradient
from etude.tasks.language.compose import Compose
from etude.tasks.language.wordy import Wordy

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

CHAINS, STEPS = Compose(levels=(1, 2, 3)), 12
WORDY, LONG_STEPS = Wordy(terms=(3, 4), max_tokens=32), 20
CHANGES = {"curriculum.widen": 48, "problems": 16}
SHORT_STEPS, SHORT = 5, 16
"""Steps of each way to short answers, and the limit of completions in its second phase."""
POOL = 64
"""Problems that data for short answers are sampled from."""
OTHERS = ("average", "rejection", "dpo")
Looked = Mapping[str, Mapping[str, float]]
"""Accuracy and length by what was looked at."""


def arms() -> dict[str, TokenMethod]:
    """The whole recipe, and what each comparison of accuracy changes in it."""
    whole = variant("kimi-k1-5", CHANGES)
    likelihood = GroupAdvantage(centre=None, scale=None)
    right = whole.replace(advantages=likelihood, objective=PolicyGradient(), rewards=whole.rewards[:1])
    return {"whole": whole, "right answers only": right, "uniform draws": whole.replace(curriculum=Uniform())}


def long_arms() -> dict[str, TokenMethod]:
    """The whole recipe, with and without its reward for short answers."""
    from etude.methods.rlvr.kimi_k1_5 import LengthReward

    whole = variant("kimi-k1-5", {**CHANGES, "optimizer.lr": 2e-4})
    without = tuple(p for p in whole.rewards if not isinstance(p, LengthReward))
    return {"long": whole, "no length reward": whole.replace(rewards=without)}


def one_arm(cell: Cell) -> Looked:
    """Accuracy and length of one arm; of the long one also those of each way to short answers."""
    policy = cells.trained(cell)[0].policy
    return shortened(cell, policy) if cell.label == "long" else {"": look(policy, cell.task, 400, 2)}


def shortened(cell: Cell, policy: LanguagePolicy) -> Looked:
    """What the four ways make of one long policy."""
    from etude.evaluation import long_to_short as short
    from etude.policies.language import LanguagePolicy

    with cells.model_folder(cell.folder()) as folder:
        policy.save(folder / "long")

        def trained(method: TokenMethod, pool: Sequence[Problem] | None = None) -> LanguagePolicy:
            after = Cell(f"short-{cell.seed}", method, WORDY, cell.seed, SHORT_STEPS, str(folder / "long"), pool)
            return cells.trained(after)[0].policy

        problems = [WORDY.problems("train")[i] for i in range(POOL)]
        shortest = short.shortest_correct(policy, WORDY, problems, seed=cell.seed)
        chosen = short.length_pairs(policy, WORDY, problems, seed=cell.seed)
        again = variant(short.second_phase(variant(cell.method, {"curriculum.widen": 0}), SHORT))
        rejection = trained(variant("sft", {"problems": 16}), shortest)
        rejection.save(folder / "short")
        short.average_weights(folder / "long", folder / "short", folder / "average")
        ways = {
            "": policy, "rejection": rejection, "dpo": trained(variant("dpo", {"problems": 16}), chosen),
            "second phase": trained(again), "average": LanguagePolicy.load(str(folder / "average"), device="cpu"),
        }  # fmt: skip
        return {way: look(made, WORDY, 400, 2) for way, made in ways.items()}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Three arms on chains of one to three functions; two on wordy sums, and four ways from the first of these."""
    made, long = arms(), long_arms()
    with started(Wordy(terms=WORDY.terms), steps=WARM) as first:
        jobs = [Cell(name, method, CHAINS, seed, STEPS) for seed in seeds for name, method in made.items()]
        jobs += [Cell(n, m, WORDY, seed, LONG_STEPS, first.folder) for seed in seeds for n, m in long.items()]
        found = by_label([job.label for job in jobs], spread(one_arm, jobs))
    before = one_arm(Cell("start", made["whole"], CHAINS, START, 0))[""]["pass@1"]
    arm, base = dict[str, list[float]](), dict[str, list[float]]()
    for ours, other in (("whole", "right answers only"), ("whole", "uniform draws"), ("long", "no length reward")):
        arm[f"accuracy against {other}"] = [each[""]["pass@1"] for each in found[ours]]
        base[f"accuracy against {other}"] = [each[""]["pass@1"] for each in found[other]]
    arm["length"] = [each[""]["length"] for each in found["long"]]
    base["length"] = [each[""]["length"] for each in found["no length reward"]]
    for way in OTHERS:
        arm[f"accuracy per token against {way}"] = [per_token(each["second phase"]) for each in found["long"]]
        base[f"accuracy per token against {way}"] = [per_token(each[way]) for each in found["long"]]
    start = {f"accuracy against {other}": [before] * len(seeds) for other in list(made)[1:]}
    return pairs(seeds, arm, base, start=start)


def per_token(looked: Mapping[str, float]) -> float:
    """Accuracy per token of an answer."""
    return looked["pass@1"] / looked["length"]
