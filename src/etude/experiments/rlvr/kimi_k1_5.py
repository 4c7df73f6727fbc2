"""The claim of Kimi k1.5: what its parts add, and four ways from long to short answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.advantages.group import GroupAdvantage
from etude.core.episodes import Problem
from etude.core.kinds import TokenMethod
from etude.curricula.uniform import Uniform
from etude.experiments import cells
from etude.experiments.arms import SEEDS, Question, findings, variant
from etude.experiments.cells import Cell, spread
from etude.experiments.watched import Job, look, run, runs, scores
from etude.objectives.policy_gradient import PolicyGradient
from etude.tasks.language.compose import Compose

STEPS, COUNT, SIZE = 12, 3, 16
TASK = Compose(levels=(1, 2, 3))
SHORT_STEPS, SHORT = 5, 16
"""Steps of each way to short answers, and the limit of completions in its second phase (32 before)."""
SLACK = 0.05
PROBLEMS = 64
"""Problems that data for short answers are sampled from."""
WAYS = ("average", "rejection", "dpo", "second phase")


def arms() -> dict[str, TokenMethod]:
    """The whole recipe, and what each comparison changes in it."""
    from etude.methods.rlvr.kimi_k1_5 import LengthReward

    whole = variant("kimi-k1-5", {"curriculum.widen": 48, "problems": SIZE})
    without = tuple(p for p in whole.rewards if not isinstance(p, LengthReward))
    likelihood = GroupAdvantage(centre=None, scale=None)
    right = whole.replace(advantages=likelihood, objective=PolicyGradient(), rewards=whole.rewards[:1])
    return {
        "kimi": whole,
        "right answers only": right,
        "uniform": whole.replace(curriculum=Uniform()),
        "no length reward": whole.replace(rewards=without),
    }


def ways_to_short(job: Job) -> dict[str, dict[str, float]]:
    """Accuracy and length of each way from one long policy, trained here by `job`."""
    from etude.evaluation import long_to_short as short
    from etude.policies.language import LanguagePolicy

    task = TASK
    with cells.model_folder(job.folder()) as folder:
        run(Job(**{**vars(job), "keep": str(folder / "long")}))

        def load(start: str = "long") -> LanguagePolicy:
            return LanguagePolicy.load(str(folder / start), device="cpu")

        def trained(method: TokenMethod, pool: Sequence[Problem] | None = None) -> LanguagePolicy:
            cell = Cell(f"short of {job.label}", method, task, job.seed, SHORT_STEPS, str(folder / "long"), pool)
            return cells.trained(cell)[0].policy

        problems = [task.problems("train")[i] for i in range(PROBLEMS)]
        shortest = short.shortest_correct(load(), task, problems, seed=job.seed)
        pairs = short.length_pairs(load(), task, problems, seed=job.seed)
        found = {"long": load(), "rejection": trained(variant("sft", {"problems": 16}), shortest)}
        found["dpo"] = trained(variant("dpo", {"problems": 16}), pairs)
        found["second phase"] = trained(
            variant(short.second_phase(variant("kimi-k1-5", {"curriculum.widen": 0, "problems": SIZE}), SHORT))
        )
        found["rejection"].save(folder / "short")
        short.average_weights(folder / "long", folder / "short", folder / "average")
        found["average"] = load("average")
        return {way: look(policy, task, 100, 4) for way, policy in found.items()}


def experiment() -> dict[str, Any]:
    """Four arms on chains of one to three functions; then the four ways from the whole recipe's policies."""
    made = arms()
    found = runs(made, TASK, seeds=COUNT, steps=STEPS, samples=4)
    before = run(Job("tiny", made["kimi"], TASK, SEEDS, 0, samples=4)).scores["pass@1"]
    accuracy = {arm: scores(found[arm], "pass@1") for arm in made}
    length = {arm: scores(found[arm], "length") for arm in made}
    ways = spread(ways_to_short, [Job("kimi", made["kimi"], TASK, SEEDS + k, STEPS, problems=4) for k in range(COUNT)])
    per_token = {way: [w[way]["pass@1"] / w[way]["length"] for w in ways] for way in ("long", *WAYS)}
    best = max(("average", "rejection", "dpo"), key=lambda way: sum(per_token[way]))
    questions = [
        Question("accuracy", {"kimi": accuracy["kimi"], "before": [before] * COUNT}),
        Question("accuracy", {k: accuracy[k] for k in ("kimi", "right answers only")}),
        Question("accuracy", {k: accuracy[k] for k in ("kimi", "uniform")}),
        Question("length", {k: length[k] for k in ("kimi", "no length reward")}, direction="lower"),
        Question(
            f"accuracy against {SLACK} less than without the length reward",
            {"kimi": accuracy["kimi"], "without, less slack": [x - SLACK for x in accuracy["no length reward"]]},
        ),
        Question(
            "accuracy per token against the best of the other ways",
            {"second phase": per_token["second phase"], best: per_token[best]},
        ),
    ]  # fmt: skip
    more = {"pass@1": accuracy, "length": length, "ways": ways, "accuracy per token": per_token}
    return findings(questions, task="compose, levels 1 to 3", steps=STEPS, seeds=COUNT, more=more)
