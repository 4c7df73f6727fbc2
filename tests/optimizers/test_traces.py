"""Optimizers with traces: their steps by enumeration, every member by itself, and what they are refused for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.errors import ConfigError, NonFiniteError
from etude.core.learners import Learning
from etude.core.population import FlatParameters, Member, Numbers, PerMember
from etude.core.replay_slots import Estimate
from etude.experience.exploration import EpsilonGreedy
from etude.experience.latest import Latest, Newest
from etude.experience.sampling import OneStep
from etude.learners.heads import Atoms, CrossEntropy, Huber
from etude.loops.off_policy import OffPolicyLoop
from etude.optimizers.traces import AdaptiveObGD, ObGD
from etude.policies.control.networks import MLP
from etude.tasks.tabular.river_swim import RiverSwim
from replay_toys import REPLAY
from solo_runs import alike

torch.set_num_threads(1)
P, D = 3, 6


@dataclass
class Told:
    """A lesson whose gradient and error are given."""

    parameters: FlatParameters
    gradients: Tensor
    estimate: Estimate
    batch: Any = None

    def gradient(self) -> dict[str, Tensor]:
        self.parameters.gradient.copy_(self.gradients)
        return {}


def weights(members: int = P) -> FlatParameters:
    return FlatParameters({"w": Numbers({f"w{i}": torch.zeros(members, dtype=torch.float64) for i in range(D)})})


def given(parameters: FlatParameters, gradients: Tensor, error: Tensor, carry: Tensor) -> Any:
    return Told(parameters, gradients, Estimate(gradients[:, 0], error, carry))


def steps(seed: int, count: int = 8) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Gradients [P, D], errors and carries [P]; one in four steps is the last of something."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        gradients, error = (torch.randn(P, D, generator=g).double(), 2 * torch.randn(P, generator=g).double())
        found.append((gradients, error, 0.9 * (torch.rand(P, generator=g) > 0.25).double()))
    return found


def written_out(k: int, told: Any, lr: float, lam: float, kappa: float, adaptive: bool) -> np.ndarray:
    """One member's weights after each step, number by number."""
    w, z, v, found = np.zeros(D), np.zeros(D), np.zeros(D), []
    for t, (gradients, error, carry) in enumerate(told, 1):
        delta = float(error[k])
        z = z + gradients[k].numpy()
        v = 0.999 * v + 0.001 * (delta * z) ** 2
        along = z / np.sqrt(v / (1 - 0.999**t) + 1e-8) if adaptive else z
        m = lr * kappa * max(abs(delta), 1.0) * np.abs(along).sum()
        w = w + (lr / m if m > 1 else lr) * delta * along
        z = z * lam * float(carry[k])
        found.append(w)
    return np.array(found)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("lr", [1.0, 1e-3])
def test_steps_are_those_written_out_for_every_member(adaptive: bool, lr: float) -> None:
    part = (AdaptiveObGD if adaptive else ObGD)(lr=lr, lam=0.7, kappa=2.5)
    parameters, told = weights(), steps(1)
    stepper, found, bounded = part.population(parameters), [], []
    for one in told:
        bounded.append(stepper.step(given(parameters, *one), 1.0)["bounded_steps"])
        found.append(parameters.values.clone())
    expected = np.stack([written_out(k, told, lr, 0.7, 2.5, adaptive) for k in range(P)], 1)
    assert torch.stack(found).numpy() == pytest.approx(expected, rel=1e-6, abs=1e-12)  # lr is a float32 in one case
    assert float(torch.stack(bounded).mean()) == (1.0 if lr == 1.0 else 0.0)


