"""What an episode draws depends on what it is, never on which others are played with it, when, or in how many calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import SingleTurn, StepResult
from etude.evaluation.language import evaluate_split
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.experience.pieces import PartialRollouts
from etude.experience.rollout import Start, first_tokens, fresh, rollout
from etude.filters.informative import InformativeGroups
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.poly_ppo.vine import Vine
from etude.methods.rlvr.r3l.retry import ReflectThenRetry
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.agents.keys import keys
from language_toys import Toy, make_loop, random_policy

F64 = torch.float64
Said = list[list[int]]


def ending(policy: LanguagePolicy) -> LanguagePolicy:
    """The policy with so many end tokens that its completions have all lengths."""
    policy.__class__ = type("Ends", (LanguagePolicy,), {"end_ids": property(lambda self: list(range(1, 40)))})
    return policy


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return ending(random_policy(dtype=F64))


@pytest.fixture(scope="module")
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny", device="cpu", dtype="float64")


def context(task: Any, policy: LanguagePolicy, *names: str | int, seed: int = 0) -> Context:
    return Context(task, policy, Stream(seed).split(*names), max_tokens=task.max_tokens)


def said(episode: Episode) -> Said:
    return [s.tokens for s in episode.segments]


def play(starts: Sequence[Start], task: Any, policy: LanguagePolicy, tokens: int = 10) -> list[Said]:
    return [said(e) for e in rollout(starts, context(task, policy), Sampling(max_tokens=tokens))]


# A batch that is cut


@pytest.mark.slow
def test_a_batch_may_be_cut_permuted_and_thinned(policy: LanguagePolicy) -> None:
    task = Toy(max_tokens=10)
    starts = fresh(task.problems("train"), 4, Stream(0))
    whole = play(starts, task, policy)
    assert len({len(row[-1]) for row in whole}) > 4, "rows end at different times"
    order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(0)).tolist()
    assert play([starts[i] for i in order], task, policy) == [whole[i] for i in order]
    assert play(starts[:5], task, policy) + play(starts[5:], task, policy) == whole
    assert play(starts[::3], task, policy) == whole[::3]
    assert play(starts[7:8], task, policy) == whole[7:8]


@pytest.mark.slow
def test_games_of_several_turns_may_be_cut_too(tiny: LanguagePolicy) -> None:
    """Others end at other turns, so that the batches of later turns differ as well."""
    starts = fresh(attr_20q.problems("train")[:3], 2, Stream(1))
    whole = play(starts, attr_20q, tiny)
    assert len({len(game) for game in whole}) > 1
    assert play(starts[::-2], attr_20q, tiny) == whole[::-2]


def test_environments_are_seeded_by_address(policy: LanguagePolicy) -> None:
    task = Toy(max_tokens=2)
    starts = fresh(task.problems("train"), 3, Stream(0))
    seeds = [e.seed for e in rollout(starts, context(task, policy), Sampling(max_tokens=2))]
    assert len(set(seeds)) == len(seeds) and all(0 <= s < 2**31 for s in seeds)
    assert [e.seed for e in rollout(starts[4:], context(task, policy), Sampling(max_tokens=2))] == seeds[4:]


def test_more_samples_and_more_problems_leave_the_others_alone(policy: LanguagePolicy) -> None:
    task, here = Toy(max_tokens=8), context(Toy(max_tokens=8), policy, "step", 0)
    problems = task.problems("train")
    few, many = (Groups(size=n).collect(problems[:k], here) for n, k in ((2, 2), (5, 3)))
    by_draw = {e.draw: said(e) for e in many}
    assert [by_draw[e.draw] for e in few] == [said(e) for e in few]


@pytest.mark.slow
def test_evaluation_of_a_part_is_a_part_of_the_evaluation(
    policy: LanguagePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.evaluation import language

    task = Toy(max_tokens=8, prompts=tuple("abcde"))
    monkeypatch.setattr(language, "BATCH", 7)
    found = [
        evaluate_split(policy, task, "test", problems=n, samples=k, seed=s).episodes
        for n, k, s in ((2, 2, 0), (5, 4, 0), (5, 4, 1))
    ]
    part, whole, other = ([[said(e) for e in group] for group in episodes] for episodes in found)
    assert part == [group[:2] for group in whole[:2]] and whole != other
    assert len({e.draw for group in found[1] for e in group}) == 20


# Addresses


def address(of: str, **changes: Any) -> Draw:
    """The draw of a turn, spelled out as the loop and the experiences make it."""
    at = {"seed": 0, "step": 3, "round": 0, "problem": "p", "occurrence": 0, "sample": 1, "turn": 0, "purpose": of}
    at |= changes
    stream = Stream(at["seed"]).split("step", at["step"]).split("round", at["round"])
    problems = [Problem(at["problem"], "")] * (at["occurrence"] + 1)
    start = fresh(problems, at["sample"] + 1, stream)[-1]
    return start.draw.child("turn", at["turn"], at["purpose"])


def test_whatever_an_address_names_makes_another_draw() -> None:
    others = {"seed": 1, "step": 4, "round": 1, "problem": "q", "occurrence": 1, "sample": 2, "turn": 1,
              "purpose": "report"}  # fmt: skip
    draws = [address("tokens"), *(address("tokens", **{k: v}) for k, v in others.items())]
    assert len(set(draws)) == len(draws) and address("tokens") == address("tokens")


@pytest.mark.first
@pytest.mark.parametrize("change", [{"seed": 1}, {"names": ("step", 1)}, {"names": ("step", 0, "round", 1)}])
def test_another_seed_step_or_round_says_something_else(policy: LanguagePolicy, change: dict[str, Any]) -> None:
    task = Toy(max_tokens=8)

    def completions(names: tuple[str | int, ...] = ("step", 0, "round", 0), seed: int = 0) -> list[Said]:
        here = context(task, policy, *names, seed=seed)
        return [said(e) for e in Groups(size=4).collect(task.problems("train"), here)]

    assert completions() == completions()
    changed = completions(**change)
    assert sum(a == b for a, b in zip(completions(), changed)) <= 1


def test_a_problem_drawn_twice_gets_other_completions(policy: LanguagePolicy) -> None:
    task, here = Toy(max_tokens=8), context(Toy(max_tokens=8), policy, "step", 0)
    a, b, *_ = task.problems("train")
    episodes = Groups(size=3).collect([a, b, a], here)
    first, second = [said(e) for e in episodes[:3]], [said(e) for e in episodes[6:]]
    assert not any(row in second for row in first)
    again = Groups(size=3).collect([a, a, b], here)
    assert [said(e) for e in again[:3]] == first and [said(e) for e in again[3:6]] == second


@pytest.mark.slow
def test_rounds_of_resampling_say_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of one problem, which every round draws again."""
    method = grpo.replace(problems=2, experience=Groups(size=2), filters=(InformativeGroups(rounds=3),))
    loop = make_loop(method, Toy(prompts=("a",), scoring=lambda problem, text: 0.0), ending(random_policy(dtype=F64)))
    assessed, assess = [], LanguageLoop._assess

    def noted(self: LanguageLoop, *arguments: Any) -> Any:
        assessed.append(assess(self, *arguments)["policy"])
        return {"policy": assessed[-1]}

    monkeypatch.setattr(LanguageLoop, "_assess", noted)
    loop.step()
    draws = torch.cat([b.draw for b in assessed])
    assert len(assessed) == 3 and len(draws.unique()) == len(draws) == 12
    completions = {tuple(e.segments[-1].tokens) for b in assessed for e in b.episodes}
    assert len(completions) > 9


