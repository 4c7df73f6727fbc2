"""One update of `ppo` in control against the same update written out with torch.nn, torch.optim and distributions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from etude.core.edit import set_values
from etude.core.population import FlatParameters, Member, Population
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.core.transitions import Transitions
from etude.loops.control_update import ControlUpdater
from etude.loops.on_policy import credited

STEPS, ENVIRONMENTS, SEEN, NUMBER = 24, 4, 5, 3
SEEDS = (7, 8)
SPACES = {"categorical": spaces.Discrete(3), "gaussian": spaces.Box(-1.0, 1.0, (2,))}
LR, GAMMA, LAM, CLIP, NORM, EPOCHS, MINIBATCHES = 3e-3, 0.97, 0.9, 0.2, 0.5, 4, 3


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """The dtype of everything, and again float32 afterwards."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def settings(value_clip: float | None, entropy: float) -> Any:
    """`ppo` with a configuration in which every term and every clip has something to do."""
    fields = {
        "advantages.gamma": GAMMA, "advantages.lam": LAM, "advantages.per_minibatch": True, "critic.clip": value_clip,
        "regularizers.entropy-bonus.coefficient": entropy, "optimizer.lr": LR, "optimizer.epsilon": 1e-5,
        "optimizer.clip_norm": NORM, "epochs": EPOCHS, "minibatches": MINIBATCHES,
        "policy.network.hidden": "16,16", "critic.network.hidden": "16,16", "policy.gain": 0.5,
    }  # fmt: skip
    return set_values(get_method("ppo", "control"), fields).bind()


def rollout(actor: Any, critic: Any) -> Transitions:
    """Steps [P, T, E] of the present policy in a world of noise, with episodes that end and that are cut."""
    random = torch.Generator().manual_seed(1)
    shape = (len(SEEDS), STEPS, ENVIRONMENTS)
    observations = torch.randn(*shape, SEEN, generator=random)
    space = actor.distribution
    with torch.no_grad():
        behaviour = actor(observations.flatten(1, 2))
        noise = space.noise(behaviour.shape[:2], random).to(behaviour.dtype)
        actions = space.sample(behaviour, noise).to(behaviour.dtype)
        values, following = (critic(x.flatten(1, 2)).view(shape) for x in (observations, observations + 0.3))
        logp = space.logp(behaviour, actions).view(shape)
    ends = torch.rand(shape, generator=random)
    return Transitions(
        observations, actions.view(*shape, -1), rewards=torch.randn(shape, generator=random) * 2,
        terminated=ends < 0.1, truncated=(ends > 0.1) & (ends < 0.2), behaviour=behaviour.view(*shape, -1),
        behaviour_logp=logp, values=values, next_values=following,
    )  # fmt: skip


def estimates(batch: Transitions, member: int) -> tuple[Tensor, Tensor]:
    """Advantages and returns [T * E] by definition, A_t = sum_k (gamma lam)^k delta_{t+k} to the episode's end."""
    r, v, after = batch.rewards[member], batch.values[member], batch.next_values[member]
    dead, ended = batch.terminated[member], (batch.terminated | batch.truncated)[member].tolist()
    delta = (r + GAMMA * torch.where(dead, torch.zeros(()), after) - v).tolist()
    found = [[0.0] * ENVIRONMENTS for _ in range(STEPS)]
    for t in range(STEPS):
        for e in range(ENVIRONMENTS):
            for k in range(t, STEPS):
                found[t][e] += (GAMMA * LAM) ** (k - t) * delta[k][e]
                if ended[k][e]:
                    break
    advantages = torch.tensor(found, dtype=v.dtype)
    return advantages.flatten(), (advantages + v).flatten()


class Plain(nn.Module):
    """An actor and a critic of one member, with the population's weights."""

    def __init__(self, actor: Any, critic: Any, member: int, discrete: bool) -> None:
        super().__init__()
        self.actor = sequence([*actor.body.layers, actor.head], member)
        self.critic = sequence([*critic.body.layers, critic.head], member)
        self.log_std = None if discrete else nn.Parameter(actor.log_std[member, 0].detach().clone())

    def distribution(self, x: Tensor) -> torch.distributions.Distribution:
        if self.log_std is None:
            return torch.distributions.Categorical(logits=self.actor(x))
        each = torch.distributions.Normal(self.actor(x), self.log_std.exp())
        return torch.distributions.Independent(each, 1)


