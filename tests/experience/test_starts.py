"""Episodes that begin inside others: turns are said again, a turn is gone on with, nothing of it is trained on."""

from __future__ import annotations

import pytest
import torch

from etude.core.draws import Draw
from etude.core.episodes import Episode
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.rollout import Start, first_tokens, fresh, rollout
from etude.methods.rlvr.grpo import grpo
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.sums import sums
from language_toys import Toy, make_loop


@pytest.fixture(scope="module")
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny", device="cpu")


def play(policy: LanguagePolicy, task: object, starts: list[Start]) -> list[Episode]:
    return rollout(starts, Context(task, policy, Stream(0)), Sampling(max_tokens=12))


def said(episode: Episode) -> list[list[int]]:
    return [s.tokens for s in episode.segments if s.role == "assistant"]


def turns(episode: Episode) -> tuple[list[int], ...]:
    return tuple(s.tokens for s in episode.segments)


@pytest.mark.slow
def test_saying_the_same_again_meets_the_same_answers(tiny: LanguagePolicy) -> None:
    problem = attr_20q.problems("train")[3]
    (first,) = play(tiny, attr_20q, [Start(problem, 0, Draw.at(2))])
    spoken = tuple(s for s in first.segments if s.role == "assistant")
    assert len(spoken) > 2
    (again,) = play(tiny, attr_20q, [Start(problem, 0, Draw.at(9), spoken[:2], seed=first.seed, parent=0)])
    assert turns(again)[:5] == turns(first)[:5]  # prompt, two turns and their answers
    assert (again.parent, again.fork_turn, again.seed) == (0, 2, first.seed)
    masks = [s.action_mask for s in again.segments if s.role == "assistant"]
    assert not any(any(m) for m in masks[:2]) and all(all(m) for m in masks[2:])


def test_a_turn_is_gone_on_with(tiny: LanguagePolicy) -> None:
    problem = sums.problems("train")[0]
    (first,) = play(tiny, sums, [Start(problem, 0, Draw.at(1))])
    whole = next(s for s in first.segments if s.role == "assistant")
    begun = first_tokens(whole, 2, tiny)
    at = Start(problem, 0, Draw.at(1), (begun,), open=True, seed=first.seed, parent=0)
    found = play(tiny, sums, [at._replace(draw=at.draw.child("fork", k)) for k in range(4)])
    for e in found:
        (turn,) = said(e)
        assert turn[:2] == whole.tokens[:2] and len(turn) > 2
        (segment,) = (s for s in e.segments if s.role == "assistant")
        assert segment.action_mask == [0, 0] + [1] * (len(turn) - 2)
        assert segment.text == tiny.decode(turn) and segment.info["begun"] == 2
        assert segment.reward == sums.score(problem, segment.text)
    batch = to_batch(found, 0, 1.0, tiny.device)
    out = tiny.evaluate(batch)
    assert (out.logp - batch.behaviour_logp)[batch.action_mask].abs().max() < 1e-4


def test_a_hint_is_seen_and_not_learned(tiny: LanguagePolicy) -> None:
    problem = sums.problems("train")[1]
    (episode,) = play(tiny, sums, [Start(problem, 0, Draw.at(1), hint="7,")])
    assert [s.role for s in episode.segments] == ["user", "critique", "assistant"]
    assert episode.segments[1].tokens == tiny.encode("7,") and not any(episode.segments[1].action_mask)


class Branches(Groups):
    """Two fresh completions, and two that begin with the first token of the first."""

    def collect(self, problems, context):  # type: ignore[no-untyped-def]
        whole = rollout(fresh(problems, 2, context.stream), context, self.sampling(context))
        starts = []
        for i, e in enumerate(whole):
            begun = next(s for s in e.segments if s.role == "assistant")
            if len(begun.tokens) > 1:
                draw, shared = e.draw.child("fork", 0, 0), first_tokens(begun, 1, context.policy)
                starts.append(Start(e.problem, e.group, draw, (shared,), True, "", e.seed, i))
        return whole + rollout(starts, context, self.sampling(context))


def test_the_loop_learns_from_branches_and_checks_them(tiny: LanguagePolicy) -> None:
    metrics = make_loop(grpo.replace(experience=Branches(size=2), problems=3), Toy()).step().metrics
    assert metrics["logp_gap"] < 1e-4 and metrics["rows"] > 6
    assert torch.isfinite(torch.tensor(metrics["loss"]))
