"""Environments in worker processes: the same episodes as in this one, and what becomes of those that fail."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Episode, Problem, StopReason
from etude.core.errors import ConfigError, EnvironmentFault
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience import worlds
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.grpo import grpo
from etude.policies.conversation import Conversation
from etude.policies.sampling import Sampling
from etude.runs.kinds import run_of
from etude.runtime import workers
from language_toys import Toy, make_loop, random_policy
from slow_worlds import Arriving, Slow

SMALL = grpo.replace(problems=3, experience=Groups(size=4))


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """No worker outlives the tests."""
    yield
    while worlds._idle:
        for pool in worlds._idle.popitem()[1]:
            pool.close()


def starts_of(task: Slow, size: int = 3) -> list[Start]:
    return fresh(task.problems("train"), size, Stream(0))


def play(task: Slow, starts: Sequence[Start] | None = None) -> list[Episode]:
    policy = random_policy()
    context = Context(task, policy, Stream(0), max_tokens=task.max_tokens)
    return rollout(starts_of(task) if starts is None else starts, context, Sampling(max_tokens=task.max_tokens))


def seen(episodes: Sequence[Episode]) -> list[Any]:
    """All of an episode but what the clock and the process decide."""
    return [
        (
            [(s.role, s.text, s.tokens, s.action_mask, s.behaviour_logp, s.reward, s.version) for s in e.segments],
            e.stop, e.seed, {k: v for k, v in e.info.items() if k != "process"},
        )
        for e in episodes
    ]  # fmt: skip


def pool_of(task: Slow) -> workers.Pool:
    """The processes that wait for the next episodes of this task."""
    return next(pools[-1] for key, pools in worlds._idle.items() if key == worlds._key(task))


# The same episodes


@pytest.fixture(scope="module")
def here() -> list[Any]:
    return seen(play(Slow()))


@pytest.mark.slow
def test_what_answers_take_is_said_in_both() -> None:
    used = [[[s.info.get("used") for s in e.segments] for e in play(Slow(price=0.5, workers=n))] for n in (0, 2)]
    assert used[0] == used[1] and any(u for e in used[0] for u in e)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_number_of_workers_plays_what_this_process_plays(here: list[Any], count: int) -> None:
    episodes = play(Slow(workers=count, seconds=0.02))
    assert seen(episodes) == here
    assert {e.info["process"] for e in episodes} == {w.process.pid for w in pool_of(Slow(count, 3, 0.02)).workers}
    assert len({len(e.segments) for e in episodes}) > 1 and all(s.duration > 0 for e in episodes for s in e.turns)


@pytest.mark.slow
def test_answers_may_come_in_any_order(here: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that came the last first, and one at a time: every order that there can be."""
    real, chance, orders = workers.wait, random.Random(0), list[int]()

    def shuffled(asked: Any) -> list[workers.Worker]:
        while len(waiting := [w for w in asked if not w.settled]) > chance.randrange(len(asked)):
            real(waiting)
        found = [w for w in asked if w.settled]
        orders.append(len(found))
        return [chance.choice(found)]

    monkeypatch.setattr(workers, "wait", shuffled)
    for _ in range(3):
        assert seen(play(Slow(workers=4, seconds=0.01))) == here
    assert max(orders) > 1


@pytest.mark.slow
def test_batches_may_be_cut_and_permuted() -> None:
    task = Slow(workers=3, seconds=0.01)
    starts = starts_of(task)
    whole = [[s.tokens for s in e.segments] for e in play(task, starts)]
    for chosen in (range(14, -1, -2), range(4)):
        part = play(task, [starts[i] for i in chosen])
        assert [[s.tokens for s in e.segments] for e in part] == [whole[i] for i in chosen]


@pytest.mark.slow
def test_forks_are_brought_to_where_they_begin() -> None:
    """Whole turns that were said before are said again to the environment, in its process as in this one."""
    first = play(Slow())[:4]
    forks = [
        Start(e.problem, 0, e.draw.child("fork"), tuple(e.turns[:k]), seed=e.seed)
        for e, k in zip(first, (0, 1, 2, 1)) if e.draw
    ]  # fmt: skip
    assert seen(play(Slow(workers=2), forks)) == seen(play(Slow(), forks))


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_is_the_one_that_never_was(tmp_path: Path) -> None:
    def make(count: int) -> LanguageLoop:
        return make_loop(SMALL, Slow(workers=count, seconds=0.01), random_policy(), steps=4)

    def numbers(loop: LanguageLoop) -> list[Any]:
        return [[e["reward"] for e in r.episodes] + [r.metrics["loss"]] for r in (loop.step() for _ in range(2))]

    straight, stopped = make(0), make(2)
    expected = numbers(straight), numbers(straight)
    assert numbers(stopped) == expected[0]
    stopped.save(tmp_path)
    resumed = make(3)
    resumed.load(tmp_path)
    assert numbers(resumed) == expected[1]


