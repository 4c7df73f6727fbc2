"""How accuracy grows with the length of the thought, without a verifier at inference (T1, arXiv:2501.11651, 3.2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from etude.core.draws import Draw
from etude.core.episodes import Problem
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask, SingleTurn
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.policies.chat import opening
from etude.policies.sampling import Sampling
from etude.policies.showing import shown

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


def accuracy_by_budget(
    policy: LanguagePolicy, task: LanguageTask, budgets: Sequence[int], *,
    closing: Callable[[Problem, str], str], split: str = "test", problems: int = 100,
    samples: int = 4, tokens: int = 8, until: str = "", seed: int = 0,
) -> list[float]:  # fmt: skip
    """Accuracy when the thought is cut after so many tokens and the policy then has to answer.

    Every chain is sampled once, so that the budgets differ in nothing but the cut. A chain that ended within the
    budget is judged as it is. Single-turn tasks only.

    Args:
        budgets: tokens of thought, each a point of the curve.
        closing: what stands in place of a thought that was cut (problem, its text) so that the next words are the
            answer: the thought, without its last half word, and the words that introduce an answer.
        tokens: limit of the answer.
        until: a regular expression; the answer ends before its first match.

    Returns: one accuracy per budget.
    """
    pool = task.problems(split)
    chosen = [pool[i] for i in range(min(problems, len(pool)))]
    stream, how = Stream(seed).split("budget"), Groups()
    context = Context(task, policy, stream, max_tokens=task.max_tokens)
    episodes = rollout(fresh(chosen, samples, stream), context, how.sampling(context))
    rows = []
    for budget in budgets:
        whole = [e for e in episodes if e.action_count <= budget]
        cut = [e for e in episodes if e.action_count > budget]
        asked = [(e.problem, closing(e.problem, policy.decode(e.segments[-1].tokens[:budget]))) for e in cut]
        draws = [e.draw.child("answer", budget) for e in cut if e.draw]
        right = forced(policy, task, asked, tokens=tokens, draws=draws, until=until)
        rows.append((sum(map(task.success, whole)) + sum(right)) / len(episodes))
    return rows


def forced(
    policy: LanguagePolicy, task: LanguageTask, asked: Sequence[tuple[Problem, str]], *, tokens: int,
    draws: Sequence[Draw], until: str = "",
) -> list[bool]:  # fmt: skip
    """Whether the policy is right when it has to go on from this text with at most `tokens` more.

    Args:
        asked: problems, each with what has been said so far.
        draws: one for each of them.
        until: the answer ends before the first match of this regular expression.
    """
    if not asked:
        return []
    views = []
    for problem, text in asked:
        prompt = opening(shown(SingleTurn(task).reset(problem, 0), task, policy), policy, task.add_bos)
        views.append([t for part in prompt for t in part] + policy.encode(text))
    completions = policy.generate(views, Sampling(max_tokens=tokens, stop=tuple(task.stop)), draws)
    right = []
    for (problem, text), completion in zip(asked, completions):
        answer = policy.decode(completion.tokens)
        answer = re.split(until, answer, maxsplit=1)[0] if until else answer
        right.append(task.score(problem, text + answer) >= 1.0)
    return right
