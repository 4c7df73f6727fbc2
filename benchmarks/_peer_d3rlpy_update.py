"""d3rlpy's part of `offline_update_vs_d3rlpy.py`, run by `.venv-d3rlpy`: updates on etude's rows, weights and noise."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.models.torch.policies import ActionOutput
from d3rlpy.torch_utility import TorchMiniBatch
from torch import Tensor, nn

HIDDEN, SHAPE, WIDTH = [64, 64], (3,), 2


def algorithm_of(name: str) -> Any:
    """d3rlpy's algorithm in the settings of etude's composition."""
    encoder = VectorEncoderFactory(hidden_units=HIDDEN)
    shared: dict[str, Any] = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    if name in ("cql", "cal-ql"):
        config = d3rlpy.algos.CQLConfig if name == "cql" else d3rlpy.algos.CalQLConfig
        shared |= {"temp_learning_rate": 0.0, "alpha_learning_rate": 0.0, "soft_q_backup": True}
    else:
        config = {"awac": d3rlpy.algos.AWACConfig, "rebrac": d3rlpy.algos.ReBRACConfig}[name]
    made = config(**shared).create(device=False)
    made.create_impl(SHAPE, WIDTH)
    assert made.impl is not None
    return made.impl


def nets(name: str, impl: Any) -> dict[str, list[list[nn.Linear]]]:
    """Linear layers by etude's names of networks: one list for each of a critic's networks."""
    own = impl.modules
    found = {
        "critic": [layers(q) for q in own.q_funcs], "slow.critic": [layers(q) for q in own.targ_q_funcs],
        "policy": [layers(own.policy)],
    }  # fmt: skip
    return found | ({"slow.policy": [layers(own.targ_policy)]} if name == "rebrac" else {})


def layers(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def tensors(data: Any, when: str, network: str) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """etude's weights [outputs, inputs] and biases, layer by layer, of each of a network's rows."""
    keys = [k for k in data.files if k.startswith(f"{when}.{network}/") and k.endswith("weight")]
    keys.sort(key=lambda k: ("head" in k.rsplit(".", 2)[1], k))
    rows = len(data[keys[0]])
    return [[(data[k][r].T, data[k.replace("weight", "bias")][r, 0]) for k in keys] for r in range(rows)]


def split_head(each: list[tuple[np.ndarray, np.ndarray]], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The last layer as d3rlpy has it: one of means and one of deviations."""
    if len(each) == count:
        return each
    weight, bias = each[-1]
    half = len(weight) // 2
    return [*each[:-1], (weight[:half], bias[:half]), (weight[half:], bias[half:])]


def batches(data: Any) -> Iterator[TorchMiniBatch]:
    update = 0
    while f"{update}.observations" in data.files:
        s, a, n, d, r = (
            torch.tensor(data[f"{update}.{k}"]) for k in ("observations", "actions", "next", "done", "rewards")
        )
        there = {
            k: torch.tensor(data[f"{update}.{k}"]) for k in ("returns_to_go", "next_actions") if f"{update}.{k}" in data
        }
        to_go, then = there.get("returns_to_go", r), there.get("next_actions", a).nan_to_num(0.0)
        ended = d.to(s.dtype)[:, None]
        yield TorchMiniBatch(s, a, r[:, None], n, then, to_go[:, None], ended, torch.ones_like(ended), "cpu")
        update += 1


def feed_noise(name: str, data: Any) -> None:
    """etude's random numbers wherever d3rlpy draws some, in its order."""
    updates = range(sum(k.endswith(".rewards") for k in data.files))
    order = {
        "cql": ("policy next", "policy here 10 times", "policy next 10 times", "policy here"),
        "awac": ("policy next", "policy here"), "rebrac": ("smoothing",),
    }[name.replace("cal-ql", "cql")]  # fmt: skip
    normal = (torch.tensor(data[f"{u}.{purpose}"]) for u in updates for purpose in order)
    uniform = (torch.tensor(data[f"{u}.anything 10 times"]) for u in updates)

    def standard(shape: Any, dtype: Any = None, device: Any = None) -> Tensor:
        found = next(normal)
        found = found.transpose(0, 1) if found.dim() == 3 else found
        return found.reshape(shape)

    torch.distributions.normal._standard_normal = standard
    torch.Tensor.uniform_ = lambda self, low, high: self.copy_(next(uniform).reshape(self.shape))  # type: ignore
    torch.randn = standard


def as_the_paper(impl: Any, data: Any) -> None:
    """AWAC with the deviations as numbers of their own, and a target that takes what the policy would do."""
    policy = impl.modules.policy
    log_std = next(data[k] for k in data.files if k.startswith("before.policy/") and k.endswith("log_std"))[0]
    with torch.no_grad():
        policy._logstd.copy_(torch.tensor(log_std))

    def forward(x: Tensor) -> ActionOutput:
        mean = policy._mu(policy._encoder(x))
        return ActionOutput(mean, torch.tanh(mean), policy._logstd.clamp(-6.0, 0.0))

    @torch.no_grad()
    def target(batch: TorchMiniBatch) -> Tensor:
        said = policy(batch.next_observations)
        drawn = torch.distributions.Normal(said.squashed_mu, said.logstd.exp()).rsample()
        assert float(drawn.abs().max()) < 1
        return impl._targ_q_func_forwarder.compute_target(batch.next_observations, drawn, reduction="min")

    policy.forward, impl.compute_target = forward, target
    for group in impl.modules.actor_optim.optim.param_groups:
        group["eps"] *= len(data["0.rewards"])  # its policy's loss is a sum over the rows, not their mean


def main() -> None:
    """Print the parameters' largest difference."""
    parser = argparse.ArgumentParser()
    for name in ("name", "file", "kind"):
        parser.add_argument(name)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, chosen.kind))
    data, impl = np.load(chosen.file), algorithm_of(chosen.name)
    for module in (m for m in vars(impl.modules).values() if isinstance(m, nn.Module)):
        module.to(torch.get_default_dtype())
    networks = nets(chosen.name, impl)
    with torch.no_grad():
        for network, rows in networks.items():
            for own, each in zip(rows, tensors(data, "before", network), strict=True):
                for layer, (weight, bias) in zip(own, split_head(each, len(own)), strict=True):
                    layer.weight.copy_(torch.tensor(weight))
                    layer.bias.copy_(torch.tensor(bias))
    if chosen.name == "awac":
        as_the_paper(impl, data)
    feed_noise(chosen.name, data)
    for number, batch in enumerate(batches(data)):
        impl.inner_update(batch, number + 1)
    differences, moved = [], []
    for network, rows in networks.items():
        pairs = zip(rows, tensors(data, "after", network), tensors(data, "before", network), strict=True)
        for own, after, before in pairs:
            kept = zip(own, split_head(after, len(own)), split_head(before, len(own)), strict=True)
            for layer, (weight, bias), (was, _) in kept:
                differences.append(np.abs(layer.weight.detach().numpy() - weight).max())
                differences.append(np.abs(layer.bias.detach().numpy() - bias).max())
                moved.append(np.abs(weight - was).max())
    print(json.dumps({"parameters": float(max(differences)), "moved": float(max(moved))}))


if __name__ == "__main__":
    main()
