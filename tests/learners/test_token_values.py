"""Values of tokens: their losses against loops in plain Python, value iteration, and what changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, StopReason
from etude.core.errors import ConfigError
from etude.core.learners import Learning, Target
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.learners.heads import CrossEntropy
from etude.learners.token_values import ImplicitTokenQ, ReturnTokenQ, ValuedWords, earned
from etude.learners.value import Expectile
from etude.loops.token_learning import TokenLesson, TokenTrainer
from etude.optimizers.adam import AdamW
from language_toys import random_episodes, random_policy
from value_tables import Tables, game, played, shared, told

CPU = torch.device("cpu")


def rows_of(episodes: Sequence[Episode], seed: int = 0) -> TokenBatch:
    """Rows in float64 with random rewards at action tokens and, as a chat template's ends have them, behind those."""
    batch = to_batch(episodes, 0, 1.0, CPU)
    rewards = torch.rand(batch.tokens.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return shared(batch.replace(rewards=rewards * batch.attention_mask, weights=batch.weights.double()))


def drawn(network: ValuedWords, seed: int) -> ValuedWords:
    """The network with random heads."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if not name.startswith("model."):
                p.copy_(torch.randn(p.shape, generator=random, dtype=torch.float64) * 0.3)
    return network


def by_hand(head: Any, state: Tensor) -> Tensor:
    """[V] of one state, from a head's weights."""
    inside = torch.clamp(head.hidden.weight @ state + head.hidden.bias, min=0)
    return head.last.weight @ inside + head.last.bias


def plain_ilql(part: Any, batch: TokenBatch, network: Any, slow: Any) -> Tensor:
    """The loss, token by token."""
    total, count = torch.zeros((), dtype=torch.float64), int(batch.action_mask.sum())
    tau = part.state_error.tau
    for row in range(len(batch)):
        size = int(batch.lengths[row])
        tokens = batch.tokens[row, :size]
        now, then = (m.model.model(tokens[None]).last_hidden_state[0] for m in (network, slow))
        places = [t for t in range(size) if batch.action_mask[row, t]]
        for k, t in enumerate(places):
            last = k + 1 == len(places)
            paid = batch.rewards[row, t : (size if last else places[k + 1])].sum()
            if not last:
                later = by_hand(network.v, now[places[k + 1] - 1])[0]
            else:
                later = by_hand(network.v, now[size - 1])[0] if batch.truncated[row] else torch.tensor(0.0)
            target = paid + part.gamma * later.detach()
            least = min(by_hand(head, then[t - 1])[tokens[t]] for head in slow.q).detach()
            u = least - by_hand(network.v, now[t - 1])[0]
            total = total + 0.5 * (tau if u >= 0 else 1 - tau) * u**2
            for head in network.q:
                said = by_hand(head, now[t - 1])
                total = total + 0.5 * (target - said[tokens[t]]) ** 2
                total = total + part.cql * (torch.logsumexp(said, 0) - said[tokens[t]])
    return total / count


@pytest.fixture
def episodes() -> list[Episode]:
    """Of two turns each; the second of them was stopped by a limit."""
    found = random_episodes((2, 1), turns=2)
    found[1].stop = StopReason.TRUNCATED
    return found


@pytest.mark.slow
def test_the_loss_of_ilql_as_shipped_token_by_token(episodes: list[Episode]) -> None:
    [part] = get_method("ilql").slots()["learners"]
    assert part.cql > 0
    policy = random_policy(dtype=torch.float64)
    network, slow = (drawn(part.build_beside(policy), seed) for seed in (1, 2))
    with torch.no_grad():
        slow.model.model.layers[0].mlp.down_proj.weight.mul_(1.5)  # its body is a copy, too
    batch = rows_of(episodes)
    loss, expected = part.loss(told(part, batch, network, slow)), plain_ilql(part, batch, network, slow)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    trained = [p for p in network.parameters() if p.requires_grad]
    for mine, theirs in zip(*(torch.autograd.grad(x, trained, materialize_grads=True) for x in (loss, expected))):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)  # normalisation is in float32
    assert all(not p.requires_grad or p.grad is None for p in policy.parameters())


