"""Gathering ahead of the updates: which weights a row is from, who knows what when, and what is never trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ahead_loops import Learned, Make, ahead, numbers, watched
from etude.core.errors import EnvironmentFault, InvariantError
from etude.curricula.uniform import Uniform
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.experience.samplers import Samplers
from etude.filters.informative import InformativeGroups
from etude.loops.ahead import Ahead
from etude.methods.rlvr.grpo import grpo
from etude.policies import snapshots
from language_toys import Toy, letters_reward, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: Any = grpo.replace(problems=3, experience=Groups(size=4))


@pytest.fixture
def loops() -> Iterator[Make]:
    with ahead(SMALL, 1) as make:
        yield make


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[Learned]:
    return watched(monkeypatch)


# Which weights


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 2, 3])
def test_rows_of_step_k_are_from_the_weights_of_k_minus_bound_steps(
    bound: int, loops: Make, learned: list[Learned]
) -> None:
    loop = loops(SMALL.replace(epochs=2), bound)
    metrics = [loop.step().metrics for _ in range(5)]
    begun = [version for _, version, *_ in learned]
    # two updates a step: versions count updates, the bound counts steps
    assert begun == [0, 2, 4, 6, 8]
    for step, _, _, batch in learned:
        assert set(batch.version[batch.action_mask].tolist()) == {begun[max(0, step - bound)]}
    assert [m["lag"] for m in metrics] == [min(k, bound) for k in range(5)]
    assert [m["too_old"] for m in metrics] == [0.0] * 5


def test_nothing_is_begun_for_steps_that_never_come_and_files_of_weights_go(loops: Make) -> None:
    loop = loops(bound=2, steps=3)
    files = []
    for left in ([1, 2], [2], []):
        files += [f.snapshot.file for f in loop.ahead.flights.values()]
        loop.step()
        assert list(loop.ahead.flights) == left
        assert all(f.snapshot.file.exists() for f in loop.ahead.flights.values())
    assert files
    assert not any(file.exists() for file in files)


def test_as_long_as_nothing_is_learned_rows_are_fresh_and_the_bound_changes_nothing(loops: Make) -> None:
    task = Toy(scoring=lambda problem, text: 1.0)
    with pytest.warns(UserWarning, match="no two completions"):
        ahead = numbers(loops(SMALL, 2, task=task), 3)
    assert [m["lag"] for m in ahead] == [0.0, 1.0, 2.0]
    assert [m["rows_skipped"] for m in ahead] == [1.0, 1.0, 1.0]


# Who knows what


class Told(Uniform):
    """Writes down what it was told of before it chose."""

    seen: ClassVar[list[Any]] = []

    def choose(self, pool: Any, count: int, stream: Any) -> Any:
        self.seen.append(("choose", stream.path[1]))
        return super().choose(pool, count, stream)

    def before_update(self, batch: Any) -> None:
        self.seen.append(("scored", len([1 for what, _ in self.seen if what == "scored"])))

    def after_update(self, batch: Any) -> None:
        self.seen.append(("learned", len([1 for what, _ in self.seen if what == "learned"])))


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 2])
def test_a_choice_knows_what_its_weights_know(bound: int, loops: Make) -> None:
    """The choice for step k comes once step k - bound - 1 has learned, and before any later one is scored."""
    Told.seen.clear()
    loop = loops(SMALL.replace(curriculum=Told()), bound)
    for _ in range(4):
        loop.step()
    for step in range(4):
        before = Told.seen[: Told.seen.index(("choose", step))]
        known = max(0, step - bound)
        for what in ("scored", "learned"):
            assert [number for kind, number in before if kind == what] == list(range(known))


def uneven(problem: Any, text: str) -> float:
    """One problem of three teaches nothing, so that a filter asks for more."""
    return 1.0 if problem.prompt == "x=" else letters_reward(problem, text)


@pytest.mark.slow
def test_a_filter_that_resamples_gets_its_rows_from_the_same_weights(
    loops: Make, learned: list[Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, again = [], Ahead.again
    monkeypatch.setattr(Ahead, "again", lambda self, step, *rest: (rounds.append(step), again(self, step, *rest))[1])
    loop = loops(SMALL.replace(filters=(InformativeGroups(rounds=3),)), 1, task=Toy(scoring=uneven))
    for _ in range(3):
        loop.step()
    assert {*rounds} == {0, 1, 2}
    assert len(learned) == 3
    versions = [version for _, version, *_ in learned]
    for step, _, _, batch in learned:
        assert set(batch.version[batch.action_mask].tolist()) == {versions[max(0, step - 1)]}


class Itself(Groups):
    """Plays some of its episodes in this process, as with a guide's model."""

    def collect(self, problems: Any, context: Any) -> Any:
        starts = fresh(problems, self.size, context.stream)
        rollout(starts, dataclasses.replace(context, samplers=None), self.sampling(context))
        return rollout(starts, context, self.sampling(context))


def test_what_is_played_in_this_process_on_the_way_has_its_deadline(loops: Make) -> None:
    """Parts wait in a thread of their own, where no alarm rings."""
    found = numbers(loops(SMALL.replace(experience=Itself(size=4)), 1), 3)
    assert [m["lag"] for m in found] == [0, 1, 1]


# What is never trained on


