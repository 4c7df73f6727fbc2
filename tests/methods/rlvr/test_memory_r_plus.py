"""Memory-R+: what the two memories hold, what they pay, and that without them it is GRPO."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.memory_r_plus import MemoryReward, exploited, explored, memory_r_plus
from etude.methods.rlvr.memory_r_plus.memories import Memory, embedded
from etude.policies.fingerprint import fingerprint
from etude.rewards.outcome import TaskReward
from etude.rewards.scoring import score
from language_toys import make_loop

PLACES = 1 << 14
"""So many that no two pieces of these short texts fall into one."""


def episode(asked: str, said: str, paid: float, group: int = 0) -> Episode:
    tokens = [1, *[2] * len(said)]
    return Episode(
        Problem(asked, asked),
        [Segment("user", asked, [1], [0], [0.0]),
         Segment("assistant", said, tokens[1:], [1] * len(said), [-0.1] * len(said), reward=paid)],
        group=group,
    )  # fmt: skip


def paid(part: MemoryReward, episodes: list[Episode], step: int) -> list[float]:
    """What a bound part adds to the task's reward of episodes, which it remembers afterwards."""
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    context = Context(LanguageTask(), None, Stream(0), step=step, steps=200)
    batch = score(batch, (TaskReward(), part), context)
    part.before_update(batch)
    return [round(e.scores["memory-reward"], 4) for e in episodes]


def bound(**fields: Any) -> Any:
    return MemoryReward(**{"width": PLACES, "warmup": 0, **fields}).bind()


def test_what_was_the_only_success_exploits_most_and_what_failed_explores_least() -> None:
    said = embedded(["8,17", "xyz", "8,1"], PLACES, 3)
    assert exploited(said[:1], said[:1]).tolist() == [0.0]
    found = explored(said, said[:1])
    assert found[0].item() == pytest.approx(0, abs=1e-6), "a failure said again"
    assert found[1].item() == 1, "orthogonal to every failure"
    assert 0 < found[2].item() < 1
    assert exploited(said[1:2], said[:1]).item() == pytest.approx(-(2**0.5)), "two orthogonal vectors of length 1"


def test_the_nearest_failure_and_the_mean_success_count() -> None:
    one, two = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    known = torch.stack([one, two])
    assert explored(known, known).tolist() == [0.0, 0.0]
    assert exploited(known, known).tolist() == pytest.approx([-(0.5**0.5)] * 2)


def test_memories_are_empty_at_first_and_pay_nothing() -> None:
    part = bound()
    assert paid(part, [episode("p", "abc", 1), episode("p", "xyz", 0)], 0) == [0, 0]
    assert part.state["successes"]["ids"] == part.state["failures"]["ids"] == ["p"]


def test_both_numbers_are_shares_of_their_range() -> None:
    """Known: the success abc, the failure xyz. Exploit is 1 for abc and 0 for what is farthest, explore 0 for xyz."""
    part = bound()
    paid(part, [episode("p", "abc", 1), episode("p", "xyz", 0)], 0)
    assert paid(part, [episode("p", "abc", 1), episode("p", "xyz", 0), episode("p", "qrs", 0)], 1) == [2.0, 0.0, 1.0]


def test_factors_scale_each_and_memory_r_only_exploits() -> None:
    for fields, wanted in ({"exploit": 0.5}, [1.5, 0.0, 1.0]), ({"explore": 0.0}, [1.0, 0.0, 0.0]):
        part = bound(**fields)
        paid(part, [episode("p", "abc", 1), episode("p", "xyz", 0)], 0)
        found = paid(part, [episode("p", "abc", 1), episode("p", "xyz", 0), episode("p", "qrs", 0)], 1)
        assert found == wanted


def test_exploring_waits_for_its_first_step() -> None:
    part = bound(warmup=2, exploit=0.0)
    for step, wanted in (0, [0, 0]), (1, [0, 0]), (2, [0.0, 1.0]):
        assert paid(part, [episode("p", "xyz", 0), episode("p", "abc", 0)], step)[0] == 0
        fresh = paid(bound_like(part), [episode("p", "xyz", 0), episode("p", "klm", 0)], step)
        assert fresh == wanted


def bound_like(part: Any) -> Any:
    """Another part that remembers the same, so that looking changes nothing."""
    again = type(part)(**part.fields()).bind()
    again.state.update({k: dict(v) if isinstance(v, dict) else list(v) for k, v in part.state.items()})
    return again


