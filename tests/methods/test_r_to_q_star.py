"""From r to Q*: soft values of trees, what DPO's log-ratios are on them, and the recipe."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.core.batches import TokenLogProbs
from etude.core.errors import DataError
from etude.core.registry import get_method
from etude.evaluation.soft_values import SoftValues, edges, outcome_rewards, soft_values
from etude.experiments.preference import r_to_q_star as experiment
from etude.methods.preference.r_to_q_star import ChosenAnswers
from etude.objectives.preference import DPO
from etude.policies.tabular import SoftmaxTree
from etude.tasks.language.digest import digest
from language_toys import Toy

BETA = 0.7


@pytest.fixture(scope="module", params=[False, True], ids=["of one length", "that end"])
def tree(request: pytest.FixtureRequest) -> SoftmaxTree:
    return SoftmaxTree(2, 3, 3, ends=request.param, spread=1.0, seed=4)


@pytest.fixture(scope="module")
def rewards(tree: SoftmaxTree) -> Tensor:
    return torch.randn(2, len(tree.tokens), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def reference(tree: SoftmaxTree) -> Tensor:
    return tree.table()[0].detach()


@pytest.fixture(scope="module")
def found(tree: SoftmaxTree, reference: Tensor, rewards: Tensor) -> SoftValues:
    return soft_values(tree, reference, outcome_rewards(tree, rewards), BETA)


def responses(tree: SoftmaxTree, table: Tensor) -> Tensor:
    """[X, Y] of tokens [X, N, V], summed along responses."""
    return torch.where(tree.mask, table[:, tree.nodes, tree.tokens], 0.0).sum(-1)


def test_the_optimum_is_the_references_tilted_by_the_reward(
    tree: SoftmaxTree, reference: Tensor, rewards: Tensor, found: SoftValues
) -> None:
    wanted = (responses(tree, reference) + rewards / BETA).log_softmax(-1)
    torch.testing.assert_close(responses(tree, found.logp), wanted, atol=1e-12, rtol=0)
    root = BETA * (responses(tree, reference) + rewards / BETA).logsumexp(-1)
    torch.testing.assert_close(found.v[:, 0], root, atol=1e-12, rtol=0)


def test_log_ratios_are_differences_of_values_and_add_up_to_the_reward(
    tree: SoftmaxTree, reference: Tensor, rewards: Tensor, found: SoftValues
) -> None:
    """Inner tokens V(s') - V(s), the last r - V(s); a response r(y) - V(x), to rounding."""
    ratio, following = BETA * (found.logp - reference), edges(tree)
    for node, token in product(range(tree.count), range(tree.vocabulary)):
        if (after := int(following[node, token])) >= 0:
            step = found.v[:, after] - found.v[:, node]
            torch.testing.assert_close(ratio[:, node, token], step, atol=1e-12, rtol=0)
    last = tree.mask.sum(1) - 1
    each = torch.arange(len(last))
    at, said = tree.nodes[each, last], tree.tokens[each, last]
    torch.testing.assert_close(ratio[:, at, said], rewards - found.v[:, at], atol=1e-12, rtol=0)
    torch.testing.assert_close(responses(tree, ratio), rewards - found.v[:, :1], atol=1e-12, rtol=0)


def test_a_potential_changes_values_and_not_the_optimum(
    tree: SoftmaxTree, reference: Tensor, rewards: Tensor, found: SoftValues
) -> None:
    """r + phi(s') - phi(s), phi 0 after the last token; also the log-ratios themselves as rewards."""
    following, paid = edges(tree), outcome_rewards(tree, rewards)
    phi = torch.randn(2, tree.count, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ahead = torch.where(following < 0, 0.0, phi[:, following.clamp(min=0)])
    shaped = soft_values(tree, reference, paid + ahead - phi[..., None], BETA)
    torch.testing.assert_close(shaped.logp, found.logp, atol=1e-12, rtol=0)
    torch.testing.assert_close(shaped.v, found.v - phi, atol=1e-12, rtol=0)
    credit = soft_values(tree, reference, BETA * (found.logp - reference), BETA)
    torch.testing.assert_close(credit.logp, found.logp, atol=1e-12, rtol=0)
    torch.testing.assert_close(credit.v, torch.zeros_like(found.v), atol=1e-12, rtol=0)


def test_likelihood_is_the_score_of_a_search_by_reward_and_value(
    tree: SoftmaxTree, reference: Tensor, rewards: Tensor, found: SoftValues
) -> None:
    """With beta log ref among the rewards: of every beginning beta log pi = rewards so far + V(s_t) - V(s_0)."""
    folded = BETA * reference + outcome_rewards(tree, rewards)
    for y, path in enumerate(tree.nodes):
        score = torch.zeros(2, dtype=torch.float64)
        logp = torch.zeros(2, dtype=torch.float64)
        for t in range(int(tree.mask[y].sum())):
            node, token = int(path[t]), int(tree.tokens[y, t])
            torch.testing.assert_close(BETA * logp, score + found.v[:, node] - found.v[:, 0], atol=1e-12, rtol=0)
            score, logp = score + folded[:, node, token], logp + found.logp[:, node, token]


def test_what_the_reference_says_can_only_lose(tree: SoftmaxTree, reference: Tensor, found: SoftValues) -> None:
    chance = responses(tree, reference).exp()
    implicit = (chance * responses(tree, BETA * (found.logp - reference))).sum(-1)
    divergence = (chance * (responses(tree, reference) - responses(tree, found.logp))).sum(-1)
    torch.testing.assert_close(implicit, -BETA * divergence, atol=1e-12, rtol=0)
    assert bool((implicit < 0).all())


@pytest.mark.slow
def test_dpo_finds_the_soft_values_of_a_tree_that_it_never_sees() -> None:
    """Its loss on all pairs of responses, labelled as Bradley and Terry would, minimised: token by token."""
    method: Any = experiment.variant("dpo", {"objective.beta": experiment.BETA})
    assert experiment._credit_error(method, 5) < 1e-6
    policy, _ = experiment.drawn(5)
    start = soft_values(
        policy, policy.table()[0].detach(), outcome_rewards(policy, experiment.drawn(5)[1]), experiment.BETA
    )
    assert float((start.q - start.v[..., None]).abs().mean()) > 0.05  # what the error is before a step


def test_dpo_reports_what_both_answers_are_implicitly_worth(make_batch: Any) -> None:
    mask, before = [[1, 1], [1, 0]], [[-1.0, -2.0], [-3.0, 0.0]]
    batch = make_batch(mask, scores=[0.0, 1.0], reference_logp=before)
    gained = torch.tensor([[0.5, -1.5], [2.0, 0.0]], dtype=torch.float64)
    said = TokenLogProbs(batch.reference_logp + gained * batch.action_mask)
    metrics = DPO(beta=0.1).metrics(batch, said)
    assert metrics["chosen_reward"].tolist() == pytest.approx([0.2, 0.2])
    assert metrics["rejected_reward"].tolist() == pytest.approx([-0.1, -0.1])
    torch.testing.assert_close(metrics["chosen_reward"] - metrics["rejected_reward"], metrics["margin"])


@pytest.mark.slow
def test_the_recipe_learns_the_chosen_answers_and_then_the_pairs(tmp_path: Path) -> None:
    made = etude.train(
        "r-to-q-star", "digest", model="blank:1x16x2", seed=3, steps=3, evaluate=0, quiet=True, out=tmp_path / "run",
        set=["runs.chosen.problems=8", "runs.sft.steps=1", "runs.sft.set=problems=4", "runs.dpo.steps=2",
             "runs.dpo.set=problems=4"],
    )  # fmt: skip
    kept = [json.loads(line) for line in (made.folder / "01-chosen" / "data.jsonl").read_text().splitlines()]
    problem = digest.problems("train")[0]
    assert kept[0]["prompt"] == problem.prompt and kept[0]["completion"] == problem.info["chosen"]
    metrics = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    assert metrics[1]["chosen_reward"] == pytest.approx(0, abs=1e-5) and metrics[2]["chosen_reward"] != 0
    dpo = json.loads((made.folder / "03-dpo" / "config.json").read_text())
    assert Path(dpo["model"]).is_relative_to(made.folder / "02-sft")
    scores = etude.evaluate(made.folder / "03-dpo", credit="start", problems=6)["test"]
    assert 0 < scores["credit/chance"].value < 0.3 and math.isfinite(scores["credit/wrong"].value)
    beamed = etude.evaluate(made.folder / "03-dpo", search="token-beam:3", problems=4)["test"]
    assert {*beamed} == {"accuracy", "reward", "tokens"}


def test_a_problem_without_a_pair_is_refused() -> None:
    with pytest.raises(DataError, match="no chosen answer"):
        ChosenAnswers(called="chosen").rows([Toy().problems("train")[0]], Toy(), 0)
    assert get_method("r-to-q-star").row == "theory"