def test_a_step_that_would_overshoot_has_a_fixed_length() -> None:
    """Its L1 norm is |error| / (kappa max(|error|, 1)), whatever the traces are."""
    parameters = weights()
    stepper = ObGD(lam=0.8, kappa=3.0).population(parameters)
    for gradients, error, carry in steps(2):
        before = parameters.values.clone()
        assert stepper.step(given(parameters, gradients * 50, error, carry), 1.0)["bounded_steps"].tolist() == [1.0] * P
        length = (parameters.values - before).abs().sum(1)
        torch.testing.assert_close(length, error.abs() / (3.0 * error.abs().clamp(min=1.0)))


def test_small_steps_are_tabular_td_lambda_with_accumulating_traces() -> None:
    """Six states one after another, some twice, gamma 0.9, lambda 0.8, rate 1e-4: the table by the book's algorithm."""
    visits, rewards = [0, 1, 1, 2, 0, 3, 5, 4], [1.0, 0.0, -2.0, 0.5, 0.0, 3.0, 1.0, -1.0]
    parameters = weights(1)
    stepper = ObGD(lr=1e-4, lam=0.8, kappa=2.0).population(parameters)
    table, traces = np.zeros(D), np.zeros(D)
    for _ in range(3):
        for t, s in enumerate(visits):
            last = t == len(visits) - 1
            values = parameters.values[0]
            following = 0.0 if last else float(values[visits[t + 1]])
            error = torch.tensor([rewards[t] + 0.9 * following - float(values[s])], dtype=torch.float64)
            one = torch.nn.functional.one_hot(torch.tensor([s]), D).double()
            stepper.step(given(parameters, one, error, torch.tensor([0.0 if last else 0.9])), 1.0)
            traces = 0.9 * 0.8 * traces
            traces[s] += 1
            delta = rewards[t] + 0.9 * (0.0 if last else table[visits[t + 1]]) - table[s]
            table = table + 1e-4 * delta * traces
            traces = np.zeros(D) if last else traces
    assert np.abs(table).min() > 1e-5
    assert parameters.values[0].numpy() == pytest.approx(table, rel=1e-6)


def test_members_are_alone_whoever_else_is_there() -> None:
    told = steps(3)
    settings = [{"lr": 0.5, "lam": 0.2, "kappa": 1.0}, {"lr": 1.0, "lam": 0.9, "kappa": 3.0}, {"lr": 1e-3}]
    whole = {k: PerMember([s.get(k, getattr(ObGD(), k)) for s in settings]) for k in ("lr", "lam", "kappa")}
    part: Any = ObGD()
    part = part.bind()
    for k, numbers in whole.items():
        part.settle(k, numbers)
    together = weights()
    stepper = part.population(together)
    for one in told:
        stepper.step(given(together, *one), 1.0)
    for k, own in enumerate(settings):
        alone = weights(1)
        lonely = ObGD(**own).population(alone)
        for gradients, error, carry in told:
            lonely.step(given(alone, gradients[k : k + 1], error[k : k + 1], carry[k : k + 1]), 1.0)
        assert alike(together.values[k], alone.values[0])


def test_what_is_not_finite_moves_its_member_not_and_stops_the_run_at_the_third() -> None:
    parameters = weights()
    stepper = ObGD().population(parameters)
    gradients, error = torch.ones(P, D, dtype=torch.float64), torch.ones(P, dtype=torch.float64)
    broken = error.clone()
    broken[1] = torch.nan
    for _ in range(2):
        found = stepper.step(given(parameters, gradients, broken, error), 1.0)
        assert found["skipped_steps"].tolist() == [0.0, 1.0, 0.0]
    assert parameters.values[1].abs().max() == 0 and parameters.values[0].abs().min() > 0
    assert stepper.trace.isfinite().all()
    with pytest.raises(NonFiniteError, match="member 1 was not finite in 3"):
        stepper.step(given(parameters, gradients, broken, error), 1.0)


# In the loop


