"""Learners that read rows of their own: another sampling, windows of steps, several updates in a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.core.edit import set_value
from etude.core.errors import ConfigError
from etude.core.learners import Learning
from etude.core.population import Member, Numbers, Population
from etude.core.replay_slots import ReplayLearner, ReplayReading
from etude.core.transitions import Transitions
from etude.experience.prioritized import LossAdjustedRows
from etude.experience.sampling import NStep, OneStep, UniformRows, Window
from etude.loops.off_policy import OffPolicyLoop
from etude.optimizers.adam import Adam
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, fill, small

torch.set_num_threads(1)
SEEN: list[Transitions] = []


class Watching(ReplayLearner):
    """Remembers what it read, and learns the mean reward of a step."""

    learning: Learning = Learning(Adam(lr=0.1))

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return Numbers({"mean": torch.zeros(population.size)})

    def loss(self, read: ReplayReading) -> Tensor:
        SEEN.append(read.batch)
        return (read.batch.rewards.flatten(1) - read.network()).square().mean(1)


class WatchingWindows(Watching):
    reads_windows = True


def loop_of(learner: Watching | None, seeds: tuple[int, ...] = (3, 4), **changes: Any) -> OffPolicyLoop:
    """TD3, and the learner between its critic and its policy."""
    method: Any = small(REPLAY["td3"]).replace(**changes)
    if learner is not None:
        method = method.replace(learners=(learner,), order=("critic", learner.name, "policy"))
    loop = OffPolicyLoop(method, pendulum, [Member(s) for s in seeds], 1)
    fill(loop.collector.store)
    loop.collector.store.grid[:] = loop.collector.store.grid[:1]  # all members have stored the same
    return loop


def updated(loop: OffPolicyLoop, updates: int) -> tuple[dict[str, Tensor], list[Transitions]]:
    """Weights of policy and critic after some updates, and what the learner read."""
    SEEN.clear()
    for _ in range(updates):
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    return {k: v.clone() for k, v in loop.policy_tensors().items() if not k.startswith("watching")}, list(SEEN)


def test_a_learner_without_a_sampling_reads_what_all_read() -> None:
    loop = loop_of(Watching())
    read = [batch.index for batch in updated(loop, 3)[1]]
    again = loop_of(None)
    drawn = [again.method.sampling.draw(again.collector.store, again.updater.stretches.at(u)).index for u in range(3)]
    assert [torch.equal(a, b) for a, b in zip(read, drawn, strict=True)] == [True] * 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "learner",
    [
        Watching(sampling=UniformRows(batch=5, horizon=NStep(n=2))),
        Watching(learning=Learning(Adam(lr=0.1), every=2, epochs=3)),
        WatchingWindows(sampling=Window(length=3)),
        WatchingWindows(sampling=LossAdjustedRows(batch=4, horizon=Window(length=2))),
    ],
    ids=["sampling", "burst", "windows", "prioritized windows"],
)
def test_rows_of_its_own_change_nobody_elses_numbers(learner: Watching) -> None:
    alone, _ = updated(loop_of(None), 4)
    beside, batches = updated(loop_of(learner), 4)
    assert batches and all(torch.equal(v, beside[k]) for k, v in alone.items())


def test_a_burst_is_so_many_updates_in_a_row_on_fresh_rows() -> None:
    """Every second update, from the fifth on: three steps each."""
    loop = loop_of(Watching(learning=Learning(Adam(lr=0.1), every=2, warmup=4, epochs=3)))
    counts, batches = [], []
    for _ in range(8):
        _, seen = updated(loop, 1)
        counts.append(len(seen))
        batches += seen
    assert counts == [0, 0, 0, 0, 0, 3, 0, 3]
    drawn = {tuple(batch.index.flatten().tolist()) for batch in batches if batch.index is not None}
    assert len(drawn) == 6
    assert loop.updater.trainers["watching"].stepper.taken.tolist() == [6.0, 6.0]


def test_every_step_of_a_burst_is_reported() -> None:
    loop = loop_of(Watching(learning=Learning(Adam(lr=0.1), epochs=3)))
    reports = loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    assert [name for name, _ in reports] == ["critic", "watching", "watching", "watching"]
    losses = [float(measured["loss"][0]) for name, measured in reports if name == "watching"]
    assert len(set(losses)) == 3


def test_members_draw_rows_of_their_own_in_a_burst() -> None:
    learner = Watching(learning=Learning(Adam(lr=0.1), epochs=2))
    _, both = updated(loop_of(learner), 2)
    _, alone = updated(loop_of(learner, (4,)), 2)
    for two, one in zip(both, alone, strict=True):
        assert two.index is not None and one.index is not None
        assert torch.equal(two.index[1], one.index[0]) and not torch.equal(two.index[0], two.index[1])


def test_a_horizon_alone_shows_the_rows_that_the_method_draws() -> None:
    """Those that surprised: each draw has the masses that the critic's errors left."""
    loop = loop_of(WatchingWindows(sampling=Window(length=3)), sampling=LossAdjustedRows(batch=6, horizon=OneStep()))
    learned: list[Transitions] = []
    part: Any = loop.method.sampling
    before = part.learn
    object.__setattr__(part, "learn", lambda batch, errors: (learned.append(batch), before(batch, errors))[1])
    _, batches = updated(loop, 3)
    assert len(learned) == 3 and all(b.rewards.dim() == 2 for b in learned)
    assert all(b.rewards.shape == (2, 6, 3) and b.observations.shape == (2, 6, 3, 3) for b in batches)
    rows = loop.collector.store.read(batches[0].index)  # type: ignore[arg-type]
    assert torch.equal(batches[0].rewards[..., 0], rows.rewards)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("critic.sampling=window", "QFunctions reads steps one by one, and gets windows of them: set sampling.horizon"),
        ("sampling.horizon=window", "reads steps one by one, and gets windows of them"),
        ("critic.sampling.batch=50", "learns after 12 transitions, and a batch is 50: raise experience.warmup"),
        ("critic.sampling.horizon.n=90", "keeps 40 steps of an environment, and the horizon is 90"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change: str, sentence: str) -> None:
    method: Any = small(REPLAY["td3"])
    method = method.replace(critic=method.critic.replace(sampling=UniformRows(batch=6, horizon=NStep())))
    with pytest.raises(ConfigError, match=sentence):
        set_value(method, change).check()


def test_a_reader_of_windows_refuses_single_steps() -> None:
    with pytest.raises(ConfigError, match=r"reads windows of steps, and gets them one by one: set its sampling=window"):
        loop_of(WatchingWindows()).method.check()


def test_a_burst_in_a_group_is_refused() -> None:
    method: Any = set_value(small(REPLAY["sac"]), "learners.temperature.learning.epochs=2")
    with pytest.raises(ConfigError, match="order has temperature in a group, whose losses are computed together"):
        method.check()
