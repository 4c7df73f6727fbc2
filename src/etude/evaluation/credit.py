"""Whom a policy blames: the log-ratio of every token as its credit, on answers of which it is known what is wrong.

A policy that is the optimum of a reward with a KL penalty of weight beta to a reference says what each token was worth,

    beta log pi(a_t | s_t) / ref(a_t | s_t) = r(s_t, a_t) + V*(s_{t+1}) - V*(s_t),

and DPO's policy is one of the reward that its pairs were labelled by (arXiv:2404.12358, eq. 8). The tokens of an answer
add up to its implicit reward. Here the ratios are in nats, so whatever beta was.

    hit       share of spoilt answers whose lowest token is a wrong one; by chance the share of tokens that are wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, DataError
from etude.core.rows import to_batch
from etude.core.task import LanguageTask
from etude.evaluation.intervals import Interval
from etude.evaluation.pass_at_k import over_problems
from etude.policies.showing import shown
from etude.policies.texts.likelihood import rows_logp
from etude.policies.texts.models import CurrentPolicy, Model
from etude.policies.written import written

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


@dataclass
class CreditEvaluation:
    """Spoilt answers of one split.

    Shapes: `ratios` log pi/ref of an answer's tokens and `wrong` which of them are, [tokens] of each answer; `whole`
    [right answers] sums of the ratios of answers without a fault, `spoilt` [answers] those of the spoilt ones, the
    token that ends an answer with them.
    """

    split: str
    ratios: list[NDArray[np.float64]]
    wrong: list[NDArray[np.bool_]]
    spoilt: NDArray[np.float64]
    whole: NDArray[np.float64]

    def summary(self) -> dict[str, Interval]:
        """Hits beside chance, and mean log-ratios of wrong and of other tokens, of spoilt and of whole answers."""
        hit = np.array([float(wrong[lowest(ratios)]) for ratios, wrong in zip(self.ratios, self.wrong)])
        chance = np.array([wrong.mean() for wrong in self.wrong])
        found: dict[str, Interval] = {"credit/hit": over_problems(hit), "credit/chance": over_problems(chance)}
        found["credit/gain"] = over_problems(hit - chance)
        sides = {"wrong": self.wrong, "others": [~wrong for wrong in self.wrong]}
        for name, masks in sides.items():
            means = [ratios[mask].mean() for ratios, mask in zip(self.ratios, masks) if mask.any()]
            if means:
                found[f"credit/{name}"] = over_problems(np.array(means))
        for name, sums in {"spoilt": self.spoilt, "whole": self.whole}.items():
            if len(sums):
                found[f"credit/{name}-answer"] = over_problems(sums)
        return found


def lowest(ratios: NDArray[np.float64]) -> int:
    """Which token is blamed: the lowest, of equals the first.

    >>> lowest(np.array([0.3, -1.2, -1.2]))
    1
    """
    return int(ratios.argmin())


def evaluate_credit(
    policy: LanguagePolicy, reference: Model, task: LanguageTask, split: str, *, problems: int = 100
) -> CreditEvaluation:
    """Token log-ratios of the given answers to the first `problems` problems of a split.

    Raises: DataError for a split without spoilt answers, ConfigError as `check_credit` does.
    """
    check_credit(task)
    pool = task.problems(split)
    given = [(pool[i], *said) for i in range(min(problems, len(pool))) for said in task.given_solutions(pool[i])]
    if all(label < 0 for *_, label in given):
        raise DataError(
            f"No problem of the split {split!r} of {task.id} has an answer that is known to be wrong somewhere: give "
            "data files the columns 'steps' (a list of texts) and 'label' (the number of the wrong one, or -1)."
        )
    rows = [answered(problem, task.step_joint.join(steps), n, policy, task) for n, (problem, steps, _) in
            enumerate(given)]  # fmt: skip
    ratios, spoilt, whole, wrong, places = token_ratios(policy, reference, rows), [], [], list[NDArray[np.bool_]](), []
    for n, (row, (_, steps, label)) in enumerate(zip(rows, given)):
        if label < 0:
            whole.append(ratios[n].sum())
            continue
        spoilt.append(ratios[n].sum())
        wrong.append(tokens_of_step(row.segments[-1].tokens, steps, label, task.step_joint, policy))
        places.append(n)
    kept = [ratios[n][: len(mask)] for n, mask in zip(places, wrong)]
    return CreditEvaluation(split, kept, wrong, np.array(spoilt), np.array(whole))


def check_credit(task: LanguageTask) -> None:
    """Raise ConfigError for a task whose answers are more than one text."""
    if task.max_turns > 1:
        raise ConfigError(f"Credit is that of an answer in one turn, and {task.id} has up to {task.max_turns}.")


def answered(problem: Problem, text: str, group: int, policy: LanguagePolicy, task: LanguageTask) -> Episode:
    """An answer to a problem, as if it had been a worked one."""
    opening = shown(task.played_in().reset(problem, 0), task, policy)
    return written(problem, [*opening, Segment("assistant", text)], group, policy, task.add_bos)


def token_ratios(policy: LanguagePolicy, reference: Model, rows: Sequence[Episode]) -> list[NDArray[np.float64]]:
    """log pi/ref of every token of written answers, the one that ends them included: [tokens] of each row.

    Raises: ConfigError for a reference that has other tokens.
    """
    batch = to_batch(list(rows), policy.tokenizer.pad_token_id, 1.0, policy.device)
    own = rows_logp(CurrentPolicy(), policy, batch)
    other = rows_logp(reference, reference.speaker(policy), batch)
    difference, mask = (own.double() - other.double()).cpu().numpy(), batch.action_mask.cpu().numpy()
    return [row[acted] for row, acted in zip(difference, mask)]


def tokens_of_step(
    tokens: Sequence[int], steps: Sequence[str], label: int, joint: str, policy: LanguagePolicy
) -> NDArray[np.bool_]:
    """Which tokens of an answer say any of step `label`, [tokens of the text], the end token not among them."""
    begin = len(joint.join([*steps[:label], ""])) if label else 0
    end, place, found = begin + len(steps[label]), 0, []
    size = len(joint.join(steps))
    for count in range(1, len(tokens) + 1):
        if place >= size:
            break
        reached = len(policy.decode(tokens[:count]))
        found.append(place < end and reached > begin)
        place = reached
    return np.array(found, dtype=bool)