def test_rows_know_their_draw(policy: LanguagePolicy) -> None:
    loop = make_loop(grpo.replace(problems=2, experience=Groups(size=3)), Toy(max_tokens=6), policy)
    batch = loop._assess(loop.method, 2, 0, loop.stream.split("step", 0))["policy"]
    assert batch.draw.dtype == torch.int64 and batch.draw.tolist() == [e.draw.key for e in batch.episodes]
    assert batch.rows(torch.tensor([4, 1])).draw.tolist() == [batch.episodes[i].draw.key for i in (4, 1)]


# A turn that goes on later


@pytest.mark.parametrize("place", [1, 3, 6])
def test_a_turn_continued_is_the_turn_that_was_not_interrupted(policy: LanguagePolicy, place: int) -> None:
    task = Toy(max_tokens=12)
    starts = fresh(task.problems("train"), 4, Stream(2))
    whole = rollout(starts, context(task, policy), Sampling(max_tokens=12))
    longer = [(s, e) for s, e in zip(starts, whole) if len(e.segments[-1].tokens) > place]
    assert len(longer) > 2
    later = [s._replace(segments=(first_tokens(e.segments[-1], place, policy),), open=True) for s, e in longer]
    rest = rollout(later[::-1], context(task, policy, "much", "later"), Sampling(max_tokens=12 - place))[::-1]
    assert [said(e) for e in rest] == [said(e) for _, e in longer]
    assert all(e.segments[-1].info["begun"] == place for e in rest)


