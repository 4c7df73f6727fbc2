"""RLPrompt: soft Bellman equations solved are no loss, the release's losses, values of the slow copy, z-scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.small_batch import small_tokens
from etude.experiments.preference.rlprompt import experiment
from etude.loops.whole_batch import reference_values_all
from etude.methods.preference.rlprompt import SoftQConsistency, SoftTargets, SymmetricSoftQ
from etude.optimizers.adam import AdamW
from etude.policies.language import LanguagePolicy
from etude.policies.word_tokenizer import CUES
from etude.references.frozen import MovingAverage
from etude.rewards.control import AffineScores, PromptZScores
from language_toys import Toy, make_loop, random_batch, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = 5


def rows(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


class Prompts:
    """All prompts of two words [25], each with its reward, as a batch whose values and chances come from tables."""

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.rewards = torch.randn(WORDS, WORDS, generator=random, dtype=torch.float64)
        self.words = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))

    def solved(self) -> tuple[Tensor, Tensor]:
        """Q of the first word [5] and of the second behind each first one [5, 5], where the soft equations hold."""
        return self.rewards.logsumexp(1), self.rewards

    def said(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities and values [25, 2] and logits [25, 2, 5] of a table."""
        logits = torch.stack([first.expand(len(self.words), -1), second[self.words[:, 0]]], 1)
        values = logits.logsumexp(-1)
        return logits.gather(-1, self.words[..., None])[..., 0] - values, values, logits

    def batch(self, first: Tensor, second: Tensor) -> Any:
        """What is known of them beside a slow copy with this table."""
        logp, values, _ = self.said(first, second)
        paid = torch.stack([torch.zeros(25, dtype=torch.float64), self.rewards.flatten()], 1)
        found = rows(
            rewards=paid, action_mask=torch.ones(25, 2, dtype=torch.bool), reference_logp=logp, reference_values=values
        )
        found.advantages = SoftTargets()(found)
        return found


OBJECTIVES = (SoftQConsistency(), SymmetricSoftQ(weight=0.0), SymmetricSoftQ(weight=0.3))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=["policy", "exchanged", "both"])
def test_soft_values_that_solve_their_equations_are_no_loss(objective: SoftQConsistency) -> None:
    world = Prompts()
    logp, _, logits = world.said(*world.solved())
    batch = world.batch(*world.solved())
    assert objective(batch, TokenLogProbs(logp, logits=logits)).abs().max() < 1e-24
    wrong = world.batch(world.rewards.logsumexp(1) + torch.arange(5.0) / 10, world.rewards)
    assert objective(wrong, TokenLogProbs(logp, logits=logits)).max() > 1e-3


def test_the_prompts_then_have_the_chances_of_their_rewards() -> None:
    world = Prompts()
    logp, values, _ = world.said(*world.solved())
    chances = world.rewards.flatten().softmax(0)
    assert (logp.sum(1).exp() - chances).abs().max() < 1e-15
    ahead = torch.stack([logp.sum(1), logp[:, 1]], 1)
    assert (ahead - (world.rewards.flatten()[:, None] - values)).abs().max() < 1e-14  # the path identity


def released(q: Tensor, slow: Tensor, words: Tensor, reward: float, c: float | None) -> Tensor:
    """The four losses of one prompt [T] as they stand in the release, word by word; q, slow [T, V]."""

    def single(one: Tensor, two: Tensor) -> Tensor:
        v = [x.logsumexp(-1) for x in two]
        a = [x[w] - x.logsumexp(-1) for x, w in zip(one, words)]
        goals = [v[t + 1] - v[t] for t in range(len(words) - 1)] + [reward - v[-1]]
        return torch.stack([(x - y) ** 2 for x, y in zip(a, goals)])

    def path(one: Tensor, two: Tensor) -> Tensor:
        a = [x[w] - x.logsumexp(-1) for x, w in zip(one, words)]
        return torch.stack([(sum(a[t:]) - (reward - two[t].logsumexp(-1))) ** 2 for t in range(len(words))])

    def mixed(loss: Any) -> Tensor:
        found: Tensor = loss(q, slow) if c is None else c * loss(q, slow) + (1 - c) * loss(slow, q)
        return found

    return (mixed(single) + mixed(path)) / 2


