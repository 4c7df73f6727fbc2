"""Stream AC: its steps by hand, its traces by enumeration, what bounds them, and what it is refused for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.control import ControlTask
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.learners import Learning
from etude.core.population import Member
from etude.experience.replay import Replay
from etude.experience.sampling import UniformRows
from etude.learners.backups import Argmax, Bootstrap, FromPolicy, FromValue
from etude.learners.encoder import CriticEncoder
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.value.stream_ac import stream_ac
from etude.objectives.actor import MaximizeQ
from etude.optimizers.adam import Adam
from etude.optimizers.traces import ObGD
from etude.policies.control.units import NormalBox, Softmax, SquashedBox
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small
from solo_runs import alike

torch.set_num_threads(1)
each_task = pytest.mark.parametrize("task", [cartpole, pendulum], ids=["choices", "numbers"])
WHO = ("policy", "critic")


class Noted:
    """Gradients, errors and carries of every step of a learner, and its weights before and after, [T][P, ...]."""

    def __init__(self, loop: OffPolicyLoop, name: str) -> None:
        self.trainer = loop.updater.trainers[name]
        self.found: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        self.step, self.bounded = self.trainer.stepper.step, list[Tensor]()
        self.trainer.stepper.step = self.noted  # type: ignore[method-assign]

    def noted(self, lesson: Any, rate: Any) -> Any:
        before, gradient = self.trainer.parameters.values.clone(), self.trainer.parameters.gradient.clone()
        report = self.step(lesson, rate)
        told = self.trainer.estimate
        assert told is not None
        self.found.append((gradient, told.error, told.carry, before, self.trainer.parameters.values.clone()))
        self.bounded.append(report["bounded_steps"])
        return report


def loop_of(task: ControlTask, changes: dict[str, Any], steps: int, seeds: tuple[int, ...] = (3, 4)) -> OffPolicyLoop:
    method: Any = set_values(small(stream_ac), changes)
    return OffPolicyLoop(method, task, [Member(s) for s in seeds], 4, steps)


@pytest.fixture
def exact() -> Any:
    """In float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@each_task
def test_without_traces_it_is_one_step_actor_critic(task: ControlTask, exact: None) -> None:
    """Each step, with torch's own densities: w <- w + lr error grad log pi, v <- v + lr error grad V, where nothing
    overshoots."""
    rate = 1e-5
    plain = {
        "policy.learning.optimizer.lam": 0.0, "critic.learning.optimizer.lam": 0.0, "optimizer.lr": rate,
        "actor.signed-entropy.weight": 0.0,
    }  # fmt: skip
    loop = loop_of(task, plain, 1)
    notes = {name: Noted(loop, name) for name in WHO}
    moved = 0.0
    for _ in range(40):
        weights = {name: loop.updater.trainers[name].parameters.values.clone() for name in WHO}
        loop.collector.step()
        draw = loop.updater.stretches.at(loop.updater.updates)
        batch = loop.method.sampling.draw(loop.collector.store, draw)
        assert batch.next_observations is not None
        s, following = (loop.actor.look(x) for x in (batch.observations, batch.next_observations))
        with torch.no_grad():
            error = batch.rewards + 0.99 * ~batch.terminated * loop.critic(following)[:, 0, :, 0]
            error = (error - loop.critic(s)[:, 0, :, 0])[:, 0]
        said, a = loop.actor(s)[:, 0], batch.actions[:, 0]
        mean, deviation = said.chunk(2, -1)
        pi: Any = (
            torch.distributions.Categorical(logits=said) if task is cartpole
            else torch.distributions.Normal(mean, torch.nn.functional.softplus(deviation))
        )  # fmt: skip
        logp = pi.log_prob(a[:, 0] if task is cartpole else a).view(len(a))
        for name, value in (("policy", logp), ("critic", loop.critic(s)[:, 0, 0, 0])):
            leaves = loop.updater.trainers[name].parameters.leaves
            found = torch.autograd.grad(value.sum(), leaves)
            gradient = torch.cat([g.reshape(len(a), -1) for g in found], 1)
            weights[name] += rate * error[:, None] * gradient
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
        for name in WHO:
            now = loop.updater.trainers[name].parameters.values
            torch.testing.assert_close(now, weights[name], rtol=0, atol=1e-13)
            moved = max(moved, float((now - notes[name].found[-1][3]).abs().max()))
    assert moved > 1e-6 and all(not b.any() for note in notes.values() for b in note.bounded)


