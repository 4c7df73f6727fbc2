"""Playing episodes: one code path for one turn or ten."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

from etude.core.draws import Draw
from etude.core.episodes import Episode, Segment, StopReason
from etude.core.errors import ConfigError, EnvironmentFault, InvariantError
from etude.core.rows import concatenate, split_groups, to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import SingleTurn, StepResult
from etude.experience.deadline import deadline
from etude.experience.groups import Groups
from etude.experience.lines import Lines
from etude.experience.rollout import Start, fresh, rollout
from etude.methods.rlvr.grpo import grpo
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling
from etude.rewards.outcome import TaskReward
from etude.rewards.scoring import score
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.agents.keys import keys
from language_toys import Scripted, Toy, make_loop, random_policy


@pytest.fixture(scope="module")
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny", device="cpu")


@pytest.fixture(scope="module")
def games(tiny: LanguagePolicy) -> list[Episode]:
    context = Context(attr_20q, tiny, Stream(1), max_tokens=attr_20q.max_tokens)
    return rollout(
        fresh(attr_20q.problems("train")[:4], 4, context.stream), context, Sampling(max_tokens=attr_20q.max_tokens)
    )


@pytest.mark.slow
def test_several_turns_alternate(games: list[Episode]) -> None:
    assert {e.group for e in games} == {0, 1, 2, 3}
    assert max(len(e.segments) for e in games) > 3
    for e in games:
        roles = [s.role for s in e.segments]
        assert roles == (["user", "assistant"] * 11)[: len(roles)]
        assert e.stop is (StopReason.TERMINATED if e.info["success"] else StopReason.TRUNCATED)
        assert roles[-1] == ("user" if e.stop.truncated else "assistant")  # what a truncated game goes on from


@pytest.mark.slow
def test_the_mask_is_on_sampled_tokens_only(games: list[Episode], tiny: LanguagePolicy) -> None:
    for e in games:
        for s in e.segments:
            sampled = s.role == "assistant"
            assert s.action_mask == [int(sampled)] * len(s.tokens)
            assert all((p < 0) == sampled for p in s.behaviour_logp if p) and len(s.behaviour_logp) == len(s.tokens)
            assert (s.version == tiny.version) == sampled


def test_text_is_a_view_of_tokens(games: list[Episode], tiny: LanguagePolicy) -> None:
    for e in games:
        for s in e.segments:
            assert s.text == tiny.decode(s.tokens)
            if s.role == "user":
                assert tiny.encode(s.text) == s.tokens


def test_each_turns_reward_lies_on_its_last_token(games: list[Episode], tiny: LanguagePolicy) -> None:
    batch = to_batch(games, 0, 1.0, tiny.device)
    scored = score(batch, (TaskReward(),), Context(attr_20q, tiny, Stream(0)))
    for row, e in enumerate(games):
        expected, place = torch.zeros(batch.tokens.shape[1]), 0
        for s in e.segments:
            place += len(s.tokens)
            expected[place - 1] += s.reward
        assert torch.equal(scored.rewards[row], expected)
        assert not scored.rewards[row][~batch.action_mask[row]].any()
        assert e.scores == {"task-reward": pytest.approx(e.reward)}


def test_the_history_is_what_the_sampler_saw(games: list[Episode], tiny: LanguagePolicy) -> None:
    batch = to_batch(games, 0, 1.0, tiny.device)
    torch.testing.assert_close(tiny.evaluate(batch).logp.detach(), batch.behaviour_logp, rtol=0, atol=1e-4)


class Forgetful(Scripted):
    """An engine that reads everything again at every turn."""

    def __init__(self, policy: LanguagePolicy) -> None:
        super().__init__(lambda tokens: Completion())
        self.policy = policy

    def sample(
        self, rows: Sequence[int], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int] = (),
        last: bool = False,
    ) -> list[Completion]:  # fmt: skip
        said = self.policy.generate([self.rows[row] for row in rows], sampling, draws, begun)
        self.extend(rows, [c.tokens for c in said])
        return said


def same(ours: Sequence[Episode], theirs: Sequence[Episode]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a.tokens, a.stop, a.reward) == (b.tokens, b.stop, b.reward)
        logps = ([p for s in e.segments for p in s.behaviour_logp] for e in (a, b))
        torch.testing.assert_close(*map(torch.tensor, logps), rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", [attr_20q, keys], ids=lambda task: task.id)
def test_an_open_engine_plays_what_one_that_forgets_plays(
    task: Any, tiny: LanguagePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, sampling = Context(task, tiny, Stream(2), max_tokens=task.max_tokens), Sampling(max_tokens=task.max_tokens)
    starts = fresh(task.problems("train")[:6], 3, here.stream)
    tiny.work.clear()
    ours = rollout(starts, here, sampling)
    read = tiny.work["prefilled_tokens"]
    assert tiny.work["prefilled_again"] == 0
    openings = {tuple(e.segments[0].tokens) for e in ours}
    between = sum(
        1 + len(answer.tokens)
        for e in ours
        for turn, answer in zip(e.segments[1::2], e.segments[2::2])
        if turn is not e.turns[-1]  # what a truncated game shows at its end is not read
    )
    assert read == sum(map(len, openings)) + between, "every token is read once, the opening once for a group"
    monkeypatch.setattr(tiny, "converse", lambda: Forgetful(tiny))
    same(ours, rollout(starts, here, sampling))
    assert tiny.work["prefilled_tokens"] - read > 3 * read


@pytest.mark.slow
def test_an_open_engine_plays_the_same_whatever_the_order_and_company(tiny: LanguagePolicy) -> None:
    here, sampling = Context(attr_20q, tiny, Stream(3), max_tokens=8), Sampling(max_tokens=8)
    starts = fresh(attr_20q.problems("train")[:4], 3, here.stream)
    together = rollout(starts, here, sampling)
    order = [(5 * i) % len(starts) for i in range(len(starts))]
    for chosen in (order, order[:5], [7]):
        same(rollout([starts[i] for i in chosen], here, sampling), [together[i] for i in chosen])


def test_a_fork_inside_an_episode_is_read_once(tiny: LanguagePolicy) -> None:
    here, sampling = Context(keys, tiny, Stream(4), max_tokens=2), Sampling(max_tokens=2)
    (start,) = fresh(keys.problems("train")[:1], 1, here.stream)
    (whole,) = rollout([start], here, sampling)
    said = tuple(s for s in whole.segments if s.role == "assistant")[:3]
    forks = [Start(start.problem, 0, start.draw.child("fork", k), said, seed=whole.seed) for k in range(5)]
    tiny.work.clear()
    played = rollout(forks, here, sampling)
    history = whole.segments[: whole.segments.index(said[-1]) + 2]
    first = sum(len(s.tokens) for s in history)
    later = sum(
        1 + len(s.tokens) for e in played for s in e.segments[len(history) + 1 : -1 if e.stop.truncated else None : 2]
    )
    assert tiny.work["prefilled_tokens"] == first + later


def test_a_view_that_is_no_extension_opens_another_row(tiny: LanguagePolicy) -> None:
    lines, sampling = Lines(tiny.converse()), Sampling(max_tokens=3)
    draws = [Draw.at(0, i) for i in range(2)]
    said = lines.sample({4: [5, 6, 7], 9: [8, 9]}, sampling, draws, [0, 0], False)
    before = dict(lines.rows)
    views = {4: [6, 7, *said[0].tokens], 9: [8, 9, *said[1].tokens, 11]}
    again = lines.sample(views, sampling, draws, [0, 0], False)
    assert lines.rows[9] == before[9] and lines.rows[4] != before[4]
    assert [c.tokens for c in again] == [c.tokens for c in tiny.generate([*views.values()], sampling, draws)]
    with pytest.raises(ValueError, match="no open row"):
        lines.engine.tokens(before[4])
    lines.sample({9: views[9]}, sampling, draws[1:], [0], True)
    assert not lines.rows


def test_a_snapshot_brings_a_game_back(games: list[Episode]) -> None:
    """Replayed to any turn, saved, played on and restored, the game answers the same again."""
    e = max(games, key=lambda e: len(e.segments))
    said = [s for s in e.segments if s.role == "assistant"]
    for turn in range(len(said)):
        game = attr_20q.environment()
        game.reset(e.problem, 0)
        for s in said[:turn]:
            game.step(s)
        state = game.snapshot()
        first = game.step(said[turn])
        other = attr_20q.environment()
        other.restore(state)
        assert other.step(said[turn]) == first


@pytest.mark.slow
def test_a_step_says_how_much_it_read_and_sampled() -> None:
    loop = make_loop(grpo.replace(problems=2, experience=Groups(size=4)), attr_20q, LanguagePolicy.load("tiny"))
    found = [loop.step().metrics for _ in range(2)]
    for metrics in found:
        assert metrics["sampled_tokens"] == 8 * metrics["completion_length"]
        assert metrics["prefilled_tokens"] > 0 == metrics["prefilled_again"]


@pytest.mark.slow
def test_grpo_trains_on_a_game_of_several_turns() -> None:
    method = grpo.replace(problems=2, experience=Groups(size=4))
    loop = make_loop(method, attr_20q, LanguagePolicy.load("tiny", device="cpu"))
    before = [p.clone() for p in loop.policy.parameters()]
    metrics = [loop.step().metrics for _ in range(3)]
    assert all(m["rows"] == 8 and m.get("logp_gap", 0.0) < 1e-4 for m in metrics)
    assert not all(torch.equal(a, b) for a, b in zip(before, loop.policy.parameters()))


class Limited(SingleTurn):
    """Answers twice; then it is over, for the reasons that are given."""

    ends: ClassVar[dict[str, bool]] = {}
    answer: ClassVar[str] = "no\n"

    def step(self, segment: Segment) -> StepResult:
        self.turn = getattr(self, "turn", 0) + 1
        return StepResult([Segment("user", self.answer)], 0.0, **(self.ends if self.turn > 1 else {}))


def starts_of(task: Toy) -> list[Start]:
    """One sample of the first problem."""
    return fresh(task.problems("train")[:1], 1, Stream(0))


@pytest.mark.first
@pytest.mark.parametrize(
    ("ends", "turns", "size", "expected"),
    [
        ({"truncated": True}, 3, 4, "truncated"),
        ({"terminated": True}, 3, 4, "max_tokens"),
        ({"terminated": True, "truncated": True}, 3, 4, "max_tokens"),
        ({}, 2, 4, "max_turns"),
        ({}, 3, 60, "context_overflow"),
    ],
)
def test_limits_of_the_environment_and_limits_of_completions(
    ends: dict[str, bool], turns: int, size: int, expected: str
) -> None:
    """Nothing ends by itself here. What is truncated keeps what the environment answered last."""
    world = type("World", (Limited,), {"ends": ends})
    task, policy = Toy(("x=",), world=world, max_turns=turns), random_policy(context=64)
    policy.__class__ = type("Endless", (type(policy),), {"end_ids": property(lambda self: [])})
    (episode,) = rollout(
        fresh([task.problems("train")[0]], 1, Stream(0)), Context(task, policy, Stream(0)), Sampling(max_tokens=size)
    )
    assert episode.stop == expected
    assert (episode.stop.cut, episode.stop.truncated) == (
        expected in ("max_tokens", "context_overflow"), expected in ("truncated", "max_turns")
    )  # fmt: skip
    answers = sum(s.role == "user" for s in episode.segments) - 1
    assert answers == len(episode.turns) - (expected == "max_tokens")


def test_a_last_answer_that_does_not_fit_the_context_is_left_out() -> None:
    world = type("World", (Limited,), {"ends": {"truncated": True}, "answer": "n" * 30})
    task, policy = Toy(("x=",), world=world, max_turns=3), random_policy("gpt2", context=64)
    policy.__class__ = type("Endless", (type(policy),), {"end_ids": property(lambda self: [])})
    (episode,) = rollout(
        fresh([task.problems("train")[0]], 1, Stream(0)), Context(task, policy, Stream(0)), Sampling(max_tokens=4)
    )
    assert episode.stop is StopReason.TRUNCATED and len(episode.tokens) == 2 + 4 + 30 + 4


def test_one_turn_takes_the_same_path() -> None:
    policy, task = random_policy(), Toy()
    starts = fresh(task.problems("train"), 1, Stream(0))
    episodes = rollout(starts, Context(task, policy, Stream(0)), Sampling(max_tokens=4))
    for e in episodes:
        assert [s.role for s in e.segments] == ["user", "assistant"]
        assert e.reward == e.segments[1].reward == task.score(e.problem, e.segments[1].text)


# Rows


def test_misaligned_segments_are_refused(games: list[Episode]) -> None:
    import copy

    broken = copy.deepcopy(games[0])
    broken.segments[1].behaviour_logp.append(0.0)
    with pytest.raises(InvariantError, match="something replaced the sampled tokens"):
        to_batch([broken], 0, 1.0, torch.device("cpu"))


def test_minibatches_keep_groups_whole(games: list[Episode]) -> None:
    batch = to_batch(games, 0, 1.0, torch.device("cpu"))
    for pieces in (1, 2, 3, 9):
        found = split_groups(batch, pieces, Stream(0).numpy)
        assert len(found) == min(pieces, 4)
        assert sorted(torch.cat(found).tolist()) == list(range(len(batch)))
        assert sum(len(batch.group[p].unique()) for p in found) == 4


def test_joined_batches_keep_their_groups_apart(games: list[Episode]) -> None:
    parts = [to_batch(games[:8], 0, 1.0, torch.device("cpu")), to_batch(games[8:], 0, 1.0, torch.device("cpu"))]
    for part in parts:
        part.group = part.group - part.group.min()
        part.hidden = torch.ones(*part.tokens.shape, 3)
    joined = concatenate(parts)
    assert joined.group.tolist() == [g for g in range(4) for _ in range(4)]
    assert joined.hidden.shape == (*joined.tokens.shape, 3)
    whole = to_batch(games, 0, 1.0, torch.device("cpu"))
    assert torch.equal(joined.tokens, whole.tokens) and torch.equal(joined.action_mask, whole.action_mask)


# Deadlines


def late() -> Exception:
    return EnvironmentFault("late")


def test_a_deadline_lets_what_is_in_time_pass() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline(5.0, late):
        value = 3
    assert value == 3
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0) and signal.getsignal(signal.SIGALRM) is before


@pytest.mark.slow
def test_an_outer_timer_goes_on() -> None:
    rung: list[int] = []
    old = signal.signal(signal.SIGALRM, lambda *args: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(EnvironmentFault, match="late"), deadline(0.05, late):
            time.sleep(5)
        assert not rung and 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 0.3
        time.sleep(0.4)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("taken", [signal.SIG_IGN, signal.SIG_DFL, lambda *args: None])
def test_a_body_that_takes_the_signal_for_itself_has_no_deadline_and_the_next_one_has(taken: Any) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with deadline(0.05, late):
        signal.signal(signal.SIGALRM, taken)
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.1)
    with pytest.raises(EnvironmentFault, match="late"), deadline(0.05, late):
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0) and signal.getsignal(signal.SIGALRM) is before


def test_errors_of_the_body_are_its_own() -> None:
    with pytest.raises(ZeroDivisionError), deadline(5.0, late):
        _: Any = 1 / 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_off_the_main_thread_a_deadline_is_refused() -> None:
    import threading

    found: list[str] = []

    def work() -> None:
        with pytest.raises(ConfigError) as refused, deadline(0.01, late):
            found.append("the body ran")
        found.append(str(refused.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (sentence,) = found
    assert sentence.startswith("An environment in this process has 0.01 s for an answer, and only the main thread of a")
