"""The loop that learns from what is stored: exact resume, members of their own, the order of an update, its faults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.edit import set_value
from etude.core.errors import ConfigError, InvariantError
from etude.core.learners import Learning, Target
from etude.core.population import Member
from etude.experience.stretches import Stretches
from etude.learners.backups import ClippedNoise, FromPolicy
from etude.loops.off_policy import OffPolicyLoop
from etude.optimizers.adam import Adam
from etude.optimizers.schedules import Constant, Schedule
from etude.policies.control.observations import NormalizeObservations
from etude.tasks.control.cartpole import CartPoleArrays, cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, acts_in_boxes, fill, small
from solo_runs import alike

torch.set_num_threads(1)
each_method = pytest.mark.parametrize("name", list(REPLAY))


def task_of(name: str) -> ControlTask:
    return pendulum if acts_in_boxes(REPLAY[name]) else cartpole


@dataclass
class Trained:
    """A run of two steps: its weights at the start, its checkpoint after the first, what the second reported."""

    loop: OffPolicyLoop
    before: dict[str, torch.Tensor]
    folder: Path
    after: list[dict[str, list[float]]]


def loop_of(name: str, seeds: Sequence[int] = (3, 4), steps: int = 4, block: int = 12, **changes: Any) -> OffPolicyLoop:
    return OffPolicyLoop(small(REPLAY[name], **changes), task_of(name), [Member(s) for s in seeds], steps, block)


def everything(loop: OffPolicyLoop) -> dict[str, torch.Tensor]:
    """All tensors of a loop [P, ...], with what is stored, how much each row surprised, and noise that remembers."""
    store = loop.collector.store
    kept = {
        f"{part.slot}.{k}": v
        for part in (loop.method.sampling, loop.method.exploration)
        for k, v in (part.state if part is not None else {}).items() if isinstance(v, torch.Tensor)
    }  # fmt: skip
    return {**loop.policy_tensors(), **loop.updater.tensors(), **kept, "rows": store.grid[:, : store.size]}


def train(loop: OffPolicyLoop, steps: int) -> list[dict[str, list[float]]]:
    return [loop.step().members for _ in range(steps)]


BLOCK = 18
"""Environment steps of a training step: more than the ring of `trained` holds, and no stretch of random numbers."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """A run of each method, made when it is first asked for."""

    @cache
    def run(name: str) -> Trained:
        loop, folder = short(name), tmp_path_factory.mktemp("run")
        before = {k: v.clone() for k, v in loop.policy_tensors().items()}
        train(loop, 1)
        assert loop.collector.store.size == loop.collector.store.capacity
        loop.save(folder)
        return Trained(loop, before, folder, train(loop, 1))

    return run


def short(name: str, seeds: Sequence[int] = (3, 4, 9), block: int = BLOCK) -> OffPolicyLoop:
    return loop_of(name, seeds, 2 * BLOCK // block, block, capacity=16)


@pytest.mark.first("dqn", "sac")
@each_method
def test_it_trains(name: str, trained: Callable[[str], Trained]) -> None:
    run = trained(name)
    (metrics,) = run.after
    assert all(math.isfinite(v) for values in metrics.values() for v in values), metrics
    learns = [metrics[f"{learner}_gradient_norm"] for learner in run.loop.updater.trainers]
    assert all(v > 0 for values in learns for v in values), metrics
    policy = {k: v for k, v in run.loop.policy_tensors().items() if k.startswith("policy.")}
    assert any(not torch.equal(run.before[k], v) for k, v in policy.items())


@pytest.mark.first("dqn", "sac")
@each_method
def test_a_resumed_run_is_the_one_that_never_stopped(name: str, trained: Callable[[str], Trained]) -> None:
    """With the ring wrapped, and in the middle of a stretch of random numbers."""
    run, again = trained(name), short(name)
    again.load(run.folder)
    assert 0 < again.updater.updates < run.loop.updater.updates
    assert train(again, 1) == run.after
    assert all(torch.equal(v, everything(again)[k]) for k, v in everything(run.loop).items())


@pytest.mark.first("dqn", "sac")
@each_method
def test_the_length_of_a_block_changes_no_number(name: str, trained: Callable[[str], Trained]) -> None:
    parts = REPLAY[name].parts().values()
    if any(isinstance(p, Schedule) and not isinstance(p, Constant) for p in parts):  # rates go by training steps
        steady = set_value(small(REPLAY[name], capacity=16), "optimizer.schedule=constant")
        members = [Member(s) for s in (3, 4, 9)]
        long, other = (OffPolicyLoop(steady, task_of(name), members, 2 * BLOCK // n, n) for n in (BLOCK, 4))
        train(long, 2)
    else:
        long, other = trained(name).loop, short(name, block=4)
    train(other, 9)
    assert long.updater.updates == other.updater.updates > 5
    assert all(torch.equal(v, everything(other)[k]) for k, v in everything(long).items())


@pytest.mark.first("dqn", "sac")
@each_method
def test_a_member_is_the_run_of_its_seed(name: str, trained: Callable[[str], Trained]) -> None:
    together, alone = everything(trained(name).loop), short(name, (4,))
    train(alone, 2)
    count = {k: len(v) // 3 for k, v in together.items() if v.dim()}
    for key, value in everything(alone).items():
        if value.dim():
            assert alike(together[key][count[key] : 2 * count[key]], value), key


@pytest.mark.slow
def test_settings_of_members_reach_the_formulas() -> None:
    settings = [
        {"critic.learning.target.rate": r, "critic.learning.optimizer.lr": lr} for r, lr in ((1.0, 1e-3), (0.1, 1e-2))
    ]
    method = small(REPLAY["td3"])
    both = OffPolicyLoop(method, pendulum, [Member(5, s) for s in settings], 3, 12)
    alone = [OffPolicyLoop(method, pendulum, [Member(5, s)], 3, 12) for s in settings]
    for loop in (both, *alone):
        train(loop, 3)
    trainer = both.updater.trainers["critic"]
    assert alike(trainer.slow.values[0], trainer.parameters.values[0])  # a rate of 1 copies
    assert not torch.equal(trainer.slow.values[1], trainer.parameters.values[1])
    for k, loop in enumerate(alone):
        assert alike(
            both.updater.trainers["critic"].parameters.values[k], loop.updater.trainers["critic"].parameters.values[0]
        )


def test_a_factor_on_all_rates_differs_between_members() -> None:
    """Adam's first step is as long as its rate: half the factor, half the way."""
    method = small(REPLAY["sac"])
    loop = OffPolicyLoop(method, pendulum, [Member(5, {"rate": 1.0}), Member(5, {"rate": 0.5})], 1)
    fill(loop.collector.store)
    loop.collector.store.grid[1] = loop.collector.store.grid[0]
    before = {k: t.parameters.values.clone() for k, t in loop.updater.trainers.items()}
    loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    for name in ("critic", "temperature"):
        moved = loop.updater.trainers[name].parameters.values - before[name]
        assert torch.allclose(moved[1], 0.5 * moved[0], rtol=1e-2, atol=1e-9) and float(moved.abs().max()) > 1e-4