def test_stored_first_a_wrong_answer_explores_nothing() -> None:
    """As in the released code: it is its own nearest failure."""
    part = bound(order="store-first", exploit=0.0)
    assert paid(part, [episode("p", "xyz", 0), episode("p", "abc", 0)], 0) == [0, 0]
    assert paid(part, [episode("p", "qrs", 0)], 1) == [0]


class AsReleased:
    """The two rewards of the released code, a response at a time, over one problem's texts in float64."""

    def __init__(self, window: int, after: int) -> None:
        self.known: dict[bool, list[Any]] = {True: [], False: []}
        self.past: dict[bool, list[float]] = {True: [], False: []}
        self.keys, self.window, self.after = set[str](), window, after

    def share(self, right: bool, number: float) -> float:
        self.past[right] = [*self.past[right], number][-self.window :]
        low, high = min(self.past[right]), max(self.past[right])
        return (number - low) / (high - low) if high > low else float(right)  # 1 - 1: exploit is 0 as well

    def __call__(self, asked: str, said: str, right: bool) -> float:
        vector = embedded([said], PLACES, 3)[0].double().numpy()
        self.known[right].append(vector)
        if not right:
            self.keys.add(asked)
        total = 0.0
        if self.known[True]:
            total += 1 - self.share(True, float(np.linalg.norm(vector - np.mean(self.known[True], axis=0))))
        if self.known[False] and len(self.keys) >= self.after:
            total += self.share(False, 1 - max(float(vector @ other) for other in self.known[False]))
        return total


TRACE = [("abc", 1), ("xyz", 0), ("abd", 1), ("xya", 1), ("bcd", 0), ("abc", 1), ("qab", 0), ("cxy", 1)]


@pytest.mark.parametrize("window", [2, 3, 100])
def test_stored_first_each_answer_is_stored_just_before_it_is_scored(window: int) -> None:
    """The third of a batch is compared with the first two and itself, the first with itself alone."""
    part, release = bound(order="store-first", window_of="scores", window=window), AsReleased(window, 0)
    for step, rows in enumerate((TRACE[:3], TRACE[3:7], TRACE[7:])):
        found = paid(part, [episode("p", said, right) for said, right in rows], step)
        assert found == pytest.approx([release("p", said, bool(right)) for said, right in rows], abs=2e-4), step


def test_exploring_waits_for_so_many_problems_that_were_failed_at() -> None:
    part = bound(explore_after=2, exploit=0.0)
    asked = [episode("p", "xyz", 0), episode("p", "abc", 0), episode("q", "abc", 1)]
    fresh = [episode("p", "xyz", 0), episode("p", "klm", 0)]
    paid(part, asked, 0)
    assert paid(bound_like(part), fresh, 1) == [0, 0], "failures at p alone are known"
    paid(part, [episode("q", "xyz", 0)], 2)
    assert paid(part, fresh, 3) == [0, 1]


def test_rows_that_nobody_sampled_and_auxiliary_ones_are_not_remembered() -> None:
    for order in ("score-first", "store-first"):
        part = bound(order=order)
        episodes = [episode("p", said, right) for said, right in TRACE[:4]]
        episodes[1].written, episodes[2].auxiliary = True, True
        paid(part, episodes, 0)
        kept = torch.cat([part.state[name]["said"] for name in ("successes", "failures")])
        assert torch.equal(kept, embedded(["abc", "xya"], PLACES, 3)), order


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.floats(-2, 2, width=32), max_size=4)), min_size=1, max_size=8),
    st.integers(1, 4),
)  # fmt: skip
def test_numbers_are_shares_of_the_range_of_the_last_steps(steps: list[tuple[int, list[float]]], window: int) -> None:
    """Identity (3) of the row, against all numbers of the last `window` steps, of which some are left out."""
    part, now, past = bound(window=window), 0, list[tuple[int, float]]()
    for ahead, values in steps:
        now += ahead
        numbers = torch.tensor(values)
        past += [(now, value) for value in values]
        part._widen({"exploit": numbers}, now)
        shares = part._share("exploit", numbers).tolist()
        seen = [value for step, value in past if now - step < window]
        low, high = min(seen, default=0.0), max(seen, default=0.0)
        assert all(0 <= share <= 1 for share in shares)
        if high - low > 1e-3:
            assert shares == pytest.approx([(v - low) / (high - low) for v in values], abs=1e-4)
        else:
            assert high > low or not any(shares)


