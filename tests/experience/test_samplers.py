"""Samplers play the episodes that this process would have played, and what they answer is checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from etude.core.episodes import Episode, Problem
from etude.core.errors import EnvironmentFault, InvariantError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.rollout import Start, first_tokens, fresh, played, rollout
from etude.experience.samplers import Sampler, Samplers
from etude.methods.rlvr.grpo import grpo
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.runtime.executors.local import Local
from etude.runtime.executors.roles import Before
from language_toys import Toy, make_loop, random_policy
from slow_worlds import Slow

HOW = Sampling(max_tokens=5, stop=("q",), entropy=True, hidden=True)


def seen(episodes: Sequence[Episode]) -> list[Any]:
    """All of an episode but what the clock says."""
    return [
        (
            e.problem, e.group, e.parent, e.fork_turn, e.stop, e.seed, e.draw, e.info,
            [(s.role, s.text, s.tokens, s.action_mask, s.behaviour_logp, s.version, s.reward,
              {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in s.info.items()}) for s in e.segments],
        )
        for e in episodes
    ]  # fmt: skip


def context_of(task: Any, policy: LanguagePolicy, samplers: Samplers | None = None) -> Context:
    return Context(task, policy, Stream(0), max_tokens=task.max_tokens, samplers=samplers)


def starts_of(task: Slow, policy: LanguagePolicy) -> list[Start]:
    """Fresh starts, and some inside other episodes."""
    starts = fresh(task.problems("train"), 2, Stream(0))
    others = played(starts, context_of(task, policy), HOW)
    again = []
    for i, (start, other) in enumerate(zip(starts, others)):
        whole = tuple(other.turns[:1])
        begun = (*whole, first_tokens(other.turns[1], 1, policy))
        draw, seed = start.draw.child("again"), other.seed
        again.append(Start(start.problem, start.group, draw, whole, hint="?", seed=seed, parent=i))
        again.append(Start(start.problem, start.group, draw, begun, open=True, seed=seed, parent=i))
    return starts + again


@pytest.mark.slow
def test_one_sampler_plays_what_this_process_would_have_played() -> None:
    task, policy = Slow(turns=2), random_policy()
    policy.version = 3
    starts = starts_of(task, policy)
    policy.emitted.clear(), policy.work.clear()
    here = played(starts, context_of(task, policy), HOW)
    emitted, work = set(policy.emitted), dict(policy.work)
    policy.emitted.clear(), policy.work.clear()
    there = rollout(starts, context_of(task, policy, Samplers(Local(Sampler(task, policy)), task)), HOW)
    assert seen(there) == seen(here)
    assert any(s.info.get("hidden") is not None and s.info["entropy"] for e in there for s in e.segments)
    assert emitted
    assert (policy.emitted, dict(policy.work)) == (emitted, work)


class Apart(Local):
    """An executor whose sampler has a policy of its own, as in another process."""

    def ask(self, method: str, before: Before | None = None, /, **arguments: Any) -> Any:
        assert before is not None
        with before.make() as given:
            getattr(self.role, before.method)(**given)
        return super().ask(method, **arguments)


def test_a_sampler_with_a_policy_of_its_own_says_the_same_of_each_version() -> None:
    task, policy = Slow(turns=1), random_policy(seed=1)
    samplers = Samplers(Apart(Sampler(task, random_policy(seed=2))), task)
    starts, context = fresh(task.problems("train"), 2, Stream(0)), context_of(task, policy)
    for _ in range(2):
        with torch.no_grad():
            next(policy.model.parameters()).add_(0.05)
        policy.updated()
        assert seen(samplers.play(starts, context, HOW)) == seen(played(starts, context, HOW))


def test_several_samplers_play_their_pieces_in_turn() -> None:
    task, policy = Slow(turns=2), random_policy()
    starts = fresh(task.problems("train"), 3, Stream(0))
    context = context_of(task, policy)
    pieces = [played(starts[:8], context, HOW), played(starts[8:], context, HOW)]
    there = Samplers(Local(Sampler(task, policy), 2), task).play(starts, context, HOW)
    assert seen(there) == seen(pieces[0] + pieces[1])
    assert Samplers(Local(Sampler(task, policy), 2), task).play([], context, HOW) == []


@pytest.mark.slow
def test_a_loop_with_samplers_is_the_loop_without() -> None:
    method, found = grpo.replace(problems=3, experience=Groups(size=4)), []
    for sampled in (False, True):
        policy, task = random_policy(), Toy()
        samplers = Samplers(Local(Sampler(task, policy)), task) if sampled else None
        loop = make_loop(method, task, policy, samplers=samplers)
        metrics = [loop.step().metrics for _ in range(2)]
        timed = ("seconds/", "tokens_per_second")
        found.append(([{k: v for k, v in m.items() if not k.startswith(timed)} for m in metrics], policy.tensors()))
    (metrics, weights), (others, theirs) = found
    assert metrics == others
    assert all(torch.equal(weights[k], v) for k, v in theirs.items())


# What is refused


def test_rows_of_other_weights_are_never_sampled() -> None:
    task, policy = Slow(), random_policy()
    with pytest.raises(InvariantError, match=r"holds weights with the mark .* rows of version 7"):
        Sampler(task, policy).play([], {}, version=7, mark="0123456789abcdef")
    assert policy.version == 0


class Wrong(Local):
    """An executor whose answers are changed on the way."""

    def __init__(self, role: Sampler, change: Any) -> None:
        super().__init__(role)
        self.change = change

    def ask(self, method: str, before: Before | None = None, /, **arguments: Any) -> Any:
        return self.change(super().ask(method, before, **arguments))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: {**a, "rows": a["rows"][:-1]}, "asked for 5 rows"),
        (lambda a: {**a, "rows": a["rows"][:-1] + a["rows"][:1]}, "asked for 5 rows"),
        (lambda a: {**a, "mark": [*a["mark"], "0123"]}, "sampled from weights .*0123"),
    ],
    ids=["lost", "twice", "other weights"],
)
def test_answers_that_do_not_fit_are_refused(change: Any, sentence: str) -> None:
    task, policy = Slow(turns=1), random_policy()
    samplers = Samplers(Wrong(Sampler(task, policy), change), task)
    with pytest.raises(InvariantError, match=sentence):
        samplers.play(fresh(task.problems("train"), 1, Stream(0)), context_of(task, policy), HOW)


def test_tokens_that_no_sampler_emitted_are_refused() -> None:
    """Invariant 3 holds where rows come from elsewhere: hashes of what was emitted come with them."""

    def edited(answer: dict[str, Any]) -> dict[str, Any]:
        answer["rows"][0]["segments"][-1]["tokens"][0] += 1
        return answer

    task, policy = Toy(), random_policy()
    samplers = Samplers(Wrong(Sampler(task, policy), edited), task)
    with pytest.raises(InvariantError, match="never emitted"):
        make_loop(grpo.replace(problems=3), task, policy, samplers=samplers).step()


@pytest.mark.parametrize("where", ["problem", "environment"])
def test_what_cannot_be_sent_is_said_in_a_sentence(where: str) -> None:
    task, policy = Slow(turns=1), random_policy()
    task = task if where == "problem" else task.replace(fault="unsendable", turns=3)
    problem = Problem("p", "1:", info={"number": 1, "place": (1, 0), "thing": object() if where == "problem" else 0})
    samplers = Samplers(Local(Sampler(task, policy)), task)
    with pytest.raises(EnvironmentFault, match=r"for problem 'p' .* make it text, numbers, lists or dicts"):
        samplers.play(fresh([problem], 1, Stream(0)), context_of(task, policy), HOW)