def streamed(**changes: Any) -> Any:
    """Q(lambda) on values that are linear in what is seen."""
    dqn: Any = REPLAY["dqn"]
    critic = dqn.critic.replace(
        network=MLP(hidden=()),
        error=type(REPLAY["td3"].critic.error)(),
        learning=Learning(ObGD(lr=0.01, lam=0.8)),  # type: ignore[union-attr]
    )
    return dqn.replace(
        experience=Latest(), sampling=Newest(horizon=OneStep(gamma=0.9)), critic=critic.replace(**changes),
        exploration=EpsilonGreedy(start=0.5, end=0.5),
    )  # fmt: skip


@pytest.mark.slow
def test_traces_of_q_end_with_the_episode_and_after_what_is_not_best() -> None:
    """Watkins's Q(lambda), linear, written out beside a run: places of a chain, ends by a limit, chance in half."""
    task = RiverSwim()
    loop = OffPolicyLoop(streamed(), task, [Member(0), Member(1)], 1, 60)
    draw, happened = loop.method.sampling.draw, []
    object.__setattr__(loop.method.sampling, "draw", lambda s, d: happened.append(draw(s, d)) or happened[-1])
    before = loop.updater.trainers["critic"].parameters.values.double().clone()
    loop.step()
    after = loop.updater.trainers["critic"].parameters.values.double()
    size = happened[0].observations.shape[-1]
    for k in range(2):
        w = before[k].numpy().copy()
        matrix, bias = w[: 2 * size].reshape(size, 2), w[2 * size :]
        traces, kinds = [np.zeros((size, 2)), np.zeros(2)], {"end": 0, "strayed": 0, "on": 0}
        for batch in happened:
            s, after_s = (x[k, 0].double().numpy() for x in (batch.observations, batch.next_observations))
            a = int(batch.actions[k, 0, 0])
            here, following = s @ matrix + bias, after_s @ matrix + bias
            live = 0.0 if batch.terminated[k, 0] else 1.0
            delta = float(batch.rewards[k, 0]) + 0.9 * live * following.max() - here[a]
            traces[0][:, a] += s
            traces[1][a] += 1
            total = sum(np.abs(z).sum() for z in traces)
            step = 0.01 / max(1.0, 0.01 * 2.0 * max(abs(delta), 1.0) * total)
            matrix, bias = matrix + step * delta * traces[0], bias + step * delta * traces[1]
            over, strayed = bool(batch.terminated[k, 0] | batch.truncated[k, 0]), a != here.argmax()
            kinds["end" if over else "strayed" if strayed else "on"] += 1
            traces = [z * (0.0 if over or strayed else 0.9 * 0.8) for z in traces]
        assert kinds["strayed"] > 5 and kinds["on"] > 5 and kinds["end"] > 0
        assert np.concatenate([matrix.ravel(), bias]) == pytest.approx(after[k].numpy(), abs=1e-5)
        assert float((after[k] - before[k]).abs().max()) > 1e-2


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"experience": Latest(environments=2)}, "keeps one trace for each member, which is of one environment"),
        (
            {"experience": REPLAY["dqn"].experience, "sampling": REPLAY["dqn"].sampling},
            "set experience=latest and samp",
        ),  # type: ignore[attr-defined]
        ({"critic": streamed(error=Huber()).critic}, r"set critic\.count=1, critic\.head=scalar and critic\.error=squ"),
        ({"critic": streamed(head=Atoms(), error=CrossEntropy()).critic}, "has one value for ObGD"),
        ({"critic": streamed(learning=Learning(ObGD(), every=2)).critic}, "which are of every step once: leave out"),
    ],
)
def test_what_traces_cannot_be_of_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        streamed().replace(**changes).check()


def test_learners_that_minimise_a_loss_are_refused() -> None:
    sac: Any = REPLAY["sac"].replace(experience=Latest(), sampling=Newest())
    with pytest.raises(ConfigError, match="SquashedPolicy minimises a loss, and ObGD asks for an estimate and its err"):
        sac.replace(policy=sac.policy.replace(learning=Learning(ObGD()))).check()
