"""Methods that learn from logs and then from what they do: they resume and stand alone, updates, what the rows say.

An update is computed anew with torch's own layers and optimizers, on the rows that the loop drew.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from etude.core.edit import set_values
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.stages import applied
from etude.experience.beside_logs import LogsAndReplay
from etude.experience.replay import Replay
from etude.experience.sampling import UniformRows
from etude.experience.stretches import Stretches
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.penalties import RecordedReturns
from etude.loops.off_policy import OffPolicyLoop
from etude.objectives.reductions import Min, RandomMin
from etude.stages.handover import Handover
from etude.stages.phases import Phase
from etude.tasks.control.logged import LoggedTask
from etude.tasks.control.pendulum import pendulum
from log_toys import ONWARD, logged_task, small_onward
from own_updates import Own, flat, follow, net, q
from solo_runs import alike

torch.set_num_threads(1)
SEEDS, STEPS, BLOCK, GAMMA, BATCH = (3, 4), 4, 6, 0.99, 6


@pytest.fixture
def task(tmp_path: Path) -> LoggedTask:
    return logged_task(tmp_path)


def loop_of(method: Any, task: Any, seeds: tuple[int, ...] = SEEDS, steps: int = STEPS, block: int = BLOCK) -> Any:
    return OffPolicyLoop(method, task, [Member(s) for s in seeds], steps, block)


def tensors(loop: Any) -> dict[str, Tensor]:
    found = {**loop.policy_tensors(), **loop.updater.tensors(), "rewards": loop.collector.store.own.rewards}
    return {k: v.clone() for k, v in found.items() if v.dim()}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ONWARD))
def test_it_resumes_on_both_sides_and_members_stand_alone(name: str, task: LoggedTask, tmp_path: Path) -> None:
    """Before the handover, which is at the second of four steps, exactly at it, and after it."""
    method = small_onward(name)
    check(method, task)
    loop, alone, states = loop_of(method, task), loop_of(method, task, SEEDS[1:]), list[dict[str, Tensor]]()
    for number in range(STEPS):
        loop.step(), alone.step()
        states.append(tensors(loop))
        (tmp_path / str(number)).mkdir()
        loop.save(tmp_path / str(number))
        for key, value in tensors(alone).items():
            assert alike(states[-1][key][len(states[-1][key]) // 2 :], value), key
    for learner in loop.updater.trainers:
        assert any(not torch.equal(states[0][k], states[-1][k]) for k in states[0] if k.startswith(f"{learner}."))
    for number in range(STEPS - 1):
        again = loop_of(method, task)
        again.load(tmp_path / str(number))
        for _ in range(number + 1, STEPS):
            again.step()
        own = tensors(again)
        assert own.keys() == states[-1].keys() and all(torch.equal(v, own[k]) for k, v in states[-1].items())


# Updates


def squashed(said: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of a normal and its log-density by the change of variables."""
    mean, log_std = said.chunk(2, -1)
    base, u = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()), mean + log_std.clamp(-20, 2).exp() * noise
    return torch.tanh(u), (base.log_prob(u) - 2 * (math.log(2) - u - functional.softplus(-2 * u))).sum(-1)


def step(own: Own, rows: dict[str, Tensor], drawn: dict[str, Tensor], plan: dict[str, Any]) -> None:
    """SAC with the smaller of two of three critics; on logs with Cal-QL's penalty."""
    s, a, conservative = rows["s"], rows["a"], "returns_to_go" in rows
    with torch.no_grad():
        then, logp = squashed(own.policy(rows["next"]), drawn["policy next"])
        two = drawn["critics"].topk(2).indices.tolist()
        worth = torch.minimum(*(q(own.slow[i], rows["next"], then) for i in two))
        y = rows["r"] + GAMMA * rows["live"] * (worth - plan["entropy"] * own.log_alpha.exp() * logp)
    loss = sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(()))
    for critic in own.critics if conservative else ():
        wide = s[:, None].expand(-1, 10, -1)
        terms = [q(critic, wide, drawn["anything 10 times"]) - math.log(0.5)]
        for at, seen in (("here", s), ("next", rows["next"])):
            with torch.no_grad():
                actions, density = squashed(
                    own.policy(seen)[:, None].expand(-1, 10, -1), drawn[f"policy {at} 10 times"]
                )
            terms.append(torch.maximum(q(critic, wide, actions), rows["returns_to_go"][:, None]) - density)
        loss = loss + 5.0 * (torch.cat(terms, 1).exp().sum(1).log() - q(critic, s, a)).mean()
    own.learners["critic"].step(loss)
    if rows["policy"]:
        action, logp = squashed(own.policy(s), drawn["policy here"])
        several = torch.stack([q(critic, s, action) for critic in own.critics])
        climbed = several.mean(0) if plan["mean"] else several.amin(0)
        warm = -(own.log_alpha * (logp.detach() - plan["held"]).mean())
        own.learners["policy"].step((own.log_alpha.detach().exp() * logp - climbed).mean())
        own.learners["temperature"].step(warm)
    follow(own.slow, own.critics)


