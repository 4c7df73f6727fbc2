"""rl-compositionality: what rejection fine-tuning is, and what its study and claim compare."""

from __future__ import annotations

from types import SimpleNamespace as Rows
from typing import Any

import pytest
import torch
from torch import Tensor

import etude
from etude.advantages.returns import RewardToGo
from etude.core.complete import complete_token
from etude.core.kinds import TokenMethod
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.exact import every_group, expected_gradient
from etude.experiments.cells import Cell
from etude.experiments.rlvr import rl_compositionality as experiment
from etude.loops.bandit import Bandit
from etude.loops.credit import credited, kept, loss, scored
from etude.methods.rlvr.rl_compositionality import RightCompletions, rl_compositionality, rl_compositionality_rft
from etude.objectives.policy_gradient import PolicyGradient
from etude.policies.tabular import SoftmaxTree
from etude.tasks.language.compose import worked
from etude.tasks.language.compose_apart import ComposeApart

F64 = torch.float64


@pytest.fixture
def outcomes() -> Bandit:
    """Four responses, two of them right."""
    return Bandit(SoftmaxTree(1, 4, 1, spread=0.7, seed=3), torch.tensor([[0.0, 1.0, 0.0, 1.0]], dtype=F64))


def token(name: str, **slots: Any) -> TokenMethod:
    method = etude.method(name).replace(**slots)
    assert isinstance(method, TokenMethod)
    return method


def step(method: TokenMethod, bandit: Bandit, batch: Any) -> tuple[Tensor, int]:
    """The gradient of the loss on one group, and how many of its rows are learned from."""
    bound = complete_token(method).bind()
    context = Context(None, bandit.policy, Stream(0), max_tokens=bandit.policy.length)  # type: ignore[arg-type]
    rows = credited(bound, kept(bound, scored(bound, batch, context)))
    if not len(rows):
        return torch.zeros_like(bandit.policy.logits[0]), 0
    policy = bandit.policy.rows(0, rows.group, rows.response, bandit.policy.table())
    value = loss(bound, rows, policy, bandit.policy.length)
    return torch.autograd.grad(value, bandit.policy.logits[0])[0], len(rows)


def upward(bandit: Bandit) -> Tensor:
    """The gradient of the chance of being right."""
    success = (bandit.policy.probs()[0, 0] * bandit.rewards[0]).sum()
    return torch.autograd.grad(success, bandit.policy.logits[0])[0]


@pytest.mark.slow
def test_the_first_step_of_rejection_is_reinforce_with_outcomes_and_no_baseline(outcomes: Bandit) -> None:
    """Identity 2: of every group of three samples of the policy itself, the denominators apart."""
    size = 3
    rejection = token("rl-compositionality-rft", aggregation="fixed-length")
    plain = token("reinforce", aggregation="fixed-length", advantages=RewardToGo(gamma=1.0, baseline=None),
                  objective=PolicyGradient())  # fmt: skip
    total, met = torch.zeros_like(outcomes.policy.logits[0]), set()
    for chance, batch, _ in every_group(outcomes, size):
        mine, rows = step(rejection, outcomes, batch)
        theirs, everything = step(plain, outcomes, batch)
        assert everything == size
        torch.testing.assert_close(mine * rows / size, theirs, atol=1e-14, rtol=0)
        total += chance * theirs
        met.add(rows)
    assert met == {0, 1, 2, 3}
    torch.testing.assert_close(total, -upward(outcomes), atol=1e-12, rtol=0)


@pytest.mark.slow
def test_on_average_it_goes_up_where_the_policy_sampled_and_elsewhere_off(outcomes: Bandit) -> None:
    """Later updates of a round learn from an older policy's samples, without weights."""
    up = upward(outcomes) / upward(outcomes).norm()
    older = SoftmaxTree(1, 4, 1, spread=0.9, seed=11)
    own, other = (expected_gradient(token("rl-compositionality-rft"), outcomes, 3, behaviour=b) for b in (None, older))
    torch.testing.assert_close(-own / own.norm(), up, atol=1e-12, rtol=0)
    assert (-other / other.norm() - up).abs().max() > 1e-2


