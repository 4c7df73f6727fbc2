"""Completions that take newer weights on their way: which token is from which, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ahead_loops import Learned, Make, ahead, numbers, watched
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError, InvariantError
from etude.experience.groups import Groups
from etude.experience.renewed import joined
from etude.experience.rollout import Start
from etude.methods.rlvr.grpo import grpo
from etude.policies.sampling import Sampling, generate
from language_toys import Toy, draws, random_policy, random_prompts, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: Any = grpo.replace(problems=3, experience=Groups(size=4, max_tokens=7), renew_after=2)


@pytest.fixture
def loops() -> Iterator[Make]:
    with ahead(SMALL, 3) as make:
        yield make


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[Learned]:
    return watched(monkeypatch)


# Which weights


@pytest.mark.slow
def test_tokens_are_from_the_weights_that_were_newest_when_their_row_came_so_far(
    loops: Make, learned: list[Learned]
) -> None:
    """With a bound of 3 and 2 tokens: 0 and 1 are three steps old, 2 and 3 two, and all others one."""
    loop = loops()
    metrics = [loop.step().metrics for _ in range(6)]
    versions = [version for _, version, *_ in learned]
    assert versions == list(range(6))
    lengths = set()
    for step, _, _, batch in learned:
        for row, mask in zip(batch.version, batch.action_mask):
            own = row[mask].tolist()
            assert own == [max(0, min(max(0, step - 3) + t // 2, step - 1)) for t in range(len(own))]
            lengths.add(len(own))
    assert max(lengths) == 7 and [m["lag"] for m in metrics] == [0, 1, 2, 3, 3, 3]
    assert metrics[0]["renewed"] == metrics[1]["renewed"] == 0.0
    for (*_, batch), m in zip(learned[3:], metrics[3:]):
        later = sum(max(0, int(mask.sum()) - 2) for mask in batch.action_mask)
        assert m["renewed"] == pytest.approx(later / int(batch.action_mask.sum()))
    assert all(m["too_old"] == 0 and m["logp_gap"] <= m["logp_gap_bound"] for m in metrics)


@pytest.mark.slow
def test_every_token_has_the_log_probability_of_the_weights_that_said_it(loops: Make, learned: list[Learned]) -> None:
    loop = loops(SMALL.replace(optimizer=SMALL.optimizer.replace(lr=0.02)))
    for _ in range(5):
        loop.step()
    step, _, _, batch = learned[-1]
    found = set()
    for version, weights in ((v, w) for _, v, w, _ in learned):
        policy = random_policy()
        for name, tensor in policy.tensors().items():
            tensor.data.copy_(weights[name])
        mine = batch.action_mask & (batch.version == version)
        with torch.no_grad():
            gaps = (policy.evaluate(batch).logp - batch.behaviour_logp).abs()
        if mine.any():
            assert float(gaps[mine].max()) < 1e-4
            assert float(gaps[batch.action_mask & ~mine].max()) > 1e-3, "others would not do"
            found.add(version)
    assert found == {step - 3, step - 2, step - 1}


def test_as_long_as_nothing_is_learned_it_changes_nothing(loops: Make, learned: list[Learned]) -> None:
    task = Toy(scoring=lambda problem, text: 1.0)
    with pytest.warns(UserWarning, match="no two completions"):
        renewed, plain = loops(task=task), loops(SMALL.replace(renew_after=0), task=task)
        mine, theirs = numbers(renewed, 4), numbers(plain, 4)
    read = [sum(m["prefilled_tokens"] for m in found) for found in (mine, theirs)]
    assert read[0] > read[1], "what was said is read again"
    assert [("renewed" in m, "renewed" in n) for m, n in zip(mine, theirs)] == [(True, False)] * 4
    for (*_, one), (*_, other) in zip(learned[:4], learned[4:], strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.action_mask, other.action_mask)
        assert torch.equal(one.version, other.version)
        torch.testing.assert_close(one.behaviour_logp, other.behaviour_logp, atol=2e-5, rtol=0)


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_never_stopped(loops: Make, tmp_path: Path) -> None:
    """Also where rows in the air have changed their weights once."""
    whole, begun, again = (loops() for _ in range(3))
    expected = numbers(whole, 6)
    assert numbers(begun, 3) == expected[:3]
    begun.save(tmp_path / "three")
    again.load(tmp_path / "three")
    held = [{s: list(f.snapshots) for s, f in loop.ahead.flights.items()} for loop in (begun, again)]
    assert held[0] == held[1] == {3: [0, 1, 2], 4: [1, 2], 5: [2]}
    assert numbers(again, 3) == expected[3:]
    assert all(torch.equal(v, whole.policy.tensors()[k]) for k, v in again.policy.tensors().items())


def test_files_of_weights_go_with_the_last_row_that_needs_them(loops: Make) -> None:
    loop, files = loops(steps=4), set()
    for _ in range(4):
        loop.step()
        files |= {s.file for f in loop.ahead.flights.values() for s in f.snapshots.values()}
    assert len(files) == 3
    assert not any(file.exists() for file in files)


# Parts


@pytest.mark.parametrize("strings", [(), ("e", "Th"), ("abc",)], ids=["none", "short", "long"])
def test_a_turn_in_pieces_is_the_turn_in_one(strings: tuple[str, ...]) -> None:
    """Numbers are drawn by the token's place, and stop strings found where they begin in another piece."""
    policy, prompts, keys = random_policy(), random_prompts(24), draws(24)
    if strings == ("abc",):  # one that a random model says, over three tokens
        said = next(c.tokens for c in generate(policy, prompts, Sampling(max_tokens=9), keys) if len(c.tokens) > 6)
        strings = (tokenizer().decode(said[2:5]),)
    sampling = Sampling(max_tokens=9, stop=strings)
    whole = generate(policy, prompts, sampling, keys)
    for cut in range(1, 8):
        first = generate(policy, prompts, Sampling(max_tokens=cut, stop=strings), keys)
        left = [i for i, c in enumerate(first) if c.stop is StopReason.MAX_TOKENS]
        rest = generate(
            policy, [prompts[i] + first[i].tokens for i in left], Sampling(max_tokens=9 - cut, stop=strings),
            [keys[i] for i in left], [cut] * len(left),
        )  # fmt: skip
        found = {i: (c.tokens, c.stop) for i, c in enumerate(first)}
        found |= {i: (first[i].tokens + c.tokens, c.stop) for i, c in zip(left, rest)}
        assert found == {i: (c.tokens, c.stop) for i, c in enumerate(whole)}
    if strings:
        assert any(c.stop is StopReason.STOP_STRING for c in whole)