@pytest.mark.slow
@each_task
def test_traces_are_the_sum_of_discounted_gradients_of_the_episode(task: ControlTask, exact: None) -> None:
    """Both, at every step; no gradient of an episode before counts, and both see one error."""
    loop = loop_of(task, {}, 205 if task is pendulum else 60)
    notes = [Noted(loop, name) for name in WHO]
    loop.step()
    ends = 0
    for note in notes:
        for k in range(2):
            since = 0
            for t, (_, error, carry, before, after) in enumerate(note.found):
                known = note.found[since : t + 1]
                z = sum((0.99 * 0.8) ** (t - since - i) * g[k] for i, (g, *_) in enumerate(known))
                assert isinstance(z, Tensor)
                bound = note.trainer.stepper.kappa * error[k].abs().clamp(min=1.0) * z.abs().sum()  # type: ignore[attr-defined]
                step = error[k] * z / bound.clamp(min=1.0)
                assert float((after[k] - before[k] - step.view_as(before[k])).abs().max()) < 1e-12
                if carry[k] == 0:
                    since, ends = t + 1, ends + 1
    assert ends >= 4
    assert all(torch.equal(a[1], b[1]) for a, b in zip(notes[0].found, notes[1].found, strict=True))


@pytest.mark.slow
@each_task
def test_a_step_that_would_overshoot_has_a_fixed_length(task: ControlTask) -> None:
    """|error| / (kappa max(|error|, 1)) in sum, with 3 for the policy and 2 for the critic: at most 1 / kappa."""
    loop = loop_of(task, {}, 30)
    for name, kappa in zip(WHO, (3.0, 2.0)):
        note = Noted(loop, name)
        loop.step()
        assert all(bool(b.all()) for b in note.bounded)
        for _, error, _, before, after in note.found:
            length = (after.double() - before.double()).abs().sum(1)
            wanted = error.double().abs() / (kappa * error.double().abs().clamp(min=1.0))
            torch.testing.assert_close(length, wanted, rtol=1e-3, atol=1e-5)
            assert float(length.max()) <= 1 / kappa + 1e-4


@each_task
def test_the_loss_is_what_traces_step_along(task: ControlTask, exact: None) -> None:
    """Without traces, with any optimizer: the gradient of the loss is minus the error times that of the estimate."""
    loop = loop_of(task, {}, 1)
    for _ in range(5):
        loop.step()
        loop.collector.step()
        trainer, policy = loop.updater.trainers["policy"], loop.method.policy
        draw, sampling = loop.updater.stretches.at(loop.updater.updates), loop.method.sampling
        read = StoredReading(loop.updater, sampling, sampling.draw(loop.collector.store, draw), draw)
        told = read.estimated(policy)
        along = torch.autograd.grad(told.value.sum(), trainer.parameters.leaves, retain_graph=True)
        against = torch.autograd.grad(read.minimised(policy).sum(), trainer.parameters.leaves)
        for f, loss in zip(along, against, strict=True):
            error = told.error.view(-1, *[1] * (f.dim() - 1))
            torch.testing.assert_close(loss, -error * f, rtol=1e-9, atol=1e-12)
        assert float(told.error.abs().min()) > 0 and any(bool(f.any()) for f in along)


@pytest.mark.slow
def test_members_and_resume_are_exact_for_choices_too(tmp_path: Path) -> None:
    """Of numbers `test_off_policy.py` shows it."""
    together, alone = (loop_of(cartpole, {}, 25, seeds) for seeds in ((3, 4, 9), (4,)))
    for loop in (together, alone):
        loop.step(), loop.step()

    def everything(loop: OffPolicyLoop) -> dict[str, Tensor]:
        return {**loop.policy_tensors(), **loop.updater.tensors()}

    for key, value in everything(alone).items():
        assert alike(everything(together)[key][len(value) : 2 * len(value)], value), key
    assert any(key.startswith("policy.trace") and bool(v.any()) for key, v in everything(together).items())
    together.save(tmp_path)
    after, again = together.step().members, loop_of(cartpole, {}, 25, (3, 4, 9))
    again.load(tmp_path)
    assert again.step().members == after
    assert all(torch.equal(v, everything(again)[k]) for k, v in everything(together).items())


@pytest.mark.slow
def test_the_pole_is_held_longer() -> None:
    """The paper's settings and sizes: means over the last 100 episodes as they were acted, about 22 by chance."""
    loop = OffPolicyLoop(stream_ac, cartpole, [Member(s) for s in range(3)], 3, 500)
    for _ in range(3):
        lengths = loop.step().members["return"]
    assert min(lengths) > 35


