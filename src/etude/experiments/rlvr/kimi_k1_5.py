"""The claim of Kimi k1.5: what its parts add where answers have slack, and four ways from long to short answers."""

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
from etude.experiments.wordy import WARM, Wordy
from etude.objectives.policy_gradient import PolicyGradient

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

TASK, STEPS = Wordy(terms=(3, 4), max_tokens=32), 20
CHANGES = {"curriculum.widen": 48, "problems": 16, "optimizer.lr": 2e-4}
SHORT_STEPS, SHORT = 5, 16
"""Steps of each way to short answers, and the limit of completions in its second phase."""
POOL = 64
"""Problems that data for short answers are sampled from."""
OTHERS = ("average", "rejection", "dpo")
Looked = Mapping[str, Mapping[str, float]]
"""Accuracy and length by what was looked at."""


def arms() -> dict[str, TokenMethod]:
    """The whole recipe, and what each comparison changes in it."""
    from etude.methods.rlvr.kimi_k1_5 import LengthReward

    whole = variant("kimi-k1-5", CHANGES)
    without = tuple(p for p in whole.rewards if not isinstance(p, LengthReward))
    likelihood = GroupAdvantage(centre=None, scale=None)
    right = whole.replace(advantages=likelihood, objective=PolicyGradient(), rewards=whole.rewards[:1])
    return {
        "whole": whole,
        "right answers only": right,
        "uniform draws": whole.replace(curriculum=Uniform()),
        "no length reward": whole.replace(rewards=without),
    }


def one_arm(cell: Cell) -> Looked:
    """Accuracy and length of one arm; of the whole recipe also those of each way to short answers."""
    policy = cells.trained(cell)[0].policy
    return shortened(cell, policy) if cell.label == "whole" else {"": tested(policy)}


def shortened(cell: Cell, policy: LanguagePolicy) -> Looked:
    """What the four ways make of one long policy."""
    from etude.evaluation import long_to_short as short
    from etude.policies.language import LanguagePolicy

    with cells.model_folder(cell.folder()) as folder:
        policy.save(folder / "long")

        def trained(method: TokenMethod, pool: Sequence[Problem] | None = None) -> LanguagePolicy:
            after = Cell(f"short-{cell.seed}", method, TASK, cell.seed, SHORT_STEPS, str(folder / "long"), pool)
            return cells.trained(after)[0].policy

        problems = [TASK.problems("train")[i] for i in range(POOL)]
        shortest = short.shortest_correct(policy, TASK, problems, seed=cell.seed)
        chosen = short.length_pairs(policy, TASK, problems, seed=cell.seed)
        again = variant(short.second_phase(variant(cell.method, {"curriculum.widen": 0}), SHORT))
        rejection = trained(variant("sft", {"problems": 16}), shortest)
        rejection.save(folder / "short")
        short.average_weights(folder / "long", folder / "short", folder / "average")
        ways = {
            "": policy, "rejection": rejection, "dpo": trained(variant("dpo", {"problems": 16}), chosen),
            "second phase": trained(again), "average": LanguagePolicy.load(str(folder / "average"), device="cpu"),
        }  # fmt: skip
        return {way: tested(made) for way, made in ways.items()}


def tested(policy: LanguagePolicy) -> Mapping[str, float]:
    """Accuracy and length on test problems."""
    return look(policy, TASK, problems=400, samples=2)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Four arms on wordy sums of three and four numbers; then the four ways from the whole recipe's policies."""
    made = arms()
    with started(Wordy(terms=TASK.terms), steps=WARM) as first:
        jobs = [Cell(name, method, TASK, seed, STEPS, first.folder) for seed in seeds for name, method in made.items()]
        before = one_arm(Cell("start", made["whole"], TASK, START, 0, first.folder))[""]
        found = by_label([job.label for job in jobs], spread(one_arm, jobs))
    arm, base = dict[str, list[float]](), dict[str, list[float]]()
    for name in list(made)[1:]:
        arm[f"accuracy against {name}"] = [each[""]["pass@1"] for each in found["whole"]]
        base[f"accuracy against {name}"] = [each[""]["pass@1"] for each in found[name]]
    arm["length"] = [each[""]["length"] for each in found["whole"]]
    base["length"] = [each[""]["length"] for each in found["no length reward"]]
    for way in OTHERS:
        arm[f"accuracy per token against {way}"] = [per_token(each["second phase"]) for each in found["whole"]]
        base[f"accuracy per token against {way}"] = [per_token(each[way]) for each in found["whole"]]
    start = {name: [before["pass@1"]] * len(seeds) for name in arm if name.startswith("accuracy against")}
    return pairs(seeds, arm, base, start=start)


def per_token(looked: Mapping[str, float]) -> float:
    """Accuracy per token of an answer."""
    return looked["pass@1"] / looked["length"]