def test_only_what_is_right_is_kept_and_counts_alike() -> None:
    scores = torch.tensor([1.0, 0.999, 0.0, -1.0, 2.0], dtype=F64)
    assert RightCompletions().weigh(Rows(scores=scores)).tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]  # type: ignore[arg-type]
    assert RightCompletions(least=0.0).weigh(Rows(scores=scores)).tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]  # type: ignore[arg-type]


def test_a_batch_without_a_right_completion_teaches_nothing() -> None:
    never = Bandit(SoftmaxTree(1, 4, 1, spread=0.7, seed=3), torch.zeros(1, 4, dtype=F64))
    assert not expected_gradient(token("rl-compositionality-rft"), never, 2).any()


# The study


@pytest.mark.slow
def test_recipes_change_the_problems_or_how_is_learned() -> None:
    from etude.runs.studies import load_study

    study = load_study("rl-compositionality")
    arms = {arm.label: arm for arm in study.arms()}
    assert arms["single functions"].changes == {"task.levels": [1]}
    assert arms["single functions"].method == arms["single and two"].method == "rl-compositionality"
    assert arms["rft"].method == arms["rft, larger rounds"].method == "rl-compositionality-rft"
    (name,) = study.beds
    bed = study.bed(name)
    assert bed.goal == ComposeApart() and bed.split == "test"
    assert {p.level for p in bed.goal.problems("test")[: bed.test.problems]} == {"level2", "level3", "level4"}


# The claim


def test_all_arms_begin_from_one_policy_and_differ_as_they_are_called() -> None:
    work = experiment.arms([3, 4])
    assert [(c.seed, c.label) for c in work[:3]] == [(3, "chains of two"), (3, "single functions"), (3, "rejection")]
    assert {c.start for c in work} == {"tiny"} and {c.steps for c in work} == {experiment.STEPS}
    two, one, rejection = work[:3]
    assert two.method == one.method != rejection.method and two.task == rejection.task != one.task
    assert two.method.diff(rl_compositionality).keys() == {"optimizer.lr"}
    assert rejection.method.diff(rl_compositionality_rft).keys() == {"optimizer.lr"}


def test_what_is_wrong_and_right_is_counted_by_level() -> None:
    task = ComposeApart(tested=(2, 3))
    problems = task.problems("test")[:40]

    def played(said: Any) -> Any:
        rows = [[Rows(problem=p, completion=said(p))] for p in problems]
        right = torch.tensor([[task.score(p, said(p)) == 1.0] for p in problems]).numpy()
        return Rows(episodes=rows, correct=right)

    def alone(p: Any) -> str:
        return worked(p.info["functions"][-1:], p.info["input"])

    whole = played(lambda p: worked(p.info["functions"], p.info["input"]))
    found = experiment.shares(whole, whole)
    assert found == {"level2": 1.0, "level3": 1.0, "one function": 0.0, "too few": 0.0, "wrong step": 0.0, "seen": 1.0}
    found = experiment.shares(played(alone), whole)
    assert found["one function"] == 1.0 and max(found["level2"], found["level3"]) < 0.5 and found["seen"] == 1.0
    few = experiment.shares(played(lambda p: worked(p.info["functions"][:2], p.info["input"])), whole)
    assert few["level2"] == 1.0 and few["too few"] == pytest.approx(
        sum(p.level == "level3" for p in problems) / len(problems)
    )


def test_the_claim_compares_the_arms_that_it_names_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    level = {"chains of two": 0.6, "single functions": 0.1, "rejection": 0.2, "start": 0.05}

    def fake(cell: Cell) -> experiment.Course:
        names = {name for name, _ in experiment.COMPARED.values()}
        return experiment.Course(dict.fromkeys(names, level[cell.label]), 100.0)

    monkeypatch.setattr(experiment, "follow", fake)
    monkeypatch.setattr(experiment, "spread", lambda function, work: [function(w) for w in work])
    pair = experiment.experiment([0, 1])[1]
    claim = rl_compositionality.claim
    assert claim is not None and {m.name for m in claim.measures} == set(pair.arm) and claim.learned_on in pair.arm
    assert set(pair.arm.values()) == {0.6} and pair.start["three functions, against rejection"] == 0.05
    assert pair.baseline["three functions, against rejection"] == 0.2
    assert pair.baseline["three functions, against single ones"] == 0.1
