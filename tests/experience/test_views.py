"""Views: what is seen of an episode, the rows that this makes, and what they teach."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from etude.advantages.group import GroupAdvantage, GroupStd
from etude.core.episodes import Episode, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.rows import to_batch
from etude.core.slots import Context, Reward
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.experience.forks import Forks
from etude.experience.groups import Groups
from etude.experience.lines import shared
from etude.experience.looks import _behind
from etude.experience.rollout import fresh, played, rollout
from etude.experience.samplers import Sampler, Samplers
from etude.experience.views import (
    DropObservations,
    LastObservation,
    LastTurns,
    OlderThan,
    SummaryAt,
    Tagged,
    View,
    only_seen,
)
from etude.loops.credit import credited, loss
from etude.methods.rlvr.grpo import grpo
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.rewards.outcome import TaskReward
from etude.rewards.scoring import score
from etude.runtime.executors.local import Local
from etude.tasks.agents.keys import keys
from etude.tasks.language.compose import compose
from language_toys import Toy, gradients, make_loop, random_policy

VIEWS = [
    LastTurns(turns=1), LastTurns(turns=3), LastObservation(), DropObservations(where=OlderThan(turns=1)),
    DropObservations(where=Tagged(tag="noise"), instead="-"), SummaryAt(limit=30, most=3, tokens=4, request="s:"),
]  # fmt: skip


class Talk:
    """Answers `turns` times, pays 1/4 in each, and tags every second answer as noise."""

    turns: ClassVar[int] = 5

    def __init__(self, task: Any) -> None:
        self.turn = 0

    def reset(self, problem: Any, seed: int) -> list[Segment]:
        self.turn = 0
        return [Segment("user", problem.prompt)]

    def step(self, segment: Segment) -> StepResult:
        self.turn += 1
        said = Segment("user", f"{self.turn}!", info={"noise": self.turn % 2 == 0})
        return StepResult([said], 0.25, terminated=self.turn == self.turns)


def talk(**options: Any) -> Toy:
    return Toy(("one:", "three:"), world=Talk, max_turns=8, max_tokens=4, **options)


def play(view: View, task: Any = None, policy: Any = None, size: int = 2, tokens: int = 4) -> list[Episode]:
    task, policy = task or talk(), policy or random_policy()
    context = Context(task, policy, Stream(3), max_tokens=tokens)
    starts = fresh(task.problems("train")[:2], size, context.stream)
    return rollout(starts, context, Sampling(max_tokens=tokens), view)


def rows_of(episodes: list[Episode], policy: Any) -> Any:
    return to_batch(episodes, 0, 1.0, policy.device)


def shown(episodes: list[Episode]) -> list[Any]:
    """All of them but how long environments took."""

    def facts(s: Segment) -> tuple[Any, ...]:
        return s.role, s.text, s.tokens, s.action_mask, s.behaviour_logp, s.version, s.reward, s.info

    return [([*map(facts, e.segments)], [[*map(facts, v)] for v in e.views], e.stop, e.info) for e in episodes]


@pytest.mark.slow
@pytest.mark.parametrize("view", [LastTurns(turns=50), SummaryAt(limit=10_000), DropObservations(where=Tagged())])
def test_a_view_of_everything_is_the_full_history(view: View) -> None:
    policy = random_policy()
    for task in (Toy(("one:", "three:"), world=Talk, max_turns=4, max_tokens=4), keys):
        if isinstance(view, DropObservations):
            view = view.replace(where=Tagged(tag="nothing has this"))
        plain = play(LastTurns(turns=10_000), task, policy)
        context = Context(task, policy, Stream(3), max_tokens=4)
        starts = fresh(task.problems("train")[:2], 2, context.stream)
        whole = played(starts, context, Sampling(max_tokens=4))
        seen = play(view, task, policy)
        assert shown(whole) == shown(plain) == shown(seen)
        assert not any(e.views for e in (*whole, *plain, *seen))
        ours, theirs = rows_of(seen, policy), rows_of(whole, policy)
        assert all(torch.equal(v, theirs._tensors()[k]) for k, v in ours._tensors().items())


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_every_sampled_token_stands_in_one_row_as_it_was_sampled(view: View) -> None:
    policy = random_policy()
    episodes = play(view, policy=policy)
    assert all(e.views for e in episodes)
    for e in episodes:
        said = [s for s in e.segments if any(s.action_mask)]
        learned = [s for row in e.rows for s in row.segments if any(s.action_mask)]
        assert len(learned) == len(said) and all(a is b for a, b in zip(learned, said))
        assert all(s.action_mask == [1] * len(s.tokens) for s in said)
    batch = rows_of(episodes, policy)
    assert int(batch.action_mask.sum()) == sum(e.action_count for e in episodes)
    found = policy.evaluate(batch).logp.detach()
    torch.testing.assert_close(found, batch.behaviour_logp, rtol=0, atol=1e-4)  # the rows are what the sampler saw
    assert batch.episode.unique().tolist() == [0, 1, 2, 3]
    assert batch.group.tolist() == [episodes[n].group for n in batch.episode.tolist()]
    assert batch.draw.tolist() == [episodes[n].draw.key for n in batch.episode.tolist()]


def test_the_last_turns_are_seen_behind_the_opening() -> None:
    (episode, *_) = play(LastTurns(turns=1))
    opening, turns = episode.segments[0], episode.segments[1:]
    rows = [[s.tokens for s in row] for row in episode.views]
    history = [s.tokens for s in turns]
    assert rows[0] == [opening.tokens, *history[:3]]  # the first two views go on from each other
    assert rows[1:] == [[opening.tokens, *history[2 * n : 2 * n + 3]] for n in range(1, len(rows))]


def test_observations_are_left_out_or_replaced() -> None:
    policy = random_policy()
    (episode, *_) = play(DropObservations(where=Tagged(tag="noise"), instead="-"), policy=policy)
    last = episode.views[-1]
    assert [s.text for s in last if not any(s.action_mask) and s.role == "user"] == ["one:", "1!", "-", "3!", "-"]
    assert [t for s in last for t in s.tokens].count(policy.encode("-")[0]) >= 2
    (episode, *_) = play(DropObservations(where=OlderThan(turns=1)))
    assert [s.text for s in episode.views[-1] if s.role == "user"] == ["one:", "", "", "", "4!"]


def test_a_summary_is_asked_for_before_the_limit_is_passed() -> None:
    view, policy = SummaryAt(limit=30, most=3, tokens=4, request="s:"), random_policy()
    for e in play(view, policy=policy):
        roles = [s.role for s in e.segments]
        assert "summary" in roles
        for row in e.rows:
            assert len(row.tokens) <= 30 + 2  # what is answered last is only seen behind the row
            assert sum(s.role == "summary" and any(s.action_mask) for s in row.segments) <= 1
        number = roles.index("summary")
        summary = e.segments[number]
        assert e.segments[number - 1].info == {"request": True} and len(summary.tokens) <= 4
        line = [*summary.tokens, *policy.encode("\n")]
        following = next(r for r in e.rows if r.segments[1].tokens == line)
        assert following.segments[1].role == "summary" and not any(following.segments[1].action_mask)
        assert following.segments[0].tokens == e.segments[0].tokens
        others = [s for s in e.segments if s.role == "summary"]
        assert len(others) <= 3


def test_without_a_summary_left_the_episode_ends_there() -> None:
    (episode, *_) = play(SummaryAt(limit=24, most=0))
    assert episode.stop is StopReason.CONTEXT_OVERFLOW and not episode.views
    assert len(episode.turns) < 5
    assert play(SummaryAt(limit=6, tokens=64))[0].stop is StopReason.CONTEXT_OVERFLOW


def test_what_does_not_fit_with_the_request_is_left_out_of_the_summary() -> None:
    """A long request takes the room of the last turn: it is in its own row, and the summary does not see it."""
    view = SummaryAt(limit=30, most=1, tokens=4, request="summary please")
    for e in play(view):
        if not any(s.role == "summary" for s in e.segments):
            continue
        turns = [s for s in e.segments if any(s.action_mask)]
        number = next(n for n, s in enumerate(turns) if s.role == "summary")
        row = next(r for r in e.views if turns[number] in r)
        seen = [s.tokens for s in row if s.role == "assistant"]
        assert len(seen) < number and seen == [s.tokens for s in turns[: len(seen)]]


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_nothing_is_read_twice(view: View) -> None:
    """An opening is read once for all episodes that have it, then only what is behind what a view has in common.

    A view that has nothing in common is an opening.
    """
    policy = random_policy()
    policy.work.clear()
    episodes = play(view, policy=policy)
    assert policy.work["prefilled_again"] == 0
    read, openings = 0, {(0, tuple(e.segments[0].tokens)) for e in episodes}
    for e in episodes:
        held: list[int] = []
        for turn, (seen, said) in enumerate(looks(e)):
            if held and not shared(held, seen):
                openings.add((turn, tuple(seen)))
                held = [*seen, *said]
                continue
            common = shared(held, seen) if held else len(e.segments[0].tokens)
            read += len(seen) - (len(held) - 1 if seen[: len(held)] == held and held else common)
            held = [*seen, *said]
    assert policy.work["prefilled_tokens"] == read + sum(len(tokens) for _, tokens in openings)


def looks(episode: Episode) -> list[tuple[list[int], list[int]]]:
    """What was seen before each thing that was said, and that."""
    found = []
    for row in episode.rows:
        seen: list[int] = []
        for s in row.segments:
            if any(s.action_mask):
                found.append((list(seen), s.tokens))
            seen += s.tokens
    return found


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_rewound_rows_say_what_fresh_ones_say(view: View, kind: str) -> None:
    """`gpt2` is decoded by transformers, whose caches cannot go back: there rows are read again, and counted."""
    policy = random_policy(kind)
    policy.work.clear()
    ours = play(view, policy=policy)
    assert (policy.work["prefilled_again"] > 0) == (kind == "gpt2" and rewinds(ours))
    rows = to_batch(ours, 0, 1.0, policy.device)
    torch.testing.assert_close(policy.evaluate(rows).logp.detach(), rows.behaviour_logp, rtol=0, atol=1e-4)


def rewinds(episodes: list[Episode]) -> bool:
    """Whether a view goes back to the beginning of the one before; one that has none of it is read as an opening."""
    return any(0 < shared([*a, *b], c) < len(a) + len(b) for e in episodes for (a, b), (c, _) in pairwise(looks(e)))


@pytest.mark.slow
def test_samplers_send_views() -> None:
    policy, task = random_policy(), talk()
    for view in (LastTurns(turns=1), SummaryAt(limit=30, most=3, tokens=4)):
        context = Context(task, policy, Stream(3), max_tokens=4)
        starts = fresh(task.problems("train"), 2, context.stream)
        here = played(starts, context, Sampling(max_tokens=4), view)
        context.samplers = Samplers(Local(Sampler(task, policy)), task)
        there = rollout(starts, context, Sampling(max_tokens=4), view)
        assert shown(there) == shown(here) and any(e.views for e in here)
        assert all(any(s is own for own in e.segments) for e in there for r in e.views for s in r if any(s.action_mask))


# What rows are worth


def test_an_episode_is_paid_once_and_every_row_has_what_is_still_to_come() -> None:
    policy, task = random_policy(), talk()
    episodes = play(LastTurns(turns=1), policy=policy)
    batch = score(rows_of(episodes, policy), (TaskReward(),), Context(task, policy, Stream(0)))
    assert batch.scores.tolist() == [1.25] * len(batch)
    assert [e.total for e in episodes] == [1.25] * 4 and episodes[0].scores == {"task-reward": 1.25}
    sums, number = batch.rewards.sum(1), batch.episode
    for n in range(4):
        left = sums[number == n].tolist()  # two turns are in the first row, then one in each
        assert left == [1.25, 0.75, 0.5, 0.25]
    assert batch.solved is None and not batch.truncated.any()


def test_what_judges_whole_episodes_is_asked_once_and_placed_on_the_last_row() -> None:
    policy, asked = random_policy(), list[int]()

    class Judge(Reward):
        def score(self, episodes: Any, context: Any) -> list[float]:
            asked.append(len(episodes))
            return [float(len(e.turns)) for e in episodes]

    episodes = play(LastTurns(turns=1), policy=policy)
    batch = score(rows_of(episodes, policy), (Judge(),), Context(talk(), policy, Stream(0)))
    assert asked == [4] and [e.total for e in episodes] == [5.0] * 4
    assert batch.scores.tolist() == [5.0] * len(batch)
    assert (batch.rewards != 0).sum(1).tolist() == [1] * len(batch)
    assert batch.rewards.sum(1).tolist() == [5.0] * len(batch)  # of every row it is still to come


def test_only_the_last_row_of_a_truncated_episode_goes_on() -> None:
    policy = random_policy()
    task = Toy(("one:", "three:"), world=Talk, max_turns=4, max_tokens=4)
    batch = rows_of(play(LastTurns(turns=1), task, policy), policy)
    assert batch.truncated.tolist() == batch.ends().tolist() and 0 < int(batch.truncated.sum()) < len(batch)


@pytest.mark.parametrize("aggregation", ["token-mean", "fixed-length"])
def test_merged_rows_have_the_gradient_of_separate_ones(aggregation: str) -> None:
    """Full histories as one row, and as a row for every turn."""
    policy = random_policy(dtype=torch.float64)
    whole = play(LastTurns(turns=50), policy=policy)
    for k, e in enumerate(whole):
        e.segments[1].reward = float(k)
    apart = [e.__class__(**{**e.__dict__, "views": by_turn(e)}) for e in whole]
    method = grpo.replace(aggregation=aggregation)
    found = []
    for episodes in (whole, apart):
        batch = rows_of(episodes, policy)
        batch = batch.replace(rewards=batch.rewards.double(), weights=batch.weights.double())
        batch = score(batch, method.rewards, Context(talk(), policy, Stream(0)))
        batch = credited(method, batch)
        scale = len(batch) / 4 if aggregation == "fixed-length" else 1.0
        policy.model.zero_grad()
        (loss(method, batch, policy.evaluate(batch), 4) * scale).backward()
        found.append(gradients(policy))
    assert len(rows_of(apart, policy)) > len(rows_of(whole, policy)) == 4
    one, other = (torch.cat([v.flatten() for v in g.values()]) for g in found)
    assert one.norm() > 0.01 and (one - other).norm() < 1e-6 * one.norm()  # the head's softmax is in float32


def by_turn(episode: Episode) -> list[list[Segment]]:
    """A row for every turn: all that was before it, and what was said."""
    places = [n for n, s in enumerate(episode.segments) if any(s.action_mask)]
    return [[*map(only_seen, episode.segments[:n]), episode.segments[n]] for n in places]


def test_a_row_goes_on_from_inside_of_a_segment() -> None:
    row = [Segment("user", tokens=[1, 2], action_mask=[0, 0], behaviour_logp=[0.0, 0.0])]
    seen = [Segment("user", tokens=[1, 2, 3, 4], action_mask=[0] * 4, behaviour_logp=[0.0] * 4)]
    rest = _behind(row, seen)
    assert rest is not None and [s.tokens for s in rest] == [[3, 4]]
    assert _behind(row, [Segment("user", tokens=[1, 3], action_mask=[0, 0], behaviour_logp=[0.0] * 2)]) is None


def test_statistics_count_episodes() -> None:
    policy = random_policy()
    episodes = play(LastTurns(turns=1), policy=policy, size=4)
    for k, e in enumerate(episodes):
        e.segments[1].reward += float(k % 3)
    batch = score(rows_of(episodes, policy), (TaskReward(),), Context(talk(), policy, Stream(0)))
    found = GroupAdvantage(scale=GroupStd(epsilon=0.0))(batch)
    for n, e in enumerate(episodes):
        scores = torch.tensor([o.total for o in episodes if o.group == e.group])
        expected = (e.total - scores.mean()) / scores.std(correction=0)
        mine = found[batch.episode == n][batch.action_mask[batch.episode == n]]
        torch.testing.assert_close(mine, expected.expand_as(mine), atol=1e-5, rtol=0)


# Runs


def test_the_last_observation_is_seen_alone() -> None:
    policy = random_policy()
    for e in play(LastObservation(), policy=policy):
        assert len(e.views) == Talk.turns
        told = [s.tokens for s in e.segments if s.role == "user"]
        assert [seen for seen, _ in looks(e)] == told
        assert [row.segments[-1].tokens for row in e.rows] == [s.tokens for s in e.segments if s.role == "assistant"]


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS[:1] + VIEWS[-1:], ids=lambda v: v.name)
def test_a_run_stopped_with_views_goes_on(view: View, tmp_path: Path) -> None:
    method = grpo.replace(problems=2, experience=Groups(size=4, view=view))
    timed = ("seconds/experience", "seconds/update", "tokens_per_second")

    def metrics(loop: Any, steps: int) -> list[dict[str, float]]:
        return [{k: v for k, v in loop.step().metrics.items() if k not in timed} for _ in range(steps)]

    task = Toy(("one:", "three:"), world=Talking, max_turns=8, max_tokens=4)
    through, stopped = (make_loop(method, task, random_policy()) for _ in range(2))
    expected = metrics(through, 3)
    assert metrics(stopped, 1) == expected[:1]
    assert expected[0]["rows"] > 8 and expected[0]["prefilled_again"] == 0
    stopped.save(tmp_path / "there")
    resumed = make_loop(method, task, random_policy())
    resumed.load(tmp_path / "there")
    assert metrics(resumed, 2) == expected[1:]
    assert all(torch.equal(a, b) for a, b in zip(through.policy.parameters(), resumed.policy.parameters()))


class Talking(Talk):
    """Pays for letters."""

    def step(self, segment: Segment) -> StepResult:
        result = super().step(segment)
        result.reward = sum(c.islower() for c in segment.text) / 4
        return result


@pytest.mark.slow
def test_no_limit_is_todays_run() -> None:
    found = []
    for view in (Groups().view, LastTurns(turns=100), SummaryAt(limit=10_000)):
        method = grpo.replace(problems=2, experience=Groups(size=4, view=view))
        loop = make_loop(method, keys, LanguagePolicy.load("tiny", device="cpu"))
        found.append([{k: v for k, v in loop.step().metrics.items() if "second" not in k} for _ in range(2)])
    assert found[0] == found[1] == found[2]


def test_views_that_nobody_would_read_are_refused() -> None:
    view = LastTurns(turns=1)
    with pytest.raises(ConfigError, match=r"has one turn: set experience\.view=full-history"):
        check(grpo.replace(experience=Groups(view=view)), compose)
    check(grpo.replace(experience=Groups(view=view)), keys)
    with pytest.raises(ConfigError, match="goes on from inside of episodes"):
        check(grpo.replace(experience=Forks(view=view), advantages=spo_advantages()))


def spo_advantages() -> Any:
    from etude.advantages.segments import SegmentAdvantage

    return SegmentAdvantage()