def test_the_rates_of_all_learners_are_set_at_once() -> None:
    method: Any = set_value(REPLAY["sac"], "optimizer.lr=0.007")
    assert {p.lr for path, p in method.parts().items() if path.endswith("learning.optimizer")} == {0.007}
    with pytest.raises(ConfigError, match=r"Adam\.lr must be a number above 0, got '-1'"):
        set_value(REPLAY["sac"], "optimizer.lr=-1")


def test_groups_of_an_order_are_written_as_lists() -> None:
    method: Any = set_value(REPLAY["sac"], 'order=[["critic","temperature"],"policy"]')
    assert method.order == (("critic", "temperature"), "policy")
    other: Any = set_value(REPLAY["sac"], "order=critic,policy,temperature")
    assert other.order == ("critic", "policy", "temperature")


# The order of an update


def updated(method: Any, updates: int, members: int = 1) -> OffPolicyLoop:
    loop = OffPolicyLoop(method, pendulum, [Member(s) for s in range(members)], 1)
    fill(loop.collector.store)
    for _ in range(updates):
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    return loop


def test_delayed_policies_and_slow_copies_move_in_the_same_updates() -> None:
    loop = updated(small(REPLAY["td3"]), 0)
    trainers, moved = loop.updater.trainers, []
    for _ in range(4):
        before = [x.clone() for t in trainers.values() for x in (t.parameters.values, t.slow.values)]
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
        after = [x for t in trainers.values() for x in (t.parameters.values, t.slow.values)]
        moved.append([not torch.equal(a, b) for a, b in zip(before, after)])
    names = [(n, w) for n in trainers for w in ("network", "copy")]
    rests = {("policy", "network"), ("policy", "copy"), ("critic", "copy")}
    for update, each in enumerate(moved, 1):
        assert {n for n, m in zip(names, each) if m} == set(names) - (rests if update % 2 else set())


