"""The six invariants of DESIGN section 7: each fault is planted, and the run stops with a sentence."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import pytest
import torch

from etude.advantages.group import BatchStd, GroupAdvantage, LeaveOneOut
from etude.advantages.returns import GAE
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.errors import EnvironmentFault, InvariantError, RewardError
from etude.core.slots import Context, Reward
from etude.core.streams import Stream
from etude.core.task import SingleTurn
from etude.experience.groups import Groups
from etude.filters.informative import InformativeGroups
from etude.learners.token import TokenCritic
from etude.loops.noise import Noise
from etude.loops.update import Tally, Updater
from etude.methods.foundation.reinforce import reinforce
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.policies.sampling import Sampling
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from etude.rewards.outcome import TaskReward
from language_toys import Toy, gradients, make_loop, random_batch, random_policy

small = grpo.replace(problems=3, experience=Groups(size=4), optimizer=AdamW(lr=1e-3))


# 1. The log-probabilities of fresh samples are the trainer's


class OtherTemperature(Groups):
    """Samples at half the temperature that it declares."""

    def sampling(self, context: Context) -> Sampling:
        return Sampling(self.temperature / 2, max_tokens=context.max_tokens)


class HiddenTruncation(Groups):
    """Truncates without saying so."""

    def sampling(self, context: Context) -> Sampling:
        return Sampling(self.temperature, top_p=0.5, max_tokens=context.max_tokens)


@pytest.mark.parametrize("experience", [OtherTemperature(size=4), HiddenTruncation(size=4)])
def test_1_a_sampler_that_draws_from_another_distribution(experience: Groups) -> None:
    loop = make_loop(small.replace(experience=experience))
    before = [p.clone() for p in loop.policy.parameters()]
    with pytest.raises(InvariantError, match="another temperature or a truncated distribution"):
        loop.step()
    assert all(torch.equal(a, b) for a, b in zip(before, loop.policy.parameters())), "nothing was updated"


def test_1_a_sampler_with_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, other = make_loop(small), random_policy(seed=1)
    monkeypatch.setattr(loop.policy, "sampler", lambda: other.model)
    monkeypatch.setattr(loop.policy, "check_sampler", lambda: None)
    with pytest.raises(InvariantError, match=r"differ by .* nats per token .* used other weights"):
        loop.step()


def tiny_loop(dtype: str, **options: Any) -> Any:
    """A short task on the built-in model, at the rate that it learns with by default."""
    from etude.policies.language import LanguagePolicy

    method = grpo.replace(problems=4, experience=Groups(size=4), **options)
    task = Toy(max_tokens=8, scoring=lambda problem, said: crc32(said.encode()) / 2**32)  # nothing to become sure of
    how = {"autocast": True} if dtype == "autocast" else {"dtype": dtype}
    return make_loop(method, task, LanguagePolicy.load("tiny", device="cpu", **how), steps=40)


def lag(loop: Any, updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, with a sampler that stays `updates` behind from here on."""
    for _ in range(3):
        loop.step()
    old = copy.deepcopy(loop.policy.model)
    for _ in range(updates):
        loop.step()
    assert loop.policy.version == 3 + updates
    monkeypatch.setattr(loop.policy, "sampler", lambda: old)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sampler_one_update_old_is_caught(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tiny_loop(dtype)
    lag(loop, 1, monkeypatch)
    with pytest.raises(InvariantError, match="The sampler does not hold the weights of version 4"):
        loop.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "rate", "updates"), [("float32", None, 1), ("autocast", None, 1), ("bfloat16", 3e-4, 4)]
)
def test_1_the_bound_alone_catches_an_old_sampler(
    dtype: str, rate: float | None, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the fixed bounds let pass: less than 2e-3 nats in float32, or less than 0.1 in bfloat16."""
    loop = tiny_loop(dtype, optimizer=AdamW(lr=rate))
    lag(loop, updates, monkeypatch)
    monkeypatch.setattr(loop.policy, "check_sampler", lambda: None)
    before = [p.clone() for p in loop.policy.parameters()]
    with pytest.raises(InvariantError, match=r"differ by .* nats per token .* at most (2e-05|0\.0\d+) is rounding"):
        loop.step()
    assert all(torch.equal(a, b) for a, b in zip(before, loop.policy.parameters())), "nothing was updated"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "autocast", "bfloat16"])
def test_1_a_clean_run_never_stops_and_its_bound_is_recorded(dtype: str) -> None:
    loop = tiny_loop(dtype)
    found = [loop.step().metrics for _ in range(20)]
    seen = [(m["logp_gap"], m["logp_gap_bound"]) for m in found if "logp_gap" in m]
    assert len(seen) == 20 and all(gap <= bound for gap, bound in seen)
    first, rest = seen[0][1], [bound for _, bound in seen[1:]]
    assert first == {"float32": 2e-3, "autocast": 2e-3, "bfloat16": 0.1}[dtype] and max(rest) < first / 2


def test_1_the_bound_follows_what_was_measured_between_floor_and_ceiling() -> None:
    noise, dtype = Noise(), torch.bfloat16
    assert noise.bound(10, dtype) == 0.1
    noise.observe(torch.tensor([0.01, 0.03], dtype=torch.float64))  # mean 0.02, deviation 0.01
    assert noise.bound(10_000, dtype) == pytest.approx(3 * 0.02 + 5 * 0.01 / 100, abs=1e-9)
    assert noise.bound(1, dtype) == 0.1
    noise.observe(torch.zeros(2))  # 1.8 old gaps of mean 0.02 and 2 new ones
    mean, square = 1.8 * 0.02 / 3.8, 1.8 * 0.0005 / 3.8
    assert noise.bound(100, dtype) == pytest.approx(3 * mean + 5 * (square - mean**2) ** 0.5 / 10, abs=1e-9)
    for _ in range(100):
        noise.observe(torch.zeros(50))
    assert noise.bound(100, dtype) == 2e-2, "a policy that has become sure of itself may turn back"


@pytest.mark.slow
def test_1_the_bound_survives_a_resume(tmp_path: Path) -> None:
    loop, again = tiny_loop("bfloat16"), tiny_loop("bfloat16")
    loop.step()
    loop.save(tmp_path)
    again.load(tmp_path)
    wanted, found = loop.step().metrics, again.step().metrics
    assert found["logp_gap_bound"] == wanted["logp_gap_bound"] < 0.1
    assert found["logp_gap"] == wanted["logp_gap"]


def test_1_truncation_that_is_declared_is_no_fault() -> None:
    loop = make_loop(reinforce.replace(problems=3, experience=Groups(size=4, top_p=0.5)))
    assert loop.step().metrics["logp_gap"] < 1e-4


def test_1_the_gap_of_an_honest_run_is_rounding() -> None:
    metrics = make_loop(small).step().metrics
    assert 0 <= metrics["logp_gap"] < 1e-5


# 2. Updates change the weights, and the sampler has them


class WrongParameters(AdamW):
    """Optimises something else."""

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], 1e-3)


def test_2_an_optimizer_that_holds_other_parameters() -> None:
    with pytest.raises(InvariantError, match="left every weight as it was: the optimizer does not hold"):
        make_loop(small.replace(optimizer=WrongParameters())).step()


def test_2_a_learning_rate_below_the_dtypes_resolution() -> None:
    policy = random_policy(dtype=torch.bfloat16)
    with pytest.raises(InvariantError, match="too small for the dtype"):
        make_loop(small.replace(optimizer=AdamW(lr=1e-12)), policy=policy).step()


@pytest.mark.slow
def test_2_a_shadow_sampler_that_is_not_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make_loop(small, policy=random_policy(shadow=True))
    for _ in range(3):
        loop.step()
    monkeypatch.setattr(loop.policy, "refresh_sampler", lambda: None)
    loop.policy.sampler()
    with pytest.raises(InvariantError, match="does not hold the weights of version 3"):
        loop.step()


# 3. Tokens are the only representation


class Reencoded(Groups):
    """Decodes what was sampled and encodes it again."""

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes = super().collect(problems, context)
        for e in episodes:
            s = e.segments[-1]
            s.tokens = context.policy.encode(s.text)
            s.action_mask, s.behaviour_logp = [1] * len(s.tokens), [-1.0] * len(s.tokens)
        return episodes


class ShortMask(Groups):
    """Loses a mask entry."""

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes = super().collect(problems, context)
        episodes[2].segments[-1].action_mask.pop()
        return episodes


def test_3_tokens_that_were_decoded_and_encoded_again() -> None:
    with pytest.raises(InvariantError, match=r"for problem 'train-\d' has tokens that the sampler never emitted"):
        make_loop(small.replace(experience=Reencoded(size=4))).step()


def test_3_a_mask_of_the_wrong_length() -> None:
    with pytest.raises(InvariantError, match=r"has \d+ tokens, \d+ mask entries and \d+ log-probabilities"):
        make_loop(small.replace(experience=ShortMask(size=4))).step()


# 4. Rewards are finite numbers, one per episode, and differ


class Given(Reward):
    """Whatever is put in `values`."""

    values: ClassVar[Any] = None

    def score(self, episodes: Sequence[Episode], context: Context) -> Any:
        return self.values(len(episodes))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (lambda n: [0.0] * (n - 1) + [float("nan")], r"Given returned nan for problem 'train-\d'; .* completion was '"),
        (lambda n: [float("inf")] * n, "Given returned inf for problem"),
        (lambda n: [0.0] * (n - 1), "Given must return 12 rewards, got 11"),
        (lambda n: None, "Given must return 12 rewards, got None"),
        (lambda n: ["1.0"] * n, "Given returned '1.0' for problem"),
    ],
)
def test_4_rewards_that_are_none(values: Callable[[int], Any], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Given, "values", staticmethod(values))
    with pytest.raises(RewardError, match=sentence) as caught:
        make_loop(small.replace(rewards=(Given(),))).step()
    assert caught.value.completion is not None or "must return" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("filters", [(), (InformativeGroups(rounds=1),)])
def test_4_equal_rewards_are_said_once_and_training_goes_on(
    filters: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.loops.differences.FLAT_STEPS", 5)
    loop = make_loop(small.replace(filters=filters), Toy(scoring=lambda problem, said: 0.5, max_tokens=2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        metrics = [loop.step().metrics for _ in range(10)]
    sentences = [str(w.message) for w in said if "nothing can be learned" in str(w.message)]
    assert len(sentences) == 1
    assert sentences[0].startswith(
        "In the first 3 steps no two completions of one problem had different rewards (now 0.5)"
    )
    assert "Likely causes: the task is too hard or too easy" in sentences[0]
    assert loop.finished == 10 and all((m["reward"], m["informative_groups"]) == (0.5, 0) for m in metrics)


@pytest.mark.slow
def test_4_failed_and_zero_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that failed leaves the batch; one that is zero stays in it and counts."""

    class Fails(Groups):
        """Marks one episode as a reward part does that drops it."""

        def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
            episodes = super().collect(problems, context)
            episodes[0].info["dropped"] = "timeout"
            return episodes

    zero = make_loop(small, Toy(scoring=lambda problem, said: 0.0)).step().metrics
    failed = make_loop(small.replace(experience=Fails(size=4)), Toy(scoring=lambda problem, said: 0.0)).step().metrics
    assert (zero["rows"], failed["rows"]) == (12.0, 11.0)


# 5. Micro-batches and row order change nothing


def everything(batch: TokenBatch) -> TokenBatch:
    """The batch with rewards and values at random, and advantages from them."""
    random = torch.Generator().manual_seed(3)
    batch.rewards = torch.randn(batch.tokens.shape, generator=random, dtype=torch.float64) * batch.action_mask
    batch.scores = batch.rewards.sum(1)
    batch.values = torch.randn(batch.tokens.shape, generator=random, dtype=torch.float64) * batch.action_mask
    batch.reference_logp = batch.behaviour_logp.double() - 0.1 * batch.action_mask
    batch.behaviour_logp = batch.behaviour_logp.double()
    batch.weights = 0.5 + torch.rand(len(batch), generator=random, dtype=torch.float64)
    return batch


METHODS = {
    **{f"grpo {a}": grpo.replace(aggregation=a) for a in ("token-mean", "sequence-mean", "fixed-length")},
    "grpo with kl and entropy": grpo.replace(regularizers=(KLToReference(), EntropyBonus())),
    "critic": grpo.replace(advantages=GAE(), critic=TokenCritic()),
}


def gradient(method: Any, batch: TokenBatch, budget: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    policy = random_policy("gpt2", dtype=torch.float64)
    if "values" in method.needs():
        torch.nn.init.constant_(policy.add_value_head().weight, 0.03)
    updater, tally = Updater(policy, method, 1, budget, 8), Tally()
    batch = batch.replace(advantages=method.advantages(batch), returns=method.advantages.returns(batch))
    updater.accumulate(method, batch, False, tally)
    return gradients(policy), tally.means()


@pytest.mark.first
@pytest.mark.parametrize("name", METHODS)
def test_5_the_micro_batch_does_not_change_the_gradient(name: str) -> None:
    method = METHODS[name]
    whole, reported = gradient(method, everything(random_batch((4, 3, 2), turns=2)), 100_000)
    for budget in (1, 60, 150):
        parts, again = gradient(method, everything(random_batch((4, 3, 2), turns=2)), budget)
        assert parts.keys() == whole.keys()
        for key, expected in whole.items():
            assert (parts[key] - expected).norm() <= 1e-10 * expected.norm(), (key, budget)
        assert again == pytest.approx(reported, rel=1e-9)


@pytest.mark.first
@pytest.mark.parametrize("name", METHODS)
def test_5_row_order_does_not_change_the_gradient(name: str) -> None:
    method, batch = METHODS[name], everything(random_batch((4, 3, 2), turns=2))
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(0))
    straight, mixed = gradient(method, batch, 150)[0], gradient(method, batch.rows(order), 150)[0]
    for key, expected in straight.items():
        assert (mixed[key] - expected).norm() <= 1e-10 * expected.norm(), key


def test_5_permuting_rows_permutes_advantages() -> None:
    batch = everything(random_batch((4, 3, 2), turns=2))
    order = torch.randperm(len(batch))
    for part in (GroupAdvantage(), GroupAdvantage(centre=LeaveOneOut(), scale=BatchStd()), GAE()):
        torch.testing.assert_close(part(batch.rows(order)), part(batch)[order], rtol=1e-12, atol=1e-12)


def test_5_rows_lost_between_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.loops.update.micro_batches", lambda *a: [torch.tensor([0, 1])])
    with pytest.raises(InvariantError, match="2 of 9 rows reached the gradient"):
        gradient(grpo, everything(random_batch((4, 3, 2))), 100)


def test_5_equal_rewards_at_different_places_are_equal() -> None:
    """Ten turns at -0.1 each make the same score wherever they fall, so their advantage is exactly 0."""
    from etude.rewards.scoring import score

    batch = random_batch((6,), turns=10)
    for e in batch.episodes:
        for s in e.segments:
            s.reward = -0.1 * any(s.action_mask)
    scored = score(batch, (TaskReward(),), Context(Toy(), None, Stream(0)))
    assert torch.equal(scored.scores, torch.full((6,), -1.0)) and not GroupAdvantage()(scored).any()


# 6. Nothing waits for ever


class Hangs(SingleTurn):
    """Sleeps in its step, and shields itself from exceptions."""

    def step(self, segment: Any) -> Any:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            try:
                time.sleep(1)
            except Exception:
                continue


class HangsAtOnce(SingleTurn):
    """Loops in its reset."""

    def reset(self, problem: Problem, seed: int) -> Any:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            pass


@pytest.mark.parametrize(("world", "where"), [(Hangs, "at turn 1"), (HangsAtOnce, "when it was reset")])
def test_6_an_environment_that_hangs(world: Any, where: str) -> None:
    loop = make_loop(small, Toy(world=world, step_timeout=0.2))
    begun = time.monotonic()
    with pytest.raises(EnvironmentFault) as caught:
        loop.step()
    assert 0.2 <= time.monotonic() - begun < 5
    sentence = str(caught.value)
    assert "of task 'toy', for problem 'train-" in sentence
    assert f"{where}, ({world.__name__}) did not answer within 0.2 s: it hangs" in sentence