@pytest.mark.parametrize("c", [None, 0.25])
def test_loss_and_gradient_are_the_release_s(c: float | None) -> None:
    random = torch.Generator().manual_seed(1)
    slow = torch.randn(3, WORDS, generator=random, dtype=torch.float64)
    q = (slow + torch.randn(3, WORDS, generator=random, dtype=torch.float64)).requires_grad_()
    words = torch.tensor([1, 4, 0])
    wanted = released(q, slow, words, 1.75, c)
    (gradient,) = torch.autograd.grad(wanted.sum(), q)
    mask = torch.tensor([[False, True, True, True, False]])  # a prompt before it, and padding

    def placed(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (*([0] * (2 * x.dim() - 2)), 1, 1))[None]

    chosen = slow.log_softmax(-1).gather(1, words[:, None])[:, 0]
    batch = rows(
        rewards=placed(torch.tensor([0, 0, 1.75], dtype=torch.float64)), action_mask=mask,
        reference_logp=placed(chosen), reference_values=placed(slow.logsumexp(-1)),
    )  # fmt: skip
    batch.advantages = SoftTargets()(batch)
    said = TokenLogProbs(placed(q.log_softmax(-1).gather(1, words[:, None])[:, 0]), logits=placed(q))
    objective = SoftQConsistency() if c is None else SymmetricSoftQ(weight=c)
    found = objective(batch, said)[mask]
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
    (own,) = torch.autograd.grad(found.sum(), q)
    assert torch.allclose(own, gradient, rtol=0, atol=1e-12)