def test_rows_over_the_bound_are_dropped_and_counted(loops: Make) -> None:
    loop = loops(bound=1)
    loop.step()
    loop.ahead.reach(1, 10)
    batch = loop.ahead.rows(1, loop.method)
    assert len(batch) == 12
    now, mask = loop.policy.version, batch.action_mask
    loop.ahead.trained = {-7: -1, 0: 0, now: 1}
    older = batch.version.clone()
    older[0, mask[0].nonzero()[-1]] = -7  # one token alone, two steps old
    older[1, mask[1]] = -8  # of weights that nobody knows any more
    older[2, mask[2]] = now
    old = batch.replace(version=older)
    assert loop.ahead.lag(old, 1).tolist() == [2.0, torch.inf, 0.0] + [1.0] * 9
    loop.dropped.clear()
    kept = loop.ahead.within(old, 1)
    assert torch.equal(kept.tokens, batch.tokens[2:])
    assert loop.dropped["too_old"] == 2
    written = old.replace(written=torch.arange(12) < 2)
    assert len(loop.ahead.within(written, 1)) == 12, "what was written is of no weights"
    with pytest.raises(InvariantError, match=r"All 12 rows for step 1 .* more than 1 training steps older"):
        loop.ahead.within(batch.replace(version=older * 0 - 8), 1)


@pytest.mark.slow
def test_what_samplers_say_is_held_against_the_weights_that_they_had(loops: Make) -> None:
    """Every step compares, the first the rows themselves, later ones a few under the weights of then."""
    found = numbers(loops(bound=1), 4)
    assert all(0 <= m["logp_gap"] <= m["logp_gap_bound"] for m in found)
    with pytest.MonkeyPatch.context() as patch:  # held against the present weights they would differ
        patch.setattr("etude.loops.agreement.held", lambda *_: snapshots.held(loop.policy, own()))
        loop = loops(SMALL.replace(optimizer=SMALL.optimizer.replace(lr=0.05)), 1)

        def own() -> Any:
            return {k: v.clone() for k, v in snapshots.weights(loop.policy).items()}

        loop.step()
        with pytest.raises(InvariantError, match="log-probabilities that differ by"):
            loop.step()


def test_looking_back_leaves_the_weights_as_they_were_to_the_last_bit(loops: Make) -> None:
    policy, other = random_policy(), random_policy(seed=5)
    mine, theirs = snapshots.mark(snapshots.weights(policy)), snapshots.mark(snapshots.weights(other))
    with pytest.raises(KeyError), snapshots.held(policy, snapshots.weights(other)):
        assert snapshots.mark(snapshots.weights(policy)) == theirs
        raise KeyError
    assert snapshots.mark(snapshots.weights(policy)) == mine != theirs


def test_files_of_a_process_that_was_killed_are_cleared_away() -> None:
    room = snapshots.Snapshot(snapshots.weights(random_policy()), 0)
    left = room.folder.parent / f"{snapshots.PREFIX}999999999-left"
    left.mkdir()
    again = snapshots.Snapshot(snapshots.weights(random_policy()), 0)
    assert not left.exists()
    assert room.file.exists()
    room.close(), again.close()
    assert not room.folder.exists()


# Going on


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 2])
def test_a_run_goes_on_as_if_it_had_never_stopped(bound: int, loops: Make, tmp_path: Path) -> None:
    """Two steps and more, saved in the middle of everything that is in the air."""
    method = SMALL.replace(filters=(InformativeGroups(rounds=2),), epochs=2, minibatches=2)
    whole, begun, again = (loops(method, bound, task=Toy(scoring=uneven)) for _ in range(3))
    expected = numbers(whole, 5)
    assert numbers(begun, 2) == expected[:2]
    begun.save(tmp_path / "two")
    again.load(tmp_path / "two")
    assert list(again.ahead.flights) == list(begun.ahead.flights) == list(range(2, 2 + bound))
    assert numbers(again, 3) == expected[2:]
    assert all(torch.equal(v, whole.policy.tensors()[k]) for k, v in again.policy.tensors().items())


@pytest.mark.slow
def test_where_samplers_fail_all_that_is_in_the_air_can_be_saved_and_begun_again(loops: Make, tmp_path: Path) -> None:
    expected = numbers(loops(), 4)
    broken, again = loops(), loops()
    assert numbers(broken, 2) == expected[:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Samplers, "finish", _lost)
        with pytest.raises(EnvironmentFault) as raised:
            broken.step()
    assert raised.value.intact
    broken.save(tmp_path / "two")
    again.load(tmp_path / "two")
    assert list(again.ahead.flights) == [2, 3]
    assert numbers(again, 2) == expected[2:]


def test_where_it_cannot_begin_the_parts_know_what_they_knew(loops: Make) -> None:
    loop = loops()
    loop.step()
    before = loop.states()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Samplers, "begin", _lost)
        with pytest.raises(EnvironmentFault) as raised:
            loop.step()
    assert raised.value.intact
    assert loop.states() == before
    assert list(loop.ahead.flights) == [1]


def _lost(*_: Any) -> None:
    raise EnvironmentFault("It is gone.")


@pytest.mark.slow
def test_a_run_with_another_bound_goes_on_from_a_checkpoint(loops: Make, tmp_path: Path) -> None:
    """`--after` may change it: rows in the air are then begun by the new bound."""
    begun, longer, plain = loops(bound=1), loops(bound=2), loops(bound=0)
    numbers(begun, 2)
    begun.save(tmp_path / "two")
    for other in (longer, plain):
        other.load(tmp_path / "two")
        assert other.step().metrics["reward"] >= 0
    assert plain.ahead is None
    assert list(longer.ahead.flights) == [3, 4]