def normal(*shape: int) -> Any:
    return lambda g, times: torch.randn(times, *shape, generator=g)


DRAWN = {
    "policy here": normal(BATCH, 1), "policy next": normal(BATCH, 1), "critics": normal(3),
    "anything 10 times": lambda g, times: torch.rand(times, BATCH, 10, 1, generator=g) * 2 - 1,
    "policy here 10 times": normal(BATCH, 10, 1), "policy next 10 times": normal(BATCH, 10, 1),
}  # fmt: skip
PLANS = {"rlpd": {"entropy": True, "mean": True, "held": 0.5, "lr": 3e-4},
         "wsrl": {"entropy": False, "mean": False, "held": 1.0, "lr": 1e-4}}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PLANS))
def test_updates_are_those_of_the_paper(name: str, tolerance: float, task: LoggedTask) -> None:
    method, plan = set_values(small_onward(name), {"critic.count": 3}), PLANS[name]
    if name == "wsrl":  # three updates on logs, then four after each of three steps
        method = set_values(method, {"stages.handover.warmup": 0})
    else:
        method = set_values(method, {"experience.random": 0, "experience.warmup": 0})
    loop, noted = loop_of(method, task, steps=2, block=3), list[Any]()
    owns = [Own({n: v.clone() for n, v in loop.policy_tensors().items()}, k, 3, policy_lr=plan["lr"]) for k in (0, 1)]
    stretches, run = Stretches(loop.population, "learn"), loop.updater.run

    def seen(store: Any, rates: Any) -> Any:
        number = loop.updater.updates
        draw, own = stretches.at(number), loop.method
        learns = (number + 1) % own.policy.learning.every == 0
        noted.append((own.sampling.draw(store, draw), {k: draw(k, of) for k, of in DRAWN.items()}, learns))
        return run(store, rates)

    loop.updater.run = seen
    for _ in range(2):
        loop.step()
    assert len(noted) == (15 if name == "wsrl" else 12)
    for batch, drawn, learns in noted:
        for k, own in enumerate(owns):
            rows = {
                "s": batch.observations[k], "a": batch.actions[k], "r": batch.rewards[k],
                "next": batch.next_observations[k], "live": (~batch.terminated[k]).to(batch.rewards.dtype),
            }  # fmt: skip
            rows |= {"policy": learns} | {n: v[k] for n, v in batch.offers.items() if name == "wsrl"}
            step(own, rows, {n: v[k] for n, v in drawn.items()}, plan)
    found = loop.policy_tensors()
    for k, own in enumerate(owns):
        for learner, part in list(own.learners.items())[:2]:
            for i, mine in enumerate(part.networks):
                theirs = flat(net(found, learner, len(part.networks) * k + i))
                torch.testing.assert_close(theirs, flat(mine), atol=tolerance, rtol=tolerance)
        assert abs(found["temperature.numbers"][k, 0].item() - own.log_alpha.item()) < tolerance


# What the rows say


@pytest.mark.slow
def test_wsrl_without_logs_behind_it_is_sac_with_two_of_its_critics(task: LoggedTask) -> None:
    """K = 0 and random weights: after the handover nothing is left but SAC; two of two critics are the smaller."""
    online: Any = applied(small_onward("wsrl"))[1][1].replace(stages=())
    sac: Any = get_method("sac").replace(
        policy=online.policy, learners=online.learners, sampling=online.sampling, exploration=online.exploration
    )
    fields = {"random": 0, "warmup": 0, "capacity": 60, "updates": 4.0}
    for count, reduce in ((3, RandomMin(of=2)), (2, Min())):
        critic = online.critic.replace(count=count, backup=Bootstrap(FromPolicy(), reduce=RandomMin(of=2)))
        one = online.replace(critic=critic, experience=LogsAndReplay(keep=0.0, **fields), transforms=())
        other = sac.replace(
            critic=critic.replace(backup=Bootstrap(FromPolicy(), reduce=reduce)), experience=Replay(**fields)
        )
        loops = loop_of(one, task, (3,)), loop_of(other, pendulum, (3,))
        for loop in loops:
            loop.step(), loop.step()
        first, second = map(tensors, loops)
        assert first.keys() == second.keys() and all(torch.equal(v, second[k]) for k, v in first.items())