def followed(objective: SoftQConsistency, steps: int = 150) -> Tensor:
    """How far the chances of prompts are from those of their rewards, of a table that began at 0."""
    world = Prompts(seed=2)
    table = [torch.zeros(s, dtype=torch.float64, requires_grad=True) for s in ((5,), (5, 5))]
    slow = [x.detach().clone() for x in table]
    optimizer = torch.optim.Adam(table, 0.1)
    for _ in range(steps):
        logp, _, logits = world.said(*table)
        loss = objective(world.batch(*slow), TokenLogProbs(logp, logits=logits)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for x, y in zip(slow, table):
            x.lerp_(y.detach(), 0.2)
    chances = world.said(*[x.detach() for x in table])[0].sum(1).exp()
    return (chances - world.rewards.flatten().softmax(0)).abs().max()


@pytest.mark.slow
def test_only_with_the_roles_exchanged_a_table_learns_the_level_of_values() -> None:
    assert followed(OBJECTIVES[2]) < 2e-3 and followed(OBJECTIVES[0]) > 0.02
    world = Prompts()
    moved = [x + 3 for x in world.solved()]  # other values, the same policy
    said = [TokenLogProbs(world.said(*t)[0], logits=world.said(*t)[2]) for t in (world.solved(), moved)]
    batch = world.batch(*world.solved())
    ours, exchanged = ([float(part(batch, x).max()) for x in said] for part in OBJECTIVES[:2])
    assert max(ours) < 1e-24 and exchanged[0] < 1e-24 and exchanged[1] > 1


def test_rewards_of_an_input_may_be_scaled_and_shifted() -> None:
    parts = (PromptZScores(epsilon=0.0), AffineScores(scale=5.0))
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    scores = torch.tensor([1.0, 4.0, 2.0, 0.5, 0.25, 1.0], dtype=torch.float64)

    def paid(scores: Tensor) -> Tensor:
        batch = rows(scores=scores, group=group, once=lambda: None)
        for part in parts:
            batch.scores = part.rescore(batch)
        found: Tensor = batch.scores
        return found

    found = paid(scores)
    assert found[:3].mean().abs() < 1e-12 and found[3:].mean().abs() < 1e-12
    assert torch.allclose(paid(scores * torch.tensor([3.0] * 3 + [0.2] * 3) + group * 7 - 2), found, atol=1e-9)


@pytest.mark.slow
def test_values_of_the_slow_copy_are_of_its_logits_and_of_no_other_s() -> None:
    policy = random_policy(dtype=torch.float64)
    policy.keep_reference()
    batch = random_batch((2, 2))
    before = reference_values_all(policy, batch, 64)
    said = policy.evaluate(batch, {"logits"}).logits
    assert said is not None
    assert torch.allclose(before, said.logsumexp(-1).detach() * batch.action_mask, atol=1e-12)
    with torch.no_grad():
        for p in policy.masters.parameters.values():
            p.mul_(1.5)
    policy.updated()
    assert torch.equal(reference_values_all(policy, batch, 64), before)
    policy.move_reference(1.0)
    assert not torch.allclose(reference_values_all(policy, batch, 64), before)
    assert torch.equal(reference_values_all(policy, batch, 7)[~batch.action_mask], before[~batch.action_mask])


@pytest.mark.slow
def test_the_loop_hands_on_values_and_moves_the_copy() -> None:
    method: Any = get_method("rlprompt")
    seen: list[TokenBatch] = []

    class Watched(SoftTargets):
        def __call__(self, batch: TokenBatch) -> Tensor:
            seen.append(batch)
            return super().__call__(batch)

    loop = make_loop(method.replace(advantages=Watched(), reference=MovingAverage(rate=0.5), problems=2))
    first = [p.clone() for p in loop.policy.masters.parameters.values()]
    loop.step()
    kept = list(loop.policy.tensors()[k] for k in loop.policy.tensors() if k.startswith("reference."))
    now = [p.detach() for p in loop.policy.masters.parameters.values()]
    assert all(torch.allclose(k, (a + b) / 2, atol=1e-6) for k, a, b in zip(kept, first, now))
    (batch,) = seen
    assert batch.reference_values is not None and bool((batch.reference_values[batch.action_mask] != 0).all())
    ends = batch.action_mask.sum(1)
    total = (
        SoftTargets()(batch).sum(1)
        + batch.reference_values[torch.arange(len(batch)), batch.action_mask.int().argmax(1)]
    )
    assert torch.allclose(total, batch.rewards.sum(1), atol=1e-4) and bool((ends > 0).all())
    assert loop.step().metrics["loss"] > 0


@pytest.mark.slow
def test_a_policy_of_cues_learns_what_pays() -> None:
    """One cue, of which the first half pays; turned round, the loss would make it say them less often."""
    wanted = {*CUES[:32]}
    task = Toy(prompts=("?",), scoring=lambda _, said: float(said in wanted), max_tokens=1)
    method: Any = get_method("rlprompt")
    policy = LanguagePolicy.load("blank:1x16x2@cues", device="cpu")
    loop = make_loop(method.replace(optimizer=AdamW(lr=3e-2)), task, policy, steps=16)
    paid = [loop.step().metrics["reward/task-reward"] for _ in range(16)]
    assert sum(paid[-4:]) / 4 > 0.8 and sum(paid[:4]) / 4 < 0.7, paid


@pytest.mark.slow
def test_what_does_not_go_together_is_refused() -> None:
    method = get_method("rlprompt")
    with pytest.raises(ConfigError, match=r"set experience\.temperature=1"):
        method.replace(experience=method.experience.replace(temperature=0.7)).check()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="set advantages=soft-targets"):
        get_method("reinforce").replace(objective=SoftQConsistency()).check()
    assert not SoftQConsistency().fresh_rows


def test_small_batches_have_what_it_needs() -> None:
    batch, said = small_tokens(SoftTargets.needs | SymmetricSoftQ.needs)
    batch.advantages = SoftTargets()(batch)
    assert SymmetricSoftQ()(batch, said).shape == batch.tokens.shape


@pytest.mark.slow
def test_the_experiment_measures_what_the_claim_names(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"READER": "blank:1x16x2@reviews", "SECOND": "blank:1x24x2@reviews", "POLICY": "blank:1x16x2@cues"}
    for name, value in {**small, "TAUGHT": 1, "STEPS": 1, "TESTED": 10, "CUES": CUES[:3]}.items():
        monkeypatch.setattr(f"etude.experiments.preference.rlprompt.{name}", value)
    (pair,) = experiment([3])
    claim = get_method("rlprompt").claim
    assert claim is not None and [m.name for m in claim.measures] == [*pair.arm] == [*pair.baseline]
    assert all(0 <= x <= 1 for x in (*pair.arm.values(), *pair.baseline.values()))