def test_targets_follow_where_the_order_says() -> None:
    """A rate of 1: put first, the copy is the network before this update."""
    last = small(REPLAY["ddpg"])
    copies = Learning(Adam(lr=1e-2), target=Target(rate=1.0))
    last = last.replace(critic=last.critic.replace(learning=copies))
    first = last.replace(order=("targets", "critic", "policy"))
    for method, ahead in ((last, False), (first, True)):
        loop = updated(method, 1)
        trainer = loop.updater.trainers["critic"]
        before = trainer.parameters.values.clone()
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
        assert torch.equal(trainer.slow.values, before if ahead else trainer.parameters.values)


def test_a_group_reads_what_was_before_any_of_it_stepped() -> None:
    """SAC's policy and temperature: the policy's loss reads the old temperature, whichever is named first."""
    sac = small(REPLAY["sac"])
    groups = (("policy", "temperature"), ("temperature", "policy"))
    one, other = (updated(sac.replace(order=("critic", group)), 3) for group in groups)
    assert all(torch.equal(v, other.policy_tensors()[k]) for k, v in one.policy_tensors().items())
    apart = updated(sac.replace(order=("critic", "temperature", "policy")), 3)
    assert not all(torch.equal(v, apart.policy_tensors()[k]) for k, v in one.policy_tensors().items())


def test_an_update_of_td3_makes_no_more_passes_than_one_written_by_hand() -> None:
    """Critics: the copies at what follows, the critics here; every second update the first critic at pi(s)."""
    loop = updated(small(REPLAY["td3"]), 2)
    assert loop.updater.passes == {"critic": 5, "policy": 3}


def test_an_update_of_sac_draws_each_action_once() -> None:
    loop = updated(small(REPLAY["sac"]), 1)
    assert loop.updater.passes == {"critic": 3, "policy": 2}


# What stands in the store


@pytest.mark.slow
def test_the_first_of_a_new_episode_is_never_what_the_last_step_led_to() -> None:
    """On the pendulum, whose episodes are cut after 200 steps, the next observation is one step away."""
    loop = loop_of("sac", (0,), steps=1, block=401, capacity=600, warmup=500)
    train(loop, 1)
    store = loop.collector.store
    rows = store.read(torch.arange(store.size)[None])
    assert rows.end[0].nonzero().flatten().tolist() == [199, 399] and rows.live.min() == 1
    moved = (rows.next_observations - rows.observations).norm(dim=-1)
    assert float(moved.max()) < 2.0  # a reset is a jump of the speed, too
    inside = rows.end[0, :-1] == 0
    assert torch.equal(rows.next_observations[0, :-1][inside], rows.observations[0, 1:][inside])
    assert not torch.equal(rows.next_observations[0, 199], rows.observations[0, 200])


def test_actions_are_stored_in_units_and_acted_in_the_environments() -> None:
    loop = loop_of("sac", (0,), steps=1, block=30, random=30, warmup=40)
    acted: list[np.ndarray] = []
    before = loop.environment.step
    loop.collector.environment.step = lambda actions: (acted.append(actions.copy()), before(actions))[1]  # type: ignore[method-assign]
    train(loop, 1)
    stored = loop.collector.store.read(torch.arange(30)[None]).actions[0]
    assert torch.allclose(torch.from_numpy(np.stack(acted))[:, 0, 0], 2 * stored)  # bounds of 2
    assert stored.abs().max() <= 1 and stored.std() > 0.4