def test_ranges_are_forgotten_after_the_window() -> None:
    part = bound(window=2, explore=0.0)
    paid(part, [episode("p", "abc", 1)], 0)
    assert paid(part, [episode("p", "abc", 1), episode("p", "xyz", 0)], 1) == [1.0, 0.0]
    assert paid(part, [episode("p", "abd", 0)], 2)[0] not in (0.0, 1.0), "between the ends of the step before"
    assert paid(part, [episode("p", "abd", 0)], 4) == [0.0], "its own range is all that is left"


def test_problems_that_are_alike_share_what_they_know() -> None:
    part = bound()
    paid(part, [episode("1+2+3=", "abc", 1), episode("zzzz", "xyz", 1)], 0)
    memory, asked = Memory(part.state["successes"], 9, 9), embedded(["1+2+4="], PLACES, 3)[0]
    assert torch.equal(memory.near(asked, 1), embedded(["abc"], PLACES, 3))
    assert torch.equal(memory.near(asked, 2), embedded(["abc", "xyz"], PLACES, 3))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("pqrs"), st.text("abc", min_size=1, max_size=3)), max_size=30),
    st.integers(1, 3), st.integers(1, 3),
)  # fmt: skip
def test_limits_hold_after_any_row_of_insertions(said: list[tuple[str, str]], problems: int, responses: int) -> None:
    """Against a dict of lists: the problem that was met first leaves, and the oldest response of each."""
    memory, plain = Memory(Memory.empty(64), problems, responses), dict[str, list[str]]()
    for start in range(0, len(said), 4):
        some = said[start : start + 4]
        memory.put([p for p, _ in some], embedded([p for p, _ in some], 64, 3), embedded([t for _, t in some], 64, 3))
        for p, t in some:
            plain[p] = [*plain.get(p, []), t][-responses:]
        plain = dict([*plain.items()][-problems:])
    assert memory.state["ids"] == list(plain)
    for place, (_, texts) in enumerate(plain.items()):
        own = memory.state["said"][memory.state["owner"] == place]
        assert torch.equal(own, embedded(texts, 64, 3))
        assert len(own) <= responses
    assert len(plain) <= problems


class Earning(LanguageTask):
    """Three problems, paid by small letters."""

    id: ClassVar[str] = "earning"
    max_tokens: ClassVar[int] = 6

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{name}", f"{name}:") for name in "abc"]

    def score(self, problem: Problem, completion: str) -> float:
        return float(sum(c.islower() for c in completion) > 2)


@pytest.mark.slow
def test_a_memory_that_is_empty_leaves_grpo() -> None:
    """In the first step; in the second the two part."""
    marks = []
    for method in (memory_r_plus, grpo.replace(experience=memory_r_plus.experience)):
        loop = make_loop(method.replace(problems=3), Earning(), steps=3)
        loop.step()
        first = fingerprint(loop.policy.parameters())
        loop.step()
        marks.append((first, fingerprint(loop.policy.parameters())))
    assert marks[0][0] == marks[1][0] and marks[0][1] != marks[1][1]


@pytest.mark.slow
def test_with_nothing_to_pay_for_it_is_grpo_whatever_it_remembers() -> None:
    """Identity (2) of the row: no exploitation, and exploration that never begins."""
    same = memory_r_plus.replace(problems=3, rewards=(TaskReward(), MemoryReward(exploit=0.0, warmup=10**6)))
    loop, parent = (
        make_loop(method, Earning(), steps=4)
        for method in (same, grpo.replace(problems=3, experience=memory_r_plus.experience))
    )
    for _ in range(4):
        one, other = loop.step(), parent.step()
        assert one.metrics["reward"] == other.metrics["reward"]
        assert fingerprint(loop.policy.parameters()) == fingerprint(parent.policy.parameters())
    memories = loop.method.rewards[1].state  # type: ignore[union-attr]
    assert all(len(memories[name]["owner"]) > 3 for name in ("successes", "failures"))


def test_what_it_pays_counts_for_no_outcome() -> None:
    part = bound()
    known = [episode("p", "abc", 1), episode("p", "xyz", 0)]
    paid(part, known, 0)
    again = [episode("p", "abc", 0), episode("p", "xyz", 0)]
    assert paid(part, again, 1)[0] == 2 and again[0].total == 2 and again[0].outcome == 0
    assert len(part.state["successes"]["owner"]) == 1, "what memory pays makes no success"


def test_a_reward_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="with both at 0 it pays nothing"):
        MemoryReward(exploit=0.0, explore=0.0)
