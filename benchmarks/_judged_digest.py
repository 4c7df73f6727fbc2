"""`digest` with answers that a reward model scored, for whoever learns from scores where others learn from its pairs.

Who scores, and what prompts are worth to A-LoL, is read from a file that `which_preference_loss.py` writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from etude.core.episodes import Problem
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.reward_models import pair_accuracy
from etude.experience.groups import Groups
from etude.experience.scored import ANSWERS, SCORES, answered
from etude.methods.preference.a_lol import PromptValue, fit, states_of
from etude.methods.preference.a_lol.parts import VALUE
from etude.policies.language import LanguagePolicy
from etude.rewards.model import values
from etude.tasks.language.digest import Digest

FITTED, PASSES, HEADS, RATE = 400, 10, 8, 3e-3
"""Prompts that values are fitted to, passes over them, and the head that learns them: as `appraise` has them."""


class JudgedDigest(Digest):
    """Digest, the scores of whose answers are those of a file: {'scores': a list for each problem, 'values': numbers}.

    Args:
        judged: the file. Where it is '', problems are those of `digest`.
    """

    id: ClassVar[str] = "judged-digest"
    judged: str = ""

    def _problem(self, split: str, index: int) -> Problem:
        problem = super()._problem(split, index)
        if split == "test" or not self.judged:
            return problem
        found = _read(self.judged)
        told = {SCORES: found["scores"][index], VALUE: found["values"][index]}
        return replace(problem, info={**problem.info, **told})


@cache
def _read(path: str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def judge(task: Digest, start: str, scorer: str, seed: int) -> dict[str, Any]:
    """What a file says: the reward model's score of each answer, and what the start is worth on each prompt by it."""
    policy, by = (LanguagePolicy.load(folder, device="cpu") for folder in (start, scorer))
    pool = task.problems("train")
    problems = [pool[i] for i in range(len(pool))]
    context = Context(task, policy, Stream(seed).split("judge"), max_tokens=task.max_tokens)
    return {
        "scores": _scores(problems, by, context),
        "values": _worth(problems, task, policy, by, context, seed),
    }


def rightly_ordered(start: str, scorer: str, problems: int, seed: int) -> float:
    """Of pairs of the writer's answers to test prompts, the share that the reward model has in the order of gold."""
    task = Digest()
    policy, by = (LanguagePolicy.load(folder, device="cpu") for folder in (start, scorer))
    context = Context(task, policy, Stream(seed).split("judge"), max_tokens=task.max_tokens)
    chosen = task.problems("test")[:problems]
    return pair_accuracy(_scores(chosen, by, context), [p.info[SCORES] for p in chosen])


def _scores(problems: Sequence[Problem], by: LanguagePolicy, context: Context) -> list[list[float]]:
    """The reward model's score of each answer that problems come with."""
    rows = [answered(p, text, 0.0, g, context) for g, p in enumerate(problems) for text in p.info[ANSWERS]]
    scores = iter(values(by, rows))
    return [[next(scores) for _ in p.info[ANSWERS]] for p in problems]


def _worth(
    problems: Sequence[Problem], task: Digest, policy: LanguagePolicy, by: LanguagePolicy, context: Context, seed: int
) -> list[float]:
    """V(x) of each prompt, by the head of A-LoL, fitted to one completion of each of the first so many."""
    import torch  # after etude, which chooses kernels

    chosen = problems[:FITTED]
    paid = torch.tensor(values(by, Groups(size=1).collect(chosen, context)))
    random = Stream(seed).split("value").torch
    value = PromptValue(policy.width, HEADS, float(paid.min()), float(paid.max()), random)
    value.load_state_dict(fit(value, states_of(chosen, task, policy), paid, PASSES, RATE, random))
    with torch.no_grad():
        found: list[float] = value.eval()(*states_of(problems, task, policy)).tolist()
    return found


judged_digest = JudgedDigest()