def episode(tokens: list[int], mask: list[int], version: int, **info: Any) -> Episode:
    said = Segment("assistant", "", tokens, mask, [-1.0 * m for m in mask], version, info=info)
    return Episode(Problem("p", "?"), [Segment("user", "?", [9], [0], [0.0]), said], fork_turn=info.get("turn"))


def test_pieces_are_joined_token_by_token() -> None:
    first = episode([5, 6], [1, 1], 3, entropy=[0.1, 0.2])
    second = joined(first, episode([5, 6, 7], [0, 0, 1], 4, begun=2, entropy=[0.3], turn=0))
    third = joined(second, episode([5, 6, 7, 8, 1], [0, 0, 0, 1, 1], 6, begun=3, entropy=[0.4, 0.5]))
    said = third.segments[-1]
    assert (said.action_mask, said.behaviour_logp, said.versions) == ([1] * 5, [-1.0] * 5, [3, 3, 4, 6, 6])
    assert said.info == {"pieces": [2, 1, 2], "versions": [3, 3, 4, 6, 6], "entropy": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert second.fork_turn is None
    with pytest.raises(InvariantError, match="was to go on from 2 tokens, and came with others"):
        joined(episode([5, 4], [1, 1], 3), episode([5, 6, 7], [0, 0, 1], 4, begun=2))


def test_nothing_that_was_said_elsewhere_is_cut() -> None:
    from etude.experience.renewed import can_wait
    from etude.experience.rollout import EVERYTHING

    start = Start(Problem("p", "?"), 0, draws(1)[0])
    assert can_wait([start], EVERYTHING)
    assert not can_wait([start, start._replace(segments=(Segment("assistant"),))], EVERYTHING)


# What is refused


@pytest.mark.parametrize(
    ("changes", "task", "bound", "sentence"),
    [
        ({}, "compose", 1, "renew_after=2 lets .* with a bound of 1 there is none between theirs and their own"),
        ({}, "compose", 0, "give --bound 2 or more"),
        ({}, "keys", 2, "renew_after=2 is for tasks of one turn, and those of keys may have"),
    ],
)
def test_what_has_no_newer_weights_is_refused(changes: Any, task: str, bound: int, sentence: str) -> None:
    from etude.runs.samplers import check
    from etude.runs.training import Options
    from etude.tasks import resolve_task

    with pytest.raises(ConfigError, match=sentence):
        check(SMALL.replace(**changes), resolve_task(task), Options(bound=bound))
    check(SMALL, resolve_task("compose"), Options(bound=2))