# Densities of what was done


@pytest.mark.parametrize("kind", ["normal", "softmax", "squashed"])
def test_densities_and_entropies_are_those_of_torch(kind: str, exact: None) -> None:
    g = torch.Generator().manual_seed(0)
    said = 0.5 * torch.randn(3, 5, 4, generator=g)
    mean, other = said.chunk(2, -1)
    if kind == "normal":
        spread: Any = NormalBox((-2.0, 0.0), (2.0, 1.0))
        pi: Any = torch.distributions.Normal(mean, torch.nn.functional.softplus(other))
        noise = torch.randn(3, 5, 2, generator=g)
        entropy = pi.entropy().sum(-1)
        assert torch.equal(spread.outside(torch.tensor([[3.0, -1.0]])), torch.tensor([[6.0, 0.0]]))  # nothing is cut
    elif kind == "squashed":
        spread = SquashedBox((-2.0, 0.0), (2.0, 1.0), -20.0, 2.0)
        tanh = torch.distributions.transforms.TanhTransform(cache_size=1)
        pi = torch.distributions.TransformedDistribution(torch.distributions.Normal(mean, other.exp()), [tanh])
        noise = torch.randn(3, 5, 2, generator=g)
        many = SquashedBox((0.0,) * 2, (1.0,) * 2, -20.0, 2.0).chosen(said, torch.randn(4_000, 3, 5, 2, generator=g))
        assert many.logp is not None
        entropy = -many.logp.mean(0)
    else:
        spread, pi = Softmax(4), torch.distributions.Categorical(logits=said)
        noise, entropy = spread.noise((3, 5), g), pi.entropy()
    choice = spread.chosen(said, noise)
    wanted = pi.log_prob(choice.actions[..., 0]) if kind == "softmax" else pi.log_prob(choice.actions).sum(-1)
    torch.testing.assert_close(spread.logp(said, choice.actions), wanted)
    if kind != "softmax":
        torch.testing.assert_close(choice.logp, wanted)
    assert float((spread.entropy(said) - entropy).abs().max()) < (0.1 if kind == "squashed" else 1e-12)


def test_states_are_worth_what_they_are_whatever_is_done() -> None:
    loop = loop_of(pendulum, {}, 3)
    seen = torch.randn(2, 5, 3)
    assert torch.equal(loop.critic(seen), loop.critic(seen, torch.randn(2, 5, 1)))
    assert loop.critic(seen).shape == (2, 1, 5, 1)


SAC: Any = REPLAY["sac"]
AC: Any = stream_ac
ADAM = {name: getattr(AC, name).replace(learning=Learning(Adam())) for name in WHO}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"critic": SAC.critic.replace(backup=Bootstrap())}, "of what one state is worth: set critic=v-func"),
        ({"critic": AC.critic.replace(count=2, learning=Learning(Adam()))}, "of what one state is worth"),
        ({"critic": AC.critic.replace(backup=Bootstrap(FromPolicy()))}, "set critic.backup.rule=from-value"),
        ({"critic": AC.critic.replace(backup=Bootstrap(Argmax()))}, "set critic.backup.rule=from-value"),
        ({"policy": REPLAY["stream-x"].policy, "actor": (), "order": ("critic",)}, "FromCritic takes the best"),  # type: ignore[attr-defined]
        ({"policy": REPLAY["td3"].policy}, "DeterministicPolicy cannot say: set policy=stochastic-policy"),  # type: ignore[attr-defined]
        ({"actor": (MaximizeQ(),), **ADAM}, "climbs what actions are worth, and the critic says it of states"),
        ({"learners": (CriticEncoder(),)}, "reads what is seen, and critic-encoder stands before it"),
        ({"experience": Replay(), "sampling": UniformRows(), **ADAM}, "is right for what the policy itself just did"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        stream_ac.replace(**changes).check()


def test_a_critic_of_actions_has_nothing_to_say_of_states() -> None:
    sac = SAC.replace(critic=SAC.critic.replace(backup=Bootstrap(FromValue())))
    with pytest.raises(ConfigError, match="FromValue asks what states are worth, and the critic says it of actions"):
        sac.check()
    with pytest.raises(ConfigError, match="SquashedPolicy minimises a loss, and ObGD asks for an estimate"):
        SAC.replace(policy=SAC.policy.replace(learning=Learning(ObGD()))).check()