@pytest.mark.slow
def test_the_loss_of_returns_token_by_token(episodes: list[Episode]) -> None:
    part = ReturnTokenQ(gamma=0.9, cql=0.3)
    network = drawn(part.build_beside(random_policy(dtype=torch.float64)), 1)
    batch, total = rows_of(episodes), 0.0
    for row in range(len(batch)):
        size, ahead = int(batch.lengths[row]), 0.0
        hidden = network.model.model(batch.tokens[row : row + 1, :size]).last_hidden_state[0]
        end = size
        for t in reversed([t for t in range(size) if batch.action_mask[row, t]]):
            ahead, end = float(batch.rewards[row, t:end].sum()) + 0.9 * ahead, t
            said = by_hand(network.q[0], hidden[t - 1])
            right = said[batch.tokens[row, t]]
            total = total + 0.5 * (ahead - right) ** 2 + 0.3 * (torch.logsumexp(said, 0) - right)
    expected = total / batch.action_mask.sum()
    torch.testing.assert_close(part.loss(told(part, batch, network)), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_memory_decides_how_many_rows_are_read_at_a_time_and_changes_no_gradient(episodes: list[Episode]) -> None:
    part = ImplicitTokenQ(cql=0.1, learning=Learning(optimizer=AdamW(lr=1e-3), target=Target(rate=0.5)))
    network = drawn(part.build_beside(random_policy(dtype=torch.float64)), 1)
    trainer = TokenTrainer(part, part.name, network)
    learners: Any = SimpleNamespace(read=lambda name, batch: told(part, batch, network, trainer.target))
    found = []
    for budget in (10**6, 1):
        trainer.stepper.clear()
        metrics = TokenLesson(trainer, learners, rows_of(episodes), budget).gradient()
        found.append([metrics["loss"], *(p.grad.clone() for p in trainer.stepper.parameters)])
    for whole, cut in zip(*found):
        torch.testing.assert_close(whole, cut, rtol=1e-7, atol=1e-10)


@pytest.mark.slow
def test_rows_that_filters_weigh_less_count_less(episodes: list[Episode]) -> None:
    part = ReturnTokenQ()
    network = drawn(part.build_beside(random_policy(dtype=torch.float64)), 1)
    trainer = TokenTrainer(part, part.name, network)
    learners: Any = SimpleNamespace(read=lambda name, batch: told(part, batch, network))
    batch = rows_of(episodes)

    def loss(rows: TokenBatch) -> float:
        return float(TokenLesson(trainer, learners, rows, 10**6).gradient()["loss"])

    alone = loss(batch.rows(torch.tensor([0, 2])))
    assert loss(batch.replace(weights=torch.tensor([1.0, 0.0, 1.0]).double())) == pytest.approx(alone, rel=1e-12)


def test_half_is_the_quarter_of_the_square_and_more_leans_to_what_is_better() -> None:
    u = torch.linspace(-2, 2, 9, dtype=torch.float64)
    zeros = torch.zeros_like(u)
    torch.testing.assert_close(Expectile(tau=0.5)(zeros, u) / 2, 0.25 * u**2)
    part = ImplicitTokenQ(state_error=Expectile(tau=0.5))
    assert part.state_error(torch.tensor(1.0), torch.tensor(3.0)).item() / 2 == 0.25 * 2.0**2
    high = Expectile(tau=0.95)(zeros, u) / 2
    torch.testing.assert_close(high, torch.where(u < 0, 0.05, 0.95) * u**2 / 2)


# Tables: the state is the token before an action, every action one token


def test_observations_between_turns_change_no_loss() -> None:
    part, (network, slow) = ImplicitTokenQ(cql=0.2), (Tables(10, 10, seed) for seed in (1, 2))
    losses = []
    for between in (0, 3):
        batch = played([game([(1, 4, 0.5), (2, 5, -1.0)], between=between),
                        game([(3, 4, 1.0)], truncated_at=2, between=between)])  # fmt: skip
        losses.append(part.losses(told(part, batch, network, slow)))
        returns = ReturnTokenQ().losses(told(ReturnTokenQ(), batch, network))
        losses[-1] = torch.cat([losses[-1], returns])
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def test_a_truncated_dialogue_goes_on_in_a_value_and_one_that_ended_does_not() -> None:
    part, network = ImplicitTokenQ(gamma=0.5), Tables(10, 10).requires_grad_(False)
    value = float(network.v.values[2, 0])  # type: ignore[union-attr]
    for ends, worth in ((None, 1.0), (2, 1.0 + 0.5 * value)):
        batch = played([game([(1, 4, 1.0)], truncated_at=ends)])
        u = min(float(h.values[1, 4]) for h in network.q) - float(network.v.values[1, 0])  # type: ignore[union-attr]
        expected = 0.5 * (0.95 if u >= 0 else 0.05) * u**2
        expected += sum(0.5 * (worth - float(h.values[1, 4])) ** 2 for h in network.q)
        assert part.losses(told(part, batch, network, network)).tolist() == pytest.approx([expected])


CORRIDOR = 4
"""Cells 0 to 3, the goal at the right of the last. Action 4 goes left, 5 right, 6 stays; each costs 1, the last 0."""


def moved(cell: int, action: int) -> tuple[int | None, float]:
    there = max(0, cell + {4: -1, 5: 1, 6: 0}[action])
    return (None, 0.0) if there == CORRIDOR else (there, -1.0)


def value_iteration(gamma: float) -> list[float]:
    v = [0.0] * CORRIDOR
    for _ in range(200):
        q = [[r + gamma * (v[n] if n is not None else 0.0) for n, r in (moved(c, a) for a in (4, 5, 6))]
             for c in range(CORRIDOR)]  # fmt: skip
        v = [max(row) for row in q]
    return v


def steps_of_all() -> TokenBatch:
    """Every cell and action once, each a dialogue of one turn: what follows a limit cut off, or the goal."""
    games = []
    for cell in range(CORRIDOR):
        for action in (4, 5, 6):
            there, reward = moved(cell, action)
            games.append(game([(cell, action, reward)], truncated_at=there))
    return played(games)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.5, 0.99])
