"""The claim of Tulu 3: what each stage adds to a skill that is trained, and what becomes of one that is only watched.

Preferences are of both skills; what can be verified is trained on one of them. Supervised fine-tuning is the same for
all seeds; from it every seed draws its own answers, pairs and problems. A hundredth of the training prompts leaked from
the test, and is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from etude.core.episodes import Problem
from etude.core.streams import Stream
from etude.evaluation.pairs import Pair
from etude.experiments.arms import START, Trained, Training, pairs, train, variant
from etude.experiments.cells import model_folder, spread
from etude.methods.preference.tulu_3 import Decontaminated, RatedPairs
from etude.tasks.language.lookups import Lookups

TASK = Lookups(leaked=0.01)
SIZE = 4
"""n of the n-grams: most of a prompt of five characters. Data sets stay, whatever leaked."""
MODEL, SHOWN, PROMPTS = "blank:1x96x4", 360, 1000
PREFERRED, VERIFIED = 30, 40
"""Steps on pairs, of the policy and of what the critic begins as; and steps on what can be verified."""
TRAINED, WATCHED = "look", "follow"
SUPERVISED = {"problems": 64, "optimizer.lr": 3e-3, "optimizer.schedule": "linear", "optimizer.warmup": 0.03}
ON_PAIRS = {"optimizer.lr": 3e-4}
SCORER = {"optimizer.lr": 1e-3}
ON_VERDICTS = {
    "optimizer.lr": 3e-5, "critic.learning.optimizer.lr": 1e-3, "rewards.kl-penalty.coefficient": 0.1,
}  # fmt: skip
COMPARED = {
    "trained skill, DPO": ("dpo", "more sft", TRAINED),
    "trained skill, RLVR": ("rlvr", "dpo", TRAINED),
    "watched skill, RLVR": ("rlvr", "dpo", WATCHED),
    "watched skill, DPO": ("dpo", "more sft", WATCHED),
}
"""By measure: of which stage, against which, and which skill."""


@dataclass(frozen=True)
class Course:
    """The stages after supervised fine-tuning, of one seed."""

    seed: int
    start: str


def clean() -> list[Problem]:
    """Training problems that no test has."""
    part = Decontaminated(called="clean", size=SIZE, unit="character", most=1.0)
    return part.clean(list(TASK.problems("train")), TASK)


def rated(course: Course, prompts: Sequence[Problem]) -> list[Problem]:
    """Pairs of answers, of the fine-tuned policy and of whoever wrote the worked ones, to prompts of the seed's own."""
    from etude.policies.language import LanguagePolicy

    order = Stream(course.seed).split("prompts").numpy.permutation(len(prompts))[:PROMPTS]
    policy = LanguagePolicy.load(course.start, device="cpu")
    rows = RatedPairs().rows_by([prompts[i] for i in order], TASK, policy, course.seed)
    return [Problem(f"pair/{i}", row["prompt"], info=row) for i, row in enumerate(rows)]


def follow(course: Course) -> dict[str, Trained]:
    """What came of each stage, and of more supervised steps in the place of pairs."""
    import torch

    torch.set_num_threads(1)
    seed, start, prompts = course.seed, course.start, clean()
    shown = rated(course, prompts)
    more = Training("more sft", variant("sft", SUPERVISED), TASK, seed, PREFERRED, start, prompts)
    pairwise = Training("dpo", variant("tulu-3-dpo", ON_PAIRS), TASK, seed, PREFERRED, start, shown)
    scorer = Training("rm", variant("reward-model", SCORER), TASK, seed, PREFERRED, start, shown, problems=1)
    with model_folder(pairwise.folder()) as preferred, model_folder(scorer.folder()) as critic:
        train(replace(scorer, keep=str(critic)))
        found = {"more sft": train(more), "dpo": train(replace(pairwise, keep=str(preferred)))}
        verified = variant("tulu-3-rlvr", {**ON_VERDICTS, "critic.model": str(critic)})
        known = [p for p in prompts if p.level == TRAINED]
        return found | {"rlvr": train(Training("rlvr", verified, TASK, seed, VERIFIED, str(preferred), known))}


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Each stage against the one before, and pairs against more worked answers."""
    tuning = variant("sft", SUPERVISED)
    first = Training("sft", tuning, TASK, START, SHOWN, MODEL, clean())
    with model_folder(first.folder()) as folder:
        tuned = train(replace(first, keep=str(folder)))
        found = spread(follow, [Course(seed, str(folder)) for seed in seeds])
    untrained = train(Training("start", tuning, TASK, START, 0, MODEL, first.pool))
    begun = {"more sft": untrained, "dpo": tuned}
    arm = {name: [run[stage].pass_at(1, skill) for run in found] for name, (stage, _, skill) in COMPARED.items()}
    baseline = {name: [run[other].pass_at(1, skill) for run in found] for name, (_, other, skill) in COMPARED.items()}
    start = {name: [begun[other].pass_at(1, skill)] * len(seeds) for name, (_, other, skill) in COMPARED.items()}
    return pairs(seeds, arm, baseline, start=start)