def test_the_policy_is_asked_only_where_chance_does_not_act() -> None:
    """The actions are the same; the numbers that chance compares are drawn here once more."""
    loop, asked = OffPolicyLoop(small(REPLAY["dqn"], random=0, warmup=40), cartpole, [Member(3)], 2, 30), list[int]()
    loop.collector.exploration = loop.method.exploration.replace(start=0.5, end=0.5)
    ask = loop.actor.forward

    def asking(seen: torch.Tensor, past: Any = None) -> torch.Tensor:
        asked.append(loop.collector.taken)
        said: torch.Tensor = ask(seen, past)
        return said

    loop.actor.forward = asking  # type: ignore[method-assign]
    chances = Stretches(loop.population, "explore").at(0)
    drawn = [chances.at(t)("chances", lambda g, n: torch.rand(n, 1, 1, generator=g)).item() for t in range(30)]
    loop.step()
    assert asked == [t for t, x in enumerate(drawn) if x >= 0.5]
    assert 5 < len(asked) < 25
    with torch.no_grad():
        best = ask(loop.collector.store.grid[:, :30, :4]).argmax(-1)[0]
    assert torch.equal(loop.collector.store.grid[0, asked, 4], best[asked].float())


def test_chance_acts_in_its_own_environments_alone() -> None:
    """Three of each of two members: what was stored is what chance did where it acted, else the best."""
    method = small(REPLAY["dqn"], random=0, warmup=40, environments=3)
    loop = OffPolicyLoop(method, cartpole, [Member(3), Member(4)], 2, 30)
    loop.collector.exploration = loop.method.exploration.replace(start=0.5, end=0.5)
    again, kinds = Stretches(loop.population, "explore"), set[int]()
    loop.step()
    for t in range(10):
        draw = again.at(t)
        here = draw("chances", lambda g, n: torch.rand(n, 3, 1, generator=g)) < 0.5
        others = draw("choices", lambda g, n: torch.randint(2, (n, 3, 1), generator=g).float())
        rows = loop.collector.store.grid[:, 3 * t : 3 * t + 3]
        with torch.no_grad():
            best = loop.actor(rows[..., :4]).argmax(-1, keepdim=True).float()
        assert torch.equal(rows[..., 4:5], torch.where(here, others, best))
        kinds.add(int(here.sum()))
    assert len(kinds & {1, 2, 3, 4, 5}) > 1


@pytest.mark.slow
def test_normalisers_learn_from_every_step_and_are_saved(tmp_path: Path) -> None:
    sac = small(REPLAY["sac"], capacity=100)
    sac = sac.replace(policy=sac.policy.replace(observations=(NormalizeObservations(),)))
    loop, alone = (OffPolicyLoop(sac, pendulum, [Member(s) for s in seeds], 2, 30) for seeds in ((3, 4), (4,)))
    train(loop, 1), train(alone, 1)
    shown = loop.collector.store.read(torch.arange(30).expand(2, -1)).observations.double()
    mean = loop.policy_tensors()["policy.transforms.0.moments.mean"][:, 0]
    assert torch.allclose(mean, shown.mean(1), atol=1e-6)
    assert alike(alone.policy_tensors()["policy.transforms.0.moments.mean"][0], mean[1:])
    loop.save(tmp_path)
    after = train(loop, 1)
    again = OffPolicyLoop(sac, pendulum, [Member(3), Member(4)], 2, 30)
    again.load(tmp_path)
    assert train(again, 1) == after


class Failing(CartPoleArrays):
    """Member 1's second environment shows and pays `poison` times what it should, and fails after every fifth step."""

    poison = 1.0

    def step(self, actions: np.ndarray) -> Step:
        self.limit = np.full(self.keys.shape, 500)  # type: ignore[misc,assignment]
        self.limit[1, 1] = 5  # type: ignore[index]
        self.states[1, 1] *= 0.1
        found = super().step(actions)
        faulty = np.zeros_like(found.truncated)
        faulty[1, 1] = found.truncated[1, 1]
        found.observations[1, 1] *= np.float32(self.poison)
        found.rewards[1, 1] *= np.float32(self.poison)
        return dataclasses.replace(found, faulty=faulty)

    def reset(self) -> np.ndarray:
        shown = super().reset()
        shown[1, 1] *= np.float32(self.poison)
        return shown


