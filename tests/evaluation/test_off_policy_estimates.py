"""What logs say of a policy: identities, and whether intervals hold the truth where it is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from etude.cli.evaluate import _table
from etude.core.population import Population
from etude.core.step_slots import Network
from etude.core.streams import Stream
from etude.evaluation.comparison import compare_arms
from etude.evaluation.off_policy.episodes import Episodes, Numbers, returns_to_go, student
from etude.evaluation.off_policy.fqe import FQE
from etude.evaluation.off_policy.importance import (
    cumulative_weights,
    doubly_robust,
    effective_sample_size,
    per_decision,
    weighted_per_decision,
)  # fmt: skip
from etude.evaluation.off_policy.members import _joined
from etude.evaluation.off_policy.q_rows import Acts
from etude.runs.evaluate import Evaluated
from etude.runs.worlds import EvaluationOptions, control
from etude.tasks.tabular.finite import FiniteMDP

S, A, GAMMA = 3, 2, 0.9
MOVES = np.array(
    [[[0.7, 0.1, 0.0], [0.1, 0.7, 0.0]], [[0.3, 0.4, 0.1], [0.0, 0.2, 0.6]], [[0.2, 0.2, 0.3], [0.1, 0.1, 0.4]]]
)
"""[S, A, S]; what is missing to 1 ends the episode."""
REWARDS = np.array([[0.0, 0.2], [0.5, -0.3], [1.0, 2.0]])
POLICY = np.array([[0.3, 0.7], [0.4, 0.6], [0.2, 0.8]])
BEHAVIOUR = np.array([[0.5, 0.5], [0.5, 0.5], [0.4, 0.6]])
DATASETS, EACH, LONGEST = 100, 60, 60


class OneHots(Network):
    """Which state and action it is, out of S A: with a linear layer on it Q is a table."""

    def build(self, shape: tuple[int, ...], population: Population, name: str) -> tuple[nn.Module, int]:
        return _Pairs(), S * A


class _Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        states = (x[..., :S] > 0).to(x.dtype)  # standardised: above its mean only where it is 1
        return (states[..., :, None] * x[..., None, S + 1 :]).flatten(-2)


def rollout(episodes: int, seed: int) -> tuple[Episodes, Numbers, Numbers, Numbers]:
    """Episodes, and states, actions and next states [N] of rewards with noise."""
    rng = np.random.default_rng(seed)
    states, on = np.zeros(episodes, int), np.ones(episodes, bool)
    seen, done, led, earned, there = [], [], [], [], []
    for _ in range(LONGEST):
        actions = (rng.random(episodes) > BEHAVIOUR[states, 0]).astype(int)
        edges = MOVES[states, actions].cumsum(1)
        following = (rng.random(episodes)[:, None] > edges).sum(1)  # S: it ended
        seen.append(states), done.append(actions), led.append(following), there.append(on.copy())
        earned.append(np.where(on, REWARDS[states, actions] + 0.3 * rng.standard_normal(episodes), 0.0))
        on &= following < S
        states = np.where(on, following, states)
    there_, place = np.stack(there, 1), np.zeros((episodes, LONGEST), int)
    place[there_] = np.arange(there_.sum())
    place = np.maximum.accumulate(place, 1)
    columns = (np.stack(x, 1)[there_] for x in (seen, done, led))
    return Episodes(place, there_, ~on, np.stack(earned, 1)), *columns  # type: ignore[return-value]


def on_chain(states: Numbers, actions: Numbers, led: Numbers, policy: Numbers = POLICY) -> Acts:
    """A policy in the states of logs."""

    def hot(index: Numbers, size: int) -> Tensor:
        return nn.functional.one_hot(torch.as_tensor(np.minimum(index, size - 1)), size).float()

    def chances(index: Numbers) -> Tensor:
        return torch.as_tensor(policy[np.minimum(index, S - 1)]).float()

    every = torch.eye(A).expand(len(states), -1, -1)
    return Acts(hot(states, S), hot(actions, A), every, chances(states), hot(led, S), every, chances(led), True)


def exact() -> tuple[float, Numbers, Numbers]:
    """What the policy earns from state 0, and its Q and V."""
    tables = (torch.as_tensor(x)[None] for x in (MOVES, REWARDS))
    mdp = FiniteMDP(*tables, torch.eye(S, dtype=torch.float64)[0], GAMMA)
    value = mdp.evaluate(torch.as_tensor(POLICY)[None])
    return float(value[0, 0]), mdp.backup(value)[0].numpy(), value[0].numpy()


def log_ratios(states: Numbers, actions: Numbers) -> Numbers:
    found: Numbers = np.log(POLICY / BEHAVIOUR)[states, actions]
    return found


@pytest.fixture(scope="module")
def logs() -> tuple[Episodes, Numbers, Numbers, Numbers]:
    return rollout(EACH, 1)


def test_where_the_policy_is_the_behaviour_importance_sampling_is_the_mean(logs) -> None:
    episodes, states, *_ = logs
    weights = cumulative_weights(episodes, np.zeros(len(states)))
    mean = returns_to_go(episodes.rewards, GAMMA)[:, 0]
    for estimator in (per_decision, weighted_per_decision):
        found = estimator(episodes, weights, GAMMA)
        assert found.value == pytest.approx(mean.mean(), rel=1e-12)
        assert found.low == pytest.approx(student(mean.mean(), mean).low, rel=1e-9)
        assert found.effective == pytest.approx(EACH) and not found.reason


def test_doubly_robust_without_q_is_per_decision(logs) -> None:
    episodes, states, actions, _ = logs
    weights, nothing = cumulative_weights(episodes, log_ratios(states, actions)), np.zeros(episodes.rows.shape)
    each, other = doubly_robust(episodes, weights, GAMMA, *[nothing] * 3), per_decision(episodes, weights, GAMMA)
    one = student(each.mean(), each)
    assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high), rel=1e-12)


@pytest.mark.slow
def test_the_correction_of_the_exact_q_is_zero_in_expectation() -> None:
    episodes, states, actions, led = rollout(10_000, 3)
    truth, q, value = exact()
    weights, place = cumulative_weights(episodes, log_ratios(states, actions)), episodes.rows
    own = (q[states, actions][place], value[states][place], np.append(value, 0.0)[led][place])
    each, plain = doubly_robust(episodes, weights, GAMMA, *own), per_decision(episodes, weights, GAMMA)
    found = student(each.mean(), each)
    assert found.low < truth < found.high and abs(found.value - value[0]) < (found.high - found.low) / 2
    assert found.high - found.low < 0.8 * (plain.high - plain.low)
    wrong = (own[0] + 3, own[1] + 3, np.append(value + 3, 0.0)[led][place])  # right weights are enough
    also = student((each := doubly_robust(episodes, weights, GAMMA, *wrong)).mean(), each)
    assert also.low < truth < also.high


def test_deterministic_exact_q_leaves_nothing_to_correct() -> None:
    """One state that is left after two steps, whatever is done: V is the estimate of every episode."""
    episodes = Episodes(np.array([[0, 1], [2, 3]]), np.ones((2, 2), bool), np.ones(2, bool), np.array([[1.0, 2.0]] * 2))
    weights = cumulative_weights(episodes, np.log([0.5, 3.0, 2.0, 0.1]))
    v = np.array([[1 + GAMMA * 2, 2.0]] * 2)
    assert doubly_robust(episodes, weights, GAMMA, v, v, np.array([[2.0, 0.0]] * 2)) == pytest.approx([2.8, 2.8])


def test_weights_by_hand() -> None:
    """Two episodes, of which one ends for good after a step: it keeps its weight and earns nothing."""
    episodes = Episodes(
        np.array([[0, 1], [2, 2]]), np.array([[True, True], [True, False]]), np.array([False, True]),
        np.array([[1.0, 4.0], [3.0, 0.0]]),
    )  # fmt: skip
    weights = cumulative_weights(episodes, np.log([2.0, 0.5, 0.5]))
    assert per_decision(episodes, weights, 0.5).value == pytest.approx((2 * 1 + 0.5 * 3) / 2 + 0.5 * (1 * 4) / 2)
    by_weight = (2 * 1 + 0.5 * 3) / 2.5 + 0.5 * (1 * 4) / 1.5
    assert weighted_per_decision(episodes, weights, 0.5).value == pytest.approx(by_weight)
    cut = replace(episodes, terminated=np.zeros(2, bool))  # nobody saw what the other would have earned
    assert per_decision(cut, weights, 0.5).value == pytest.approx(1.75 + 0.5 * 4) and cut.cut_early() == 1
    assert effective_sample_size(np.array([3.0, 1.0])) == pytest.approx(1.6)


def one_step(log_ratios: list[float]) -> tuple[Episodes, Numbers]:
    """Episodes of one step that earn 1, 2, 3 and so on, and their weights."""
    count = len(log_ratios)
    place, there = np.arange(count)[:, None], np.ones((count, 1), bool)
    episodes = Episodes(place, there, np.ones(count, bool), 1.0 + np.arange(count)[:, None])
    return episodes, cumulative_weights(episodes, np.array(log_ratios))


@pytest.mark.parametrize("estimator", [per_decision, weighted_per_decision])
@pytest.mark.parametrize(
    ("weights", "effective", "doubted"),
    [([1.0] * 10, 10.0, False), ([1.0] * 9, 9.0, True), ([1.0] * 12 + [8.0], 20**2 / 76, True),
     ([3.0] * 30 + [0.1] * 500, 140**2 / 275, False)],
)  # fmt: skip
def test_below_ten_effective_episodes_every_estimate_says_that_its_interval_means_nothing(
    estimator: Any, weights: list[float], effective: float, doubted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """(sum w)^2 / sum w^2 by hand; `etude evaluate --data` prints the sentence below its table, or none."""
    found = estimator(*one_step(np.log(weights).tolist()), GAMMA)
    assert found.effective == pytest.approx(effective)
    sentence = f"an effective sample size of {effective:.1f} is below 10: its interval means nothing"
    assert found.reason == (sentence if doubted else "")
    assert found.to_json()["reason"] == found.reason
    mean = student(1.0, np.arange(3.0))
    shown = {"a run": Evaluated({"logs": {"logged": mean, "importance-sampling": found}}, control)}  # type: ignore[arg-type]
    _table(shown, EvaluationOptions(data="rows.npz"), 1)
    printed = capsys.readouterr().out.splitlines()
    said = [line for line in printed if "means nothing" in line]
    assert said == ([f"importance-sampling: {sentence}."] if doubted else [])
    row = next(line for line in printed if "importance-sampling" in line and line not in said)
    assert f" {effective:.1f} " in row and f" {found.value:.{control.WORDING.digits}f} " in row


def test_choices_that_the_policy_never_takes_weigh_nothing(logs) -> None:
    episodes, _, actions, _ = logs
    with np.errstate(divide="ignore"):
        never = np.log(np.where(actions == 0, 0.0, 2.0))
    found = per_decision(episodes, cumulative_weights(episodes, never), GAMMA)
    assert np.isfinite([found.value, found.low, found.high]).all() and found.effective < EACH


def test_a_table_is_solved_for_exactly(logs) -> None:
    """FQE on features that are a table, against the linear system of the same counts."""
    episodes, states, actions, led = logs
    # no step of the longest episode is the last that counts: otherwise V would depend on the time
    q = FQE(network=OneHots(), ridge=1e-12).fit(
        episodes, on_chain(states, actions, led), np.ones((1, EACH), int), GAMMA, Stream(0)
    )
    rewards = np.zeros(len(states))
    rewards[episodes.rows[episodes.there]] = episodes.rewards[episodes.there]
    system, right = np.zeros((S * A, S * A)), np.zeros(S * A)
    live = (led < S) & (episodes.time + 1 < episodes.horizon)
    for s, a, s2, r, on in zip(states, actions, led, rewards, live, strict=True):
        system[s * A + a, s * A + a] += 1
        right[s * A + a] += r
        if on:
            system[s * A + a, s2 * A : s2 * A + A] -= GAMMA * POLICY[s2]
    own = np.linalg.solve(system, right).reshape(S, A)
    assert q.estimates()[0] == pytest.approx((own[0] * POLICY[0]).sum(), rel=1e-5)  # in float32


def test_doubly_robust_by_those_who_did_not_have_an_episode_and_as_wide_as_resamples_differ(logs) -> None:
    """Episode by episode and member by member; the last two episodes of everybody are judged by all."""
    episodes, states, actions, led = logs
    weights = cumulative_weights(episodes, log_ratios(states, actions))
    counts = np.concatenate([np.ones((1, EACH), int), np.random.default_rng(0).integers(0, 3, (3, EACH))])
    counts[:, -2:] = 1
    fqe = FQE(network=OneHots())
    fitted = fqe.fit(episodes, on_chain(states, actions, led), counts, GAMMA, Stream(0))
    q, now, then = (of.astype(float) for of in fitted.told())
    said = np.zeros((4, EACH))
    for p in range(4):
        for i in range(EACH):
            for t in np.flatnonzero(episodes.there[i]):
                row = episodes.rows[i, t]
                error = episodes.rewards[i, t] + GAMMA * then[p, row] - q[p, row]
                said[p, i] += GAMMA**t * weights[i, t] * error + (now[p, row] if t == 0 else 0.0)
    judges = [np.flatnonzero(counts[:, i] == 0) if (counts[:, i] == 0).any() else np.arange(4) for i in range(EACH)]
    value = np.mean([said[judges[i], i].mean() for i in range(EACH)])
    spread = np.std([np.average(said[p], weights=counts[p]) for p in (1, 2, 3)], ddof=1)
    found = fitted.doubly_robust(weights)
    assert found.value == pytest.approx(value, rel=1e-9)
    assert (found.high - found.low) / 2 == pytest.approx(4.302652730 * spread, rel=1e-6)  # t of two degrees of freedom
    assert found.effective == pytest.approx(effective_sample_size(weights[:, -1]))
    alone = fqe.fit(episodes, on_chain(states, actions, led), counts[:2], GAMMA, Stream(0)).doubly_robust(weights)
    assert np.isinf(alone.high)
    few = fitted.doubly_robust(np.where(np.arange(EACH)[:, None] < 3, weights, 0.0))
    assert "means nothing" in few.reason


@pytest.mark.slow
def test_intervals_hold_the_truth_of_a_hundred_datasets() -> None:
    truth, *_ = exact()
    fqe, held = FQE(network=OneHots()), {"fqe": 0, "doubly-robust": 0, "importance-sampling": 0}
    for seed in range(DATASETS):
        episodes, states, actions, led = rollout(EACH, 100 + seed)
        stream = Stream(seed)
        q = fqe.fit(episodes, on_chain(states, actions, led), fqe.counts(EACH, stream), GAMMA, stream)
        weights = cumulative_weights(episodes, log_ratios(states, actions))
        found = {
            "fqe": q.estimate(), "doubly-robust": q.doubly_robust(weights),
            "importance-sampling": per_decision(episodes, weights, GAMMA),
        }  # fmt: skip
        for name, one in found.items():
            held[name] += one.low < truth < one.high
    assert held["fqe"] >= 90 and held["doubly-robust"] >= 90, held


def drawn(policy: Numbers, seeds: int, rng: np.random.Generator) -> Numbers:
    """[seeds, S, A] policies that differ from it as those of several seeds do."""
    first = (policy[:, :1] + 0.1 * rng.standard_normal((seeds, S, 1))).clip(0.02, 0.98)
    return np.concatenate([first, 1 - first], -1)


def values(policies: Numbers) -> Numbers:
    """[seeds] what they earn from state 0, by the linear system of their Bellman equations."""
    moves, rewards = np.einsum("psa,sat->pst", policies, MOVES), (policies * REWARDS).sum(-1)
    found: Numbers = np.linalg.solve(np.eye(S) - GAMMA * moves, rewards[..., None])[:, 0, 0]
    return found


@pytest.mark.slow
def test_differences_of_arms_hold_the_truth_of_a_hundred_datasets() -> None:
    """Six policies of each arm, judged from the same episodes: with the chance of seeds alone they are too narrow."""
    arms = {"slow": POLICY, "fast": np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])}
    means = [values(drawn(policy, 20_000, np.random.default_rng(0))).mean() for policy in arms.values()]
    fqe, truth, held = FQE(network=OneHots()), means[1] - means[0], np.zeros(2)
    for seed in range(DATASETS):
        rng, (episodes, *steps), stream = np.random.default_rng(seed), rollout(EACH, 300 + seed), Stream(seed)
        scores, shared = dict[str, Any](), dict[str, Any]()
        for arm, policy in arms.items():
            acts = [on_chain(*steps, own) for own in drawn(policy, 6, rng)]
            counts = np.kron(np.eye(6, dtype=int), np.ones((1, EACH), int))
            each = fqe.fit(episodes.repeated(6), _joined(acts), counts, GAMMA, stream).each()
            first = fqe.fit(episodes, acts[0], fqe.counts(EACH, Stream(seed, ("e",))), GAMMA, stream).estimate()
            assert each[0][0] == pytest.approx(first.value, rel=1e-4)
            scores[arm], shared[arm] = {"t": [value for value, _ in each]}, first.resamples
        for k, given in enumerate((None, shared)):
            found = compare_arms(scores, shared=given, resamples=10).arms[1].difference
            assert found is not None
            held[k] += found.low < truth < found.high
    assert held[0] < 85 and held[1] >= 90, held