def sequence(layers: list[Any], member: int) -> nn.Sequential:
    """The layers of one member as torch's own, with tanh between them."""
    found: list[nn.Module] = []
    for layer in layers:
        weight = layer.weight[member].detach().T.clone()
        plain = nn.Linear(weight.shape[1], weight.shape[0])
        plain.weight, plain.bias = nn.Parameter(weight), nn.Parameter(layer.bias[member, 0].detach().clone())
        found += [plain, nn.Tanh()]
    return nn.Sequential(*found[:-1])


def learn(plain: Plain, batch: Transitions, member: int, value_clip: float | None, entropy: float) -> dict[str, float]:
    """PPO's update (arXiv:1707.06347, eq. 7 and 9; value clip of arXiv:2005.12729), one member; what was clipped."""
    advantages, returns = estimates(batch, member)
    flat = batch.flat()
    observations, old_logp, old_values = (
        x[member] for x in (flat.observations, flat.behaviour_logp, flat.values)
    )  # fmt: skip
    actions = flat.actions[member] if plain.log_std is not None else flat.actions[member, :, 0].long()
    optimizer = torch.optim.Adam(plain.parameters(), LR, eps=1e-5)
    clipped = {"ratio": 0.0, "value": 0.0, "norm": 0.0}
    for epoch in range(EPOCHS):
        stream = Stream(SEEDS[member]).split("minibatches", NUMBER, epoch)
        for rows in torch.randperm(len(returns), generator=stream.torch).chunk(MINIBATCHES):
            a = advantages[rows]
            a = (a - a.mean()) / (a.std() + 1e-8)
            distribution, values = plain.distribution(observations[rows]), plain.critic(observations[rows])[:, 0]
            ratio = torch.exp(distribution.log_prob(actions[rows]) - old_logp[rows])
            policy_loss = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
            error = (values - returns[rows]) ** 2
            moved = values - old_values[rows]
            if value_clip is not None:
                near = old_values[rows] + moved.clamp(-value_clip, value_clip)
                error = torch.max(error, (near - returns[rows]) ** 2)
                clipped["value"] += float((moved.abs() > value_clip).sum())
            loss = policy_loss + 0.5 * (0.5 * error.mean()) - entropy * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(plain.parameters(), NORM)
            optimizer.step()
            clipped["ratio"] += float(((ratio - 1).abs() > CLIP).sum())
            clipped["norm"] += float(norm > NORM)
    return clipped


@pytest.mark.slow
@pytest.mark.parametrize("entropy", [0.0, 0.05], ids=["no-entropy", "entropy"])
@pytest.mark.parametrize("value_clip", [None, 0.05], ids=["no-value-clip", "value-clip"])
@pytest.mark.parametrize("space", list(SPACES))
def test_one_update_gives_the_parameters_of_an_independent_computation(
    space: str, value_clip: float | None, entropy: float, dtype: torch.dtype
) -> None:
    method, population = settings(value_clip, entropy), Population([Member(s) for s in SEEDS])
    actor = method.policy.build((SEEN,), SPACES[space], population)
    critic = method.critic.build((SEEN,), None, population)
    parameters = FlatParameters({"policy": actor, "critic": critic})
    batch = rollout(actor, critic)
    peers = [Plain(actor, critic, m, space == "categorical") for m in range(len(SEEDS))]
    before = parameters.values.clone()

    batch = credited(method, batch)
    ControlUpdater(method, population, parameters, actor, critic).run(batch.flat(), NUMBER, rate=1.0)

    bound = 1e-5 if dtype == torch.float32 else 1e-9
    for member, plain in enumerate(peers):
        clipped = learn(plain, batch, member, value_clip, entropy)
        assert clipped["ratio"] and clipped["norm"], "the clips must have had something to do"
        assert clipped["value"] or value_clip is None
        own = Plain(actor, critic, member, space == "categorical").state_dict()
        for name, expected in plain.state_dict().items():
            assert own[name].dtype == dtype
            torch.testing.assert_close(own[name], expected, rtol=0, atol=bound, msg=lambda m, n=name: f"{n}: {m}")
    assert float((parameters.values - before).abs().max()) > 10 * LR / 2, "the update must have been a large one"
