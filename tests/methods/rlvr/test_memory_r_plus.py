"""Memory-R+: what the two memories hold, what they pay, and that without them it is GRPO."""

from __future__ import annotations

from typing import Any, ClassVar

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