@pytest.mark.slow
@pytest.mark.parametrize("task", [attr_20q, keys], ids=["attr-20q", "keys"])
def test_a_game_continued_is_the_game_that_was_not_interrupted(tiny: LanguagePolicy, task: Any) -> None:
    """From a snapshot, which is what was said and the environment's seed, at every turn."""
    starts = fresh([task.problems("train")[i] for i in range(2)], 1, Stream(3))
    for start, whole in zip(starts, rollout(starts, context(task, tiny), Sampling(max_tokens=task.max_tokens))):
        turns = [s for s in whole.segments if s.role == "assistant"]
        places = sorted({0, len(turns) // 2, len(turns) - 1})
        later = [start._replace(segments=tuple(turns[:k])) for k in places]
        for rest in rollout(later, context(task, tiny), Sampling(max_tokens=task.max_tokens)):
            assert said(rest) == said(whole) and (rest.stop, rest.seed) == (whole.stop, whole.seed)


class Silent(SingleTurn):
    """Answers nothing between turns, and never ends by itself."""

    def step(self, segment: Segment) -> StepResult:
        return StepResult([])


def test_whole_turns_said_again_are_not_gone_on_with_and_count_as_turns(policy: LanguagePolicy) -> None:
    task = Toy(world=Silent, max_turns=3)
    (start,) = fresh(task.problems("train")[:1], 1, Stream(0))
    (whole,) = rollout([start], context(task, policy), Sampling(max_tokens=4))
    turns = tuple(whole.segments[1:])
    assert len(turns) == 3
    (rest,) = rollout([start._replace(segments=turns[:2])], context(task, policy), Sampling(max_tokens=4))
    assert said(rest) == said(whole) and rest.stop is whole.stop


@pytest.mark.slow
def test_branches_of_one_state_differ_and_come_again(policy: LanguagePolicy) -> None:
    task, here = Toy(max_tokens=9), context(Toy(max_tokens=9), policy, "step", 0)
    problems, vine = task.problems("train")[:2], Vine(size=2, states=1, continuations=4)
    episodes = vine.collect(problems, here)
    assert len({e.draw for e in episodes}) == len(episodes)
    branches = {e.draw: said(e) for e in episodes[4:]}
    assert len({str(b) for b in branches.values()}) > 0.8 * len(branches)
    alone = vine.collect(problems[1:], here)
    assert all(branches[e.draw] == said(e) for e in alone[2:])


class Reporter(LanguagePolicy):
    """A policy whose every report is the same; everything else it samples."""

    def generate(self, prompts: Any, sampling: Sampling, draws: Any, begun: Any = ()) -> Any:
        found = super().generate(prompts, sampling, draws, begun)
        if sampling.stop != (">",):
            return found
        tokens = self.encode("<fail 0 W>")
        return [dataclasses.replace(c, tokens=tokens, logp=[0.0] * len(tokens)) for c in found]


@pytest.mark.slow
def test_retries_do_not_depend_on_company(policy: LanguagePolicy) -> None:
    policy = random_policy(dtype=F64, context=256)
    policy.__class__ = Reporter
    task, here = Toy(max_tokens=9), context(Toy(max_tokens=9), policy, "step", 0)
    problems, part = task.problems("train"), ReflectThenRetry(size=4)
    together = {(e.draw, e.auxiliary): said(e) for e in part.bind().collect(problems, here)}
    alone = part.bind().collect(problems[2:], here)
    assert len(alone) >= 4 and len({e.draw for e in alone}) >= 4
    assert all(together[e.draw, e.auxiliary] == said(e) for e in alone)


# Data


def test_worked_answers_that_are_drawn_do_not_depend_on_place() -> None:
    tiny = LanguagePolicy.load("tiny", device="cpu")
    here, (a, b) = context(keys, tiny, "step", 0), [keys.problems("train")[i] for i in (0, 5)]
    whole = [said(e) for e in Demonstrations().collect([a, b, a], here)]
    assert [said(e) for e in Demonstrations().collect([b, a], here)] == [whole[1], whole[0]]


# Runs


@pytest.mark.slow
def test_a_resumed_run_of_partial_rollouts_is_the_one_that_never_stopped(tmp_path: Path) -> None:
    method = grpo.replace(problems=2, experience=PartialRollouts(size=4, cap=3))

    def make(seed: int = 0) -> LanguageLoop:
        return make_loop(method, Toy(max_tokens=9), ending(random_policy(dtype=F64, seed=seed)), steps=6)

    straight, stopped = make(), make()
    expected = [straight.step().episodes for _ in range(5)]
    assert [stopped.step().episodes for _ in range(2)] == expected[:2]
    assert stopped.method.experience.state["open"], "some go on after the stop"
    stopped.save(tmp_path)
    resumed = make(seed=9)
    resumed.load(tmp_path)
    assert [resumed.step().episodes for _ in range(3)] == expected[2:]