@pytest.mark.slow
def test_by_arrival_says_the_same_to_rounding(here: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is sampled with whom: tokens, rewards and ends are equal, and log-probabilities as near as rounding."""
    asked, real = list[int](), Conversation.sample

    def noted(self: Conversation, rows: Any, *others: Any) -> Any:
        asked.append(len(rows))
        return real(self, rows, *others)

    monkeypatch.setattr(Conversation, "sample", noted)
    found = seen(play(Arriving(workers=4, seconds=0.05)))
    assert sum(asked) == sum(s[0] == "assistant" for segments, *_ in here for s in segments) and len(asked) > 4
    for (ours, *rest), (theirs, *wanted) in zip(found, here, strict=True):
        assert rest == wanted
        for (*a, logp, reward, version), (*b, logp_b, reward_b, version_b) in zip(ours, theirs, strict=True):
            assert (a, reward, version) == (b, reward_b, version_b)
            assert logp == pytest.approx(logp_b, abs=2e-5)
    forks = [s._replace(segments=tuple(e.turns[:1]), seed=e.seed) for s, e in zip(starts_of(Slow()), play(Slow()))]
    assert len(play(Arriving(workers=2), forks)) == 15
    with pytest.raises(ConfigError, match="go on by arrival, which needs `workers`"):
        play(Arriving())


@pytest.mark.slow
def test_a_run_by_arrival_records_that_it_repeats_to_rounding(tmp_path: Path) -> None:
    for task, said in ((Arriving(workers=2), {"repeats": "to rounding"}), (Slow(workers=2), {})):
        loop = make_loop(SMALL, task)
        kind: Any = run_of(SMALL)
        assert kind.promises(loop) == said
        assert ("to rounding only" in kind.sentence(loop, loop.method, task)) == bool(said)
        assert loop.step().metrics["rows"] == 12


@pytest.mark.slow
def test_off_the_main_thread_workers_have_deadlines_and_this_process_refuses(here: list[Any]) -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(seen(play(Slow(workers=2))))
        with pytest.raises(ConfigError, match="only the main thread of a Unix process can hold it to that"):
            play(Slow())
        found.append("refused")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [here, "refused"]


@pytest.mark.slow
def test_processes_wait_for_the_next_episodes_and_end_when_others_are_played() -> None:
    tasks = [Slow(workers=1, turns=turns) for turns in (1, 2, 3)]
    play(tasks[0])
    process = pool_of(tasks[0]).workers[0].process
    play(tasks[0])
    assert pool_of(tasks[0]).workers[0].process is process and process.poll() is None
    play(tasks[1]), play(tasks[2])
    assert process.poll() is not None and len(worlds._idle) == worlds.KEPT


# Faults


def lost(episodes: Sequence[Episode]) -> dict[int, str]:
    return {i: e.info["fault"] for i, e in enumerate(episodes) if e.stop is StopReason.FAULT}


def others(task: Slow) -> tuple[list[Any], list[Episode]]:
    """What is played beside one episode of the problem that fails: the others as they should be, and all of them."""
    starts = starts_of(task, 1)
    episodes, wanted = play(task, starts), play(Slow(), starts)
    for i in {0, 1, 2, 3, 4} - {task.at}:
        assert (episodes[i].tokens, episodes[i].reward) == (wanted[i].tokens, wanted[i].reward)
    return seen(wanted), episodes


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 2])
def test_one_that_raises_loses_its_episode_in_either_place(count: int) -> None:
    assert lost(others(Slow(workers=count, fault="raise"))[1]) == {1: "KeyError: 'gone'"}


@pytest.mark.slow
def test_one_that_hangs_loses_its_episode_and_its_process() -> None:
    """Those that lived in the same process go on in the next one: all numbers but one have one worker."""
    task = Slow(workers=1, fault="hang", step_timeout=0.5)
    assert lost(others(task)[1]) == {1: "it did not return within 0.5 s."}
    assert pool_of(task).workers[0].starts == 2


@pytest.mark.slow
def test_one_whose_process_always_dies_loses_its_episode_after_a_second_try() -> None:
    task = Slow(workers=1, fault="die")
    assert lost(others(task)[1]) == {1: "it lost its process, which ended with exit code 3."}
    assert pool_of(task).workers[0].starts == 3


@pytest.mark.slow
def test_one_whose_process_dies_once_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    task = Slow(workers=2, fault="die once", folder=str(tmp_path))
    wanted, episodes = others(task)
    assert seen(episodes) == wanted and (tmp_path / "once").exists()


@pytest.mark.slow
def test_processes_that_are_killed_from_outside_change_nothing(here: list[Any]) -> None:
    task, policy = Slow(workers=2), random_policy()
    play(task)
    pids, real = [w.process.pid for w in pool_of(task).workers], policy.converse

    def converse() -> Any:
        engine = real()
        sample, turns = engine.sample, iter(range(9))

        def killing(*asked: Any) -> Any:
            if next(turns) == 1:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            return sample(*asked)

        engine.sample = killing  # type: ignore[method-assign]
        return engine

    policy.converse = converse  # type: ignore[method-assign]
    context = Context(task, policy, Stream(0), max_tokens=task.max_tokens)
    assert seen(rollout(starts_of(task), context, Sampling(max_tokens=task.max_tokens))) == here
    assert not {w.process.pid for w in pool_of(task).workers} & {*pids}


@pytest.mark.slow
def test_one_that_no_seed_decides_does_not_survive_its_process() -> None:
    task = Slow(workers=1, fault="hang", at=4, chance=True, step_timeout=0.5, turns=2)
    faults = lost(play(task, starts_of(task, 1)[2::2]))
    assert faults == {1: "it did not return within 0.5 s."}, "the first of the two had ended before"
    task = Slow(workers=1, fault="hang", at=2, chance=True, step_timeout=0.5, turns=2)
    faults = lost(play(task, starts_of(task, 1)[2::2]))
    assert faults == {0: "it did not return within 0.5 s.", 1: worlds.STRAYED}


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("nan", "of task 'slow', for problem 'train-1', at turn 2, returned the reward nan; a reward must be a finite"),
        ("text", "at turn 2, returned the observation 5; it must be a Segment with text"),
        ("nothing", r"at turn 2, returned \('other',\); a step must return a StepResult"),
        ("stop", r"^There is no such table\.$"),
    ],
)  # fmt: skip
def test_what_an_environment_may_not_return_is_said_alike(count: int, fault: str, sentence: str) -> None:
    with pytest.raises(EnvironmentFault if count or fault != "stop" else Exception, match=sentence):
        play(Slow(workers=count, fault=fault))


@pytest.mark.slow
def test_what_cannot_be_sent_is_said() -> None:
    where = r"at turn 2, returned what cannot be sent from its process: info\['thing'\]\['inside'\]\[0\] is a Counter\."
    with pytest.raises(EnvironmentFault, match=where):
        play(Slow(workers=2, fault="unsendable"))
    problem = Problem("p", "0:", info={"number": 0, "place": (0, 0), "thing": object()})
    with pytest.raises(
        EnvironmentFault, match=r"problem 'p', when it was reset, runs in a process of its own \(workers=2"
    ):
        play(Slow(workers=2), fresh([problem], 1, Stream(0)))
    assert not lost(play(Slow(workers=2))), "the processes serve the next episodes"


def test_three_lost_episodes_in_a_row_stop_the_run() -> None:
    task = Slow(workers=2, fault="raise")
    starts = [s for s in starts_of(task) if s.problem.id == "train-1"]
    with pytest.raises(EnvironmentFault, match=r"failed in 3 episodes in a row; .*'train-1': KeyError: 'gone'\."):
        play(task, starts)


@pytest.mark.slow
def test_a_step_counts_lost_episodes() -> None:
    found = []
    for count, fault in ((0, "raise"), (2, "die")):
        method = SMALL.replace(problems=4, experience=Groups(size=2))
        metrics = make_loop(method, Slow(workers=count, fault=fault)).step().metrics
        found.append((metrics["lost_episodes"], metrics["rows"]))
    assert found[0] == found[1] == (2.0, 6.0)


class Local(Toy):
    """A task with a field that is no plain data."""

    workers: int = 2  # type: ignore[misc]


def test_a_task_that_only_lives_in_this_process_is_refused() -> None:
    policy = random_policy()
    for task, why in ((Local(), "not JSON serializable"), (type("Nowhere", (Slow,), {})(workers=2), "no class of a")):
        starts = fresh(task.problems("train")[:1], 1, Stream(0))
        with pytest.raises(
            ConfigError, match=rf"\(workers=2\), which make the task by its name and its fields: .*{why}"
        ):
            rollout(starts, Context(task, policy, Stream(0)), Sampling(max_tokens=2))