class FailingTask(ControlTask):
    id: ClassVar[str] = "failing"
    poison: float = 1.0

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        made = Failing(seeds, count, purpose)
        made.poison = self.poison
        return made


def failed(poison: float, block: int = 40) -> OffPolicyLoop:
    method = small(REPLAY["dqn"], environments=2, capacity=400, random=400, warmup=400)
    loop = OffPolicyLoop(method, FailingTask(poison=poison), [Member(0), Member(1)], 1, block)
    train(loop, 1)
    return loop


def test_a_failed_episode_is_taken_out_of_the_store() -> None:
    loop = failed(1e6)
    rows = loop.collector.store.read(torch.arange(40)[None].expand(2, -1))
    assert loop.collector.faults == 4
    assert float(rows.observations.abs().max()) < 100 and float(rows.rewards.abs().max()) <= 1
    fine = failed(1.0).collector.store
    assert torch.equal(loop.collector.store.grid[0, :40], fine.grid[0, :40])  # no other member moves


# What is refused


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"order": ("critic",)}, "order leaves out policy, which would never learn: order=critic,policy."),
        ({"order": ("critic", "policy", "value")}, "order names value, and what learns is called critic, policy"),
        ({"order": ("critic", "policy", "critic")}, "order names critic twice"),
        ({"actor": ()}, "DeterministicPolicy learns by the terms of the slot actor, which is empty: set actor="),
    ],
)
def test_what_cannot_be_composed_is_said(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        REPLAY["td3"].replace(**changes).check()


def test_noise_on_choices_is_refused() -> None:
    method = small(REPLAY["sac-discrete"])
    noisy = method.critic.backup.rule.replace(noise=ClippedNoise())
    critic = method.critic.replace(backup=method.critic.backup.replace(rule=noisy))
    with pytest.raises(ConfigError, match="adds noise to actions, and the policy's are choices"):
        train(OffPolicyLoop(method.replace(critic=critic), cartpole, [Member(0)], 1, 30), 1)


def test_noise_on_the_best_choice_is_refused() -> None:
    method = small(REPLAY["dqn"])
    noisy = method.critic.backup.replace(rule=FromPolicy(noise=ClippedNoise()))
    loop = OffPolicyLoop(method.replace(critic=method.critic.replace(backup=noisy)), cartpole, [Member(0)], 1, 30)
    with pytest.raises(ConfigError, match="Noise is added to numbers, and these actions are choices"):
        train(loop, 1)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"every": 3, "updates": 0.1}, "Replay makes 0.1 updates for each of every=3 transitions, 0.3 in a round"),
        ({"capacity": 10, "warmup": 20}, "keeps 10 transitions, and learns only after 20"),
        ({"capacity": 2, "warmup": 1, "environments": 3}, "keeps 2 transitions and steps 3 environments"),
    ],
)
def test_a_replay_that_makes_no_sense_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        REPLAY["td3"].experience.replace(**fields)  # type: ignore[union-attr]


def test_a_batch_larger_than_the_warmup_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learns after 12 transitions, and a batch is 13: raise experience\.warmup"):
        method = small(REPLAY["td3"])
        method.replace(sampling=method.sampling.replace(batch=13)).check()


@pytest.mark.parametrize(
    "name, task, sentence",
    [
        ("td3", cartpole, "DeterministicPolicy acts in a Box of floats, and the actions are Discrete.*there is dqn"),
        ("sac", cartpole, "SquashedPolicy acts in a Box of floats"),
        ("dqn", pendulum, "FromCritic chooses among Discrete actions, and they are Box.*there are td3 and sac"),
    ],
)
def test_actions_that_a_method_cannot_take_are_refused_with_one_that_can(name: str, task: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        OffPolicyLoop(small(REPLAY[name]), task, [Member(0)], 1)


def test_a_rate_too_small_to_move_a_weight_is_found() -> None:
    method = small(REPLAY["ddpg"])
    still = Learning(Adam(lr=1e-30), target=Target(rate=0.1))
    loop = OffPolicyLoop(method.replace(critic=method.critic.replace(learning=still)), pendulum, [Member(0)], 1, 30)
    with pytest.raises(InvariantError, match="left every weight of the critic of member 0 as it was"):
        train(loop, 1)
