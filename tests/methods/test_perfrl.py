"""PerfRL: what ranking minimises, which candidates there are, and what the measures of its claim are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenLogProbs
from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experiments.preference.perfrl import figures
from etude.loops.language import LanguageLoop
from etude.methods.preference.perfrl import CandidateSets, DistinctCandidates, RankedCandidates
from etude.objectives.pairs import LogRatio
from etude.policies.sampling import Sampling
from etude.tasks import resolve_task
from etude.tasks.language.stack_machine import speedups, stack_machine
from language_toys import Toy, random_policy

PLAIN = RankedCandidates(nll=0.0)


def rows(scores: list[float], lengths: list[int], group: list[int] | None = None) -> Any:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    found = SimpleNamespace(scores=torch.tensor(scores, dtype=torch.float64), action_mask=mask.double())
    found.group = torch.tensor(group or [0] * len(scores))
    found.action_counts, found.episode, found.once = torch.tensor(lengths), None, lambda: None
    return found


def logps(lengths: list[int], seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return -torch.rand(len(lengths), max(lengths), generator=random, dtype=torch.float64) - 0.1


LENGTHS = [3, 5, 2, 4]


# What is minimised


def test_it_is_zero_exactly_where_the_order_agrees_and_ties_are_left_out() -> None:
    logp = logps(LENGTHS)
    p = [float(logp[i, :n].mean()) for i, n in enumerate(LENGTHS)]
    place = sorted(range(4), key=lambda i: p[i])
    agreeing = [float(place.index(i)) for i in range(4)]
    assert PLAIN(rows(agreeing, LENGTHS), TokenLogProbs(logp)).tolist() == [0.0] * 4
    assert PLAIN(rows([1.0] * 4, LENGTHS), TokenLogProbs(logp)).tolist() == [0.0] * 4
    turned = list(agreeing)
    turned[place[1]], turned[place[2]] = agreeing[place[2]], agreeing[place[1]]
    wanted = p[place[2]] - p[place[1]]  # the one pair that is the wrong way round
    assert PLAIN(rows(turned, LENGTHS), TokenLogProbs(logp)).tolist() == pytest.approx([wanted] * 4, abs=1e-12)
    tied = [0.0 if i in place[1:3] else turned[i] - 1.5 for i in range(4)]
    assert PLAIN(rows(tied, LENGTHS), TokenLogProbs(logp)).tolist() == [0.0] * 4


def test_it_is_the_sum_over_violated_pairs_and_knows_scores_by_their_order_alone() -> None:
    scores, logp = [-1.0, 1.5, 0.0, 1.2], logps(LENGTHS, seed=1)
    p = [logp[i, :n].sum() / n for i, n in enumerate(LENGTHS)]
    wanted = sum(max(0.0, float(p[i] - p[j])) for i in range(4) for j in range(4) if scores[i] < scores[j])
    assert wanted > 0.1
    found = PLAIN(rows(scores, LENGTHS), TokenLogProbs(logp))
    assert found.tolist() == pytest.approx([wanted] * 4, abs=1e-12)
    cubed = [s**3 for s in scores]
    assert torch.equal(PLAIN(rows(cubed, LENGTHS), TokenLogProbs(logp)), found)


def test_the_gradient_of_a_violated_pair_is_that_of_p_i_less_that_of_p_j() -> None:
    logp = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -0.25, -0.75]], dtype=torch.float64, requires_grad=True)
    PLAIN(rows([2.0, 1.0], [2, 3]), TokenLogProbs(logp))[0].backward()
    assert logp.grad is not None
    wanted = [[-1 / 2, -1 / 2, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    torch.testing.assert_close(logp.grad, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-15)
    logp.grad = None
    PLAIN(rows([1.0, 2.0], [2, 3]), TokenLogProbs(logp))[0].backward()
    assert not logp.grad.any()  # type: ignore[attr-defined]  # in order


def test_without_division_by_length_it_ranks_sums() -> None:
    sums = PLAIN.replace(of=LogRatio(denominators=(), per_token=False))
    logp = torch.full((2, 4), -1.0, dtype=torch.float64)
    given = rows([1.5, 0.0], [4, 2])
    assert PLAIN(given, TokenLogProbs(logp)).tolist() == [0.0, 0.0]
    assert sums(given, TokenLogProbs(logp)).tolist() == [2.0, 2.0]


def test_with_one_candidate_it_is_sft_on_it_unless_it_fails_its_tests() -> None:
    logp = logps([4], seed=2).requires_grad_(True)
    (loss,) = RankedCandidates()(rows([1.0], [4]), TokenLogProbs(logp))
    assert loss.item() == pytest.approx(-logp.sum().item(), abs=1e-12)
    assert torch.equal(torch.autograd.grad(loss, logp)[0], torch.full_like(logp, -1.0))
    assert RankedCandidates()(rows([0.5], [4]), TokenLogProbs(logp)).tolist() == [0.0]


def test_problems_know_nothing_of_each_other() -> None:
    scores, lengths, group = [1.5, 0.0, 2.0, 1.0, 0.0], [3, 5, 2, 4, 3], [7, 7, 3, 3, 3]
    logp = logps(lengths, seed=3)
    whole = RankedCandidates()(rows(scores, lengths, group), TokenLogProbs(logp))
    first = RankedCandidates()(rows(scores[:2], lengths[:2]), TokenLogProbs(logp[:2]))
    other = RankedCandidates()(rows(scores[2:], lengths[2:]), TokenLogProbs(logp[2:, :4]))
    torch.testing.assert_close(whole, torch.cat([first, other]), rtol=0, atol=1e-12)


# Which candidates there are


class Vowels(Toy):
    """Answers are worth as many vowels as they have; every problem brings two candidates and a worked answer."""

    def problems(self, split: str) -> list[Problem]:
        known: dict[str, Any] = {"candidates": ["ab", "zz"], "demonstration": "aeb"}
        return [Problem(f"{split}-{i}", prompt, info=known) for i, prompt in enumerate(self.prompts)]


VOWELS = Vowels(scoring=lambda _, text: float(sum(c in "aeiou" for c in text)), max_tokens=5)


def collected(part: CandidateSets) -> tuple[list[Episode], Any]:
    context = Context(VOWELS, random_policy(seed=2), Stream(4), max_tokens=5)
    return part.collect(VOWELS.problems("train")[:2], context), context


@pytest.mark.slow
def test_a_set_has_samples_what_decoders_say_and_what_is_given_each_paid_by_the_task() -> None:
    episodes, context = collected(CandidateSets(size=2))
    assert [e.group for e in episodes] == [0, 0, 1, 1] + [0] * 5 + [1] * 5
    plain, _ = collected(CandidateSets(size=2, decoders=()))
    assert [e.tokens for e in episodes[:4]] == [e.tokens for e in plain[:4]]  # the samples of groups
    for group in (0, 1):
        own = [e for e in episodes[4:] if e.group == group]
        assert [e.completion for e in own[2:]] == ["ab", "zz", "aeb"]
        assert all(e.written and e.reward == VOWELS.score(e.problem, e.completion) for e in own)
        (greedy,) = context.policy.generate(
            [context.policy.encode(own[0].problem.prompt)], Sampling(temperature=0.0, max_tokens=5), [Draw.at(0)]
        )
        ends = {*context.policy.end_ids}
        assert own[0].completion == context.policy.decode([t for t in greedy.tokens if t not in ends])
    assert [e.completion for e in episodes[4:6]] != [e.completion for e in episodes[9:11]]


def test_equal_answers_stand_once_and_problems_count_alike() -> None:
    said = [SimpleNamespace(completion=text) for text in ("a", "b", "a", "c", "a", "a")]
    batch: Any = SimpleNamespace(episodes=said, group=torch.tensor([0, 0, 0, 0, 1, 1]), scores=torch.zeros(6))
    weights = DistinctCandidates().weigh(batch)
    assert weights.tolist() == pytest.approx([2 / 3, 2 / 3, 0, 2 / 3, 2, 0])
    losses = torch.tensor([5.0, 5.0, 5.0, 5.0, 1.0, 1.0])
    kept = weights > 0
    assert float((losses * weights).sum() / kept.sum()) == pytest.approx(3.0)  # the mean of 5 and 1


def test_tasks_of_several_turns_or_without_answers_are_refused() -> None:
    part = CandidateSets()
    assert "answers of one turn" in (part.lacks(resolve_task("number-hunt")) or "")
    assert part.lacks(stack_machine) is None
    judged = SimpleNamespace(judged_by_reward=True)
    assert "has no answers" in (part.lacks(type("Judged", (Vowels,), judged.__dict__)()) or "")


@pytest.mark.slow
def test_steps_of_imitation_come_first_and_then_candidates() -> None:
    method: Any = get_method("perfrl").replace(problems=2)
    loop = LanguageLoop(method, stack_machine, random_policy(seed=1), seed=0, steps=4)
    lines = [loop.step().metrics for _ in range(4)]
    assert ["accuracy" in line for line in lines] == [False, False, False, True]
    assert lines[0]["rows"] == 64 and lines[3]["rows"] == 16 and lines[3]["written"] == 0.5


# What the claim measures


def test_for_who_copies_nothing_is_optimised() -> None:
    run: Any = SimpleNamespace(rewards=np.array([[1.0, 1.0], [1.0, 1.0]]))
    assert figures(run) == {"optimised": 0.0, "speedup": 1.0, "right": 1.0, "best of 2": 1.0}
    run.rewards = np.array([[1.5, 0.0], [1.05, -1.0]])
    assert figures(run) == {"optimised": 0.25, "speedup": 1.25, "right": 0.5, "best of 2": 1.5}
    assert speedups(np.array([1.1, 1.0999])).tolist() == pytest.approx([1 / 0.9, 1.0])
    copied = stack_machine.problems("test")[:20]
    assert [stack_machine.score(p, p.info["candidates"][0]) for p in copied] == [1.0] * 20