def test_in_a_table_it_is_value_iteration_near_one_and_the_mean_at_a_half(tau: float) -> None:
    part, network, batch = ImplicitTokenQ(gamma=0.7, state_error=Expectile(tau=tau)), Tables(8, 8), steps_of_all()
    slow, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=0.1)
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - step / 300)
        optimizer.zero_grad()
        part.loss(told(part, batch, network, slow)).backward()
        optimizer.step()
        slow.load_state_dict(network.state_dict())
    assert network.v is not None
    found = network.v.values[:CORRIDOR, 0].tolist()
    if tau == 0.5:  # the value of who does anything
        back = torch.zeros(CORRIDOR, CORRIDOR, dtype=torch.float64)
        paid = torch.zeros(CORRIDOR, dtype=torch.float64)
        for cell in range(CORRIDOR):
            for there, reward in (moved(cell, a) for a in (4, 5, 6)):
                paid[cell] += reward / 3
                if there is not None:
                    back[cell, there] += 0.7 / 3
        expected = torch.linalg.solve(torch.eye(CORRIDOR, dtype=torch.float64) - back, paid).tolist()
        assert found == pytest.approx(expected, abs=0.02)
    else:
        assert found == pytest.approx(value_iteration(0.7), abs=0.1)
        assert [int(network.q[0].values[c, 4:7].argmax()) for c in range(CORRIDOR)] == [1] * CORRIDOR


# What is refused


def test_errors_of_other_numbers_and_methods_without_rewards_are_refused() -> None:
    ilql: Any = get_method("ilql")
    learning = ilql.learners[0].learning
    for learners, sentence in (
        ((ImplicitTokenQ(state_error=CrossEntropy(), learning=learning),), "set state_error=squared"),
        ((*ilql.learners, ReturnTokenQ()), "so does another learner"),
        ((ImplicitTokenQ(learning=Learning(optimizer=AdamW())),), "reads a slow copy"),
        ((ReturnTokenQ(error=CrossEntropy()),), "set error=squared"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            ilql.replace(learners=learners).check()
    with pytest.raises(ConfigError, match="learns from rewards, and nobody says which"):
        ilql.replace(rewards=()).check()


def test_what_is_paid_before_the_first_word_is_nobodys() -> None:
    rewards, said = torch.ones(1, 4), torch.tensor([[False, False, True, False]])
    assert earned(rewards, said).tolist() == [[0.0, 0.0, 2.0, 0.0]]