@pytest.mark.slow
def test_wsrl_moves_nothing_while_it_warms_up(task: LoggedTask) -> None:
    method = set_values(small_onward("wsrl"), {"stages.handover.warmup": 12})
    loop = loop_of(method, task)
    for _ in range(2):
        loop.step()
    before, logged = tensors(loop), set(task.logs().rewards.tolist())
    for _ in range(2):
        loop.step()
    after, rewards = tensors(loop), loop.collector.store.rewards
    assert all(torch.equal(v, after[k]) for k, v in before.items() if k != "rewards")
    assert rewards.shape == (2, 12) and loop.collector.store.size == 12
    assert logged.isdisjoint(rewards.flatten().tolist())  # none from the logs


@pytest.mark.slow
def test_rlpd_without_logs_draws_as_redq(task: LoggedTask) -> None:
    """A share of 0 and nothing kept, critics without norms and the same target of the entropy: REDQ."""
    small = small_onward("rlpd")
    fields = {k: v for k, v in small.experience.fields().items() if k != "keep"}
    one = small.replace(
        sampling=UniformRows(batch=6, horizon=small.sampling.horizon), experience=LogsAndReplay(keep=0.0, **fields)
    )
    redq: Any = get_method("redq")
    other = redq.replace(policy=one.policy, sampling=one.sampling, critic=one.critic, learners=one.learners)
    loops = loop_of(one, task, (3,)), loop_of(other.replace(experience=Replay(**fields)), pendulum, (3,))
    for loop in loops:
        loop.step(), loop.step()
    first, second = map(tensors, loops)
    assert all(torch.equal(v, second[k]) for k, v in first.items())
    own, shipped = redq.slots(), get_method("rlpd").slots()
    assert [k for k, v in shipped.items() if v != own[k]] == ["experience", "sampling", "critic", "learners"]


def test_a_norm_before_the_last_layer_bounds_what_rlpd_says(task: LoggedTask) -> None:
    """|Q - b| <= |w| sqrt(d) however far away (s, a) is (section 4.2)."""
    critics: Any = loop_of(small_onward("rlpd"), task).updater.networks["critic"]
    far = 1e4 * torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        said = critics(far, far[..., :1]).flatten(0, 1)[..., 0] - critics.head.bias[:, 0]
        limit = critics.head.weight.square().sum((1, 2)).sqrt() * math.sqrt(critics.head.weight.shape[1])
    assert bool((said.abs() <= limit[:, None] * (1 + 1e-5)).all()) and float((said.abs() / limit[:, None]).max()) > 0.3


@pytest.mark.slow
def test_of_own_steps_too_it_is_known_what_they_went_on_to_earn(task: LoggedTask, tmp_path: Path) -> None:
    """Of episodes that have ended: the ring holds steps 160 to 409, and the second episode ended with step 399."""
    small = small_onward("cal-ql-online")
    stages = (Phase(end=0.25), small.stages[1].replace(warmup=250, capacity=250))
    method = set_values(small.replace(stages=stages), {"sampling.horizon.gamma": 0.9})
    loops = [loop_of(method, task) for _ in range(2)]
    for loop in loops:
        loop._reach(1)
    collector, again = (loop.collector for loop in loops)
    for _ in range(410):
        collector.step()
    store, number = collector.store, torch.arange(250)
    age = ((number - store.cursor) % 250).argsort()  # the oldest first
    rewards, known = store.ring.rewards[1][age].double(), store.offers(number.expand(2, -1))["returns_to_go"]
    found, after = known[1][age], torch.tensor(0.0).double()
    assert bool(found[240:].isnan().all()) and not bool(found[:240].isnan().any())
    for row in reversed(range(240)):
        after = rewards[row] + (0.0 if row in (39, 239) else 0.9) * after
        assert float(found[row]) == pytest.approx(float(after), rel=1e-5)
    (tmp_path / "saved").mkdir()
    store.save(tmp_path / "saved" / "replay")
    again.restore(collector.state())
    again.store.load(tmp_path / "saved" / "replay", collector.acted)
    restored = again.store.offers(number.expand(2, -1))["returns_to_go"]
    assert torch.equal(restored.nan_to_num(9.0), known.nan_to_num(9.0)) and again.store.size == store.size


def test_nobody_knows_no_floor() -> None:
    read: Any = SimpleNamespace(batch=SimpleNamespace(offers={"returns_to_go": torch.tensor([[3.0, torch.nan]])}))
    assert RecordedReturns()(read).tolist() == [[3.0, -math.inf]]


def test_compositions_are_the_papers() -> None:
    wsrl: Any = get_method("wsrl")
    phase, handover = wsrl.stages
    assert isinstance(phase, Phase) and isinstance(handover, Handover)
    after: Any = applied(wsrl)[1][1]
    assert (handover.keep, handover.warmup, after.experience.updates, after.critic.penalties) == (0.0, 5000, 4.0, ())
    assert (after.policy.learning.every, after.learners[0].learning.every, wsrl.policy.learning.every) == (4, 4, 1)
    assert after.experience.due(4999, 5000) == 0 and after.experience.due(5000, 5001) == 4
