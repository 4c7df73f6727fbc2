"""KTO: TRL's numbers, what its equation says of special cases, and how answers are mismatched with prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.complete import complete_token
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.data import Pairs
from etude.loops.credit import loss, scored
from etude.methods.preference.kto import MismatchedKL, ProspectLoss, mismatched, reference_point
from etude.objectives.sequence import sequence_sum
from language_toys import Toy, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def rows(u: list[float], z: float, labels: list[float] = LABELS) -> tuple[TokenBatch, TokenLogProbs]:
    """Answers of one token that the policy likes u nats more than the reference does."""
    reference = torch.full((len(u), 1), -3.0, dtype=torch.float64)
    batch: Any = SimpleNamespace(
        action_mask=torch.ones(len(u), 1), reference_logp=reference, scores=torch.tensor(labels).double(),
        offers={MismatchedKL.name: torch.full((len(u),), z, dtype=torch.float64)}, once=lambda: None,
    )  # fmt: skip
    return batch, TokenLogProbs((reference + torch.tensor(u).double()[:, None]).requires_grad_(True))


def test_the_loss_is_trls() -> None:
    """TRL 1.16.0 (KTOTrainer, beta 0.5, weights 1.5 and 0.75) on six answers to six prompts by two random Llamas.

    `u` and the log-ratios of mismatched rows are those of its batch; it came to this loss, and to this KL.
    """
    u = [1.032491683959961, 0.29974842071533203, 1.0783014297485352, -2.5747809410095215, -3.36523175239563,
         0.9902219772338867]  # fmt: skip
    apart = [-1.0794572830200195, -5.180108070373535, 4.193166732788086, 1.7488489151000977, -0.3332839012145996,
             2.454049587249756]  # fmt: skip
    z = max(0.0, sum(apart) / 6)
    assert z == pytest.approx(0.30053678154945374, abs=1e-6)
    batch, policy = rows(u, z)
    found = ProspectLoss(beta=0.5, desirable=1.5, undesirable=0.75)(batch, policy).mean()
    assert float(found.detach()) == pytest.approx(0.5582932829856873, abs=1e-6)


def test_where_the_policy_is_the_reference() -> None:
    """Half the weight, and a gradient of -+ w beta / 4."""
    batch, policy = rows([0.0] * 6, 0.0)
    found = ProspectLoss(beta=0.4, desirable=1.5, undesirable=0.5)(batch, policy)
    assert found.tolist() == pytest.approx([0.75 if good else 0.25 for good in LABELS], abs=1e-12)
    (slope,) = torch.autograd.grad(found.sum(), policy.logp)
    assert slope[:, 0].tolist() == pytest.approx([-0.15 if good else 0.05 for good in LABELS], abs=1e-12)


def test_only_the_distance_from_the_reference_point_counts() -> None:
    """Moving u and z together changes nothing; good and bad mirror each other; far away nothing is learned."""
    u = [1.0, -2.0, 0.5, 3.0, -1.0, 0.25]
    batch, policy = rows(u, 0.5)
    moved, said = rows([x + 2.0 for x in u], 2.5)
    one, other = ProspectLoss()(batch, policy), ProspectLoss()(moved, said)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    mirrored, back = rows([1.0 - x for x in u], 0.5, [1 - x for x in LABELS])
    torch.testing.assert_close(ProspectLoss()(mirrored, back), one, rtol=1e-12, atol=1e-14)
    far, away = rows([400.0, 400.0], 0.0, [1.0, 0.0])
    (slope,) = torch.autograd.grad(ProspectLoss()(far, away).sum(), away.logp)
    assert float(slope.abs().max()) < 1e-12


def given(problems: int = 3) -> tuple[Any, TokenBatch]:
    """Pairs of a toy task and a policy that has left its reference."""
    policy: Any = random_policy()
    policy.keep_reference()
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    task: Any = Toy()
    said = [{"chosen": "ab", "rejected": "c"}, {"chosen": "a", "rejected": "bcab"}, {"chosen": "bb", "rejected": "ca"}]
    asked = [p for p in task.problems("train")[:problems]]
    for problem, info in zip(asked, said):
        problem.info.update(info)
    context = Context(task, policy, Stream(0))
    return context, to_batch(Pairs().collect(asked, context), 0, 1.0, torch.device("cpu"))


@pytest.mark.slow
def test_answers_are_mismatched_with_other_problems_prompts() -> None:
    _, batch = given()
    apart = mismatched(batch, 0)
    assert apart is not None
    for row in range(6):
        other = (row - 2) % 6
        assert batch.group[row] != batch.group[other]
        mine, theirs = (int(batch.action_mask[i].int().argmax()) for i in (row, other))
        tokens = [*batch.tokens[row, :mine].tolist(), *batch.tokens[other, theirs : int(batch.lengths[other])].tolist()]
        assert apart.tokens[row, : len(tokens)].tolist() == tokens and int(apart.lengths[row]) == len(tokens)
        assert int(apart.action_mask[row].int().argmax()) == mine
        assert int(apart.action_counts[row]) == int(batch.action_counts[other])


@pytest.mark.slow
def test_the_loss_of_kto_end_to_end() -> None:
    """The shipped composition on pairs, from its rewards to its gradient, against eq. 8 written out."""
    context, batch = given()
    policy, method = context.policy, complete_token(get_method("kto"))
    batch = batch.replace(reference_logp=policy.reference_logp(batch))
    whole = scored(method, batch, context).replace(advantages=torch.zeros_like(batch.rewards))
    assert whole.scores.tolist() == [1.0, 0.0] * 3 and float(whole.rewards.sum()) == 3.0
    found = loss(method, whole, policy.evaluate(whole), 8)
    apart = mismatched(batch, 0)
    assert apart is not None
    with torch.no_grad():
        ratio = sequence_sum(policy.evaluate(apart).logp - policy.reference_logp(apart), apart)
    z = max(0.0, float(ratio.mean()))
    terms: list[Tensor] = []
    said = policy.evaluate(batch).logp
    for row in range(6):
        u = ((said - batch.reference_logp)[row] * batch.action_mask[row]).sum()
        terms.append(1 - torch.sigmoid(0.1 * (u - z if row % 2 == 0 else z - u)))
    expected = torch.stack(terms).mean()
    assert (
        float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
        and abs(float(expected.detach()) - 0.5) > 1e-3
    )
    parameters = list(policy.parameters())
    for one, other in zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_reference_point() -> None:
    """0 at the reference and for a problem alone; else the mean, and never below 0."""
    context, batch = given()
    policy = context.policy
    found = float(reference_point(batch, policy))
    # the other way round the mean has the other sign
    policy.weights.reference, policy.model = policy.model, policy.reference
    turned = float(reference_point(batch, policy))
    assert (found > 0) != (turned > 0) and min(found, turned) == 0
    policy.weights.reference = policy.model
    assert float(reference_point(batch, policy)) == 0
    context, alone = given(1)
    assert float(reference_point(alone, context.policy)) == 0


@pytest.mark.slow
def test_without_an_estimate_of_the_kl_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="put mismatched-kl into the slot rewards"):
        check(set_values(get_method("kto"), {"rewards": ("task-reward",)}))
