"""Pairwise-RL: what is paid against an anchor, verdicts in both orders, a critic that reads anchors, and the recipe."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import etude
from etude.advantages.returns import RewardToGo
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import DataError, RewardError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.evaluation.exact import expected_gradient, gradient
from etude.learners.value_model import Valued
from etude.loops.bandit import Bandit
from etude.methods.preference.pairwise_rl import AgainstAnchor, AnchoredValued, Verdicts, with_anchors
from etude.policies.tabular import SoftmaxTree
from etude.policies.written import written
from etude.rewards.judged import AfterThinking
from etude.rewards.pair_judges import SimulatedJudge
from language_toys import random_policy

ASKED = Problem("p/1", "how much?", info={"demonstration": "2", "chosen": "3", "rejected": "1"})
SAID = ("0.5", "2", "3.25")


def run() -> Any:
    return SimpleNamespace(policy=None, task=SimpleNamespace(score=lambda p, text: float(text or 0)))


def said(*texts: str, problem: Problem = ASKED) -> list[Episode]:
    return [Episode(problem, [Segment("assistant", text)]) for text in texts]


@pytest.mark.parametrize("bias", [0.0, 2.0, -5.0])
def test_as_good_as_the_anchor_is_a_half_whatever_place_the_judge_favours(bias: float) -> None:
    part = AgainstAnchor(judge=SimulatedJudge(bias=bias)).bind()
    found = part.score(said(*SAID), run())
    assert found[1] == 0.5 and found[0] < 0.5 < found[2]
    other = Problem("p/1", "how much?", info={"demonstration": "3.25"})
    assert found[2] + part.score(said("2", problem=other), run())[0] == pytest.approx(1, abs=1e-15)


def test_log_odds_are_the_scalar_reward_but_for_a_constant_of_the_prompt() -> None:
    found = AgainstAnchor(judge=SimulatedJudge(), log_odds=True).bind().score(said(*SAID), run())
    assert found == pytest.approx([float(text) - 2 for text in SAID], abs=1e-12)
    capped = AgainstAnchor(judge=SimulatedJudge(beta=None), log_odds=True, edge=0.01).bind().score(said(*SAID), run())
    assert capped == pytest.approx([-math.log(99), 0, math.log(99)], abs=1e-12)


def test_so_the_exact_policy_gradient_is_the_same() -> None:
    """What is paid for three responses by log-odds, or as scores, in a table."""
    paid = AgainstAnchor(judge=SimulatedJudge(), log_odds=True).bind().score(said(*SAID), run())
    policy, found = SoftmaxTree(1, 3, spread=1.0, seed=0), []
    for rewards in (paid, [float(text) for text in SAID]):
        given = Bandit(policy, torch.tensor([rewards], dtype=torch.float64))
        found.append(expected_gradient(get_method("rloo"), given, 2))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-13)
    chances = AgainstAnchor(judge=SimulatedJudge()).bind().score(said(*SAID), run())
    other = expected_gradient(get_method("rloo"), Bandit(policy, torch.tensor([chances], dtype=torch.float64)), 2)
    assert (other - found[0]).norm() > 0.1 * found[0].norm()


ASKED_TOO = Problem("p/2", "how many?", info={"demonstration": "-1"})


def table_of(part: AgainstAnchor) -> list[list[float]]:
    """What three responses to two prompts are paid against the prompts' own anchors."""
    return [part.bind().score(said(*SAID, problem=problem), run()) for problem in (ASKED, ASKED_TOO)]


def always(policy: SoftmaxTree, response: int) -> SoftmaxTree:
    """Who says one response to every prompt, whatever else a policy might say."""
    sure = SoftmaxTree(policy.prompts, policy.vocabulary)
    sure.logits[0].data[..., response] = 1e4
    return sure


@pytest.mark.slow
def test_over_prompts_with_anchors_of_their_own_it_is_the_same_on_average_and_not_sample_by_sample() -> None:
    """Without any baseline: a prompt's constant, the anchor's worth, drops out of the mean alone."""
    plain = get_method("reinforce").replace(advantages=RewardToGo(baseline=None))
    policy, scores = SoftmaxTree(2, 3, spread=1.0, seed=0), [[float(text) for text in SAID]] * 2
    odds = table_of(AgainstAnchor(judge=SimulatedJudge(), log_odds=True))
    by_odds, by_scores = (Bandit(policy, torch.tensor(paid, dtype=torch.float64)) for paid in (odds, scores))
    exact = gradient((policy.probs()[0] * by_scores.rewards).sum(), policy)
    for prompt, anchor in enumerate((2.0, -1.0)):
        mean = [expected_gradient(plain, given, 1, prompt=prompt)[prompt] for given in (by_odds, by_scores)]
        torch.testing.assert_close(*mean, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(mean[0], -exact[prompt], rtol=1e-10, atol=1e-13)
        assert float(mean[0].norm()) > 0.1
        for response in range(3):
            sure = always(policy, response)
            ours, theirs = (expected_gradient(plain, given, 1, behaviour=sure, prompt=prompt)[prompt]
                            for given in (by_odds, by_scores))  # fmt: skip
            score = gradient(policy.logp()[0, prompt, response], policy)[prompt]
            torch.testing.assert_close(ours - theirs, anchor * score, rtol=1e-9, atol=1e-12)
            assert float((ours - theirs).norm()) > 0.1


def test_the_judge_sees_what_stands_behind_the_thought() -> None:
    whole, part = run(), AgainstAnchor(judge=SimulatedJudge(), sees=AfterThinking()).bind()
    thought, bare, other = part.score(said("0</think>3", "3", "0</think>0.5"), whole)
    assert thought == bare == pytest.approx(1 / (1 + math.exp(-1.0)), abs=1e-12)  # 3 against 2
    assert other == pytest.approx(1 / (1 + math.exp(1.5)), abs=1e-12)
    assert part.score(said("3</think>"), whole) == pytest.approx([1 / (1 + math.exp(2.0))], abs=1e-12)  # nothing: 0


def test_the_mean_reward_is_the_rate_of_wins() -> None:
    sure = AgainstAnchor(judge=SimulatedJudge(beta=None)).bind().score(said("3", "1", "2", "9"), run())
    assert sum(sure) / 4 == (2 + 0.5) / 4


def test_a_missing_anchor_and_a_judge_without_an_answer_are_told() -> None:
    with pytest.raises(DataError, match="Problem 'p/2' has no anchor"):
        AgainstAnchor(judge=SimulatedJudge()).bind().score(said("1", problem=Problem("p/2", "?")), run())
    with pytest.raises(RewardError, match="no answer for problem 'p/1', whose completion was '1'"):
        AgainstAnchor(judge=SimulatedJudge(skip=5.0)).bind().score(said("1"), run())
    with pytest.raises(DataError, match="Problem 'p/2' has no pair of answers to judge"):
        Verdicts(called="verdicts").rows([Problem("p/2", "?")], None, 0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_critic_reads_the_anchor_before_the_answer() -> None:
    """Values are those of the text with the anchor in it; another anchor gives others, and the head begins at 0."""
    policy = random_policy(seed=0)
    other = Problem("p/2", "how much?", info={"demonstration": "77"})
    episodes = [
        written(problem, [Segment("user", "how much?"), Segment("assistant", text)], i, policy)
        for i, (problem, text) in enumerate(((ASKED, "abc"), (other, "abc"), (ASKED, "c")))
    ]
    batch = to_batch(episodes, 0, 1.0, policy.device)
    shown = with_anchors(batch, policy)
    assert shown.action_counts.tolist() == batch.action_counts.tolist()
    text = policy.decode(shown.tokens[1][: int(shown.lengths[1])].tolist())
    assert text.startswith("how much?77abc")
    critic = AnchoredValued(policy)
    assert float(critic.values(batch).abs().max().detach()) == 0
    head = critic.policy.add_value_head()
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    plain = Valued(policy)
    plain.policy.add_value_head().load_state_dict(head.state_dict())
    values = critic.values(batch).detach()
    wanted = plain.values(shown).detach()
    torch.testing.assert_close(values[batch.action_mask], wanted[shown.action_mask], rtol=1e-4, atol=1e-5)
    assert (values[0] - values[1]).abs().max() > 1e-3  # the same answer beside another anchor


@pytest.mark.slow
def test_the_recipe_trains_a_judge_and_then_the_policy(tmp_path: Path) -> None:
    made = etude.train(
        "pairwise-rl", "digest", model="blank:1x16x2", seed=3, steps=3, evaluate=0, quiet=True, out=tmp_path / "run",
        set=["runs.verdicts.problems=8", "runs.judge.steps=1", "runs.judge.set=problems=4", "runs.policy.steps=2",
             "runs.policy.set=rewards.against-anchor.judge.model={judge},problems=2,experience.size=2,critic.lead=0"],
    )  # fmt: skip
    rows = [json.loads(line) for line in (made.folder / "01-verdicts" / "data.jsonl").read_text().splitlines()]
    assert [row["completion"] for row in rows] == ["1", "2"] * 8
    first, second = (row["prompt"].split(">")[1][:-1].split("|") for row in rows[:2])
    assert first == second[::-1]
    metrics = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < m["reward/against-anchor"] < 1 for m in metrics[-2:])
    assert metrics[-1]["judge/model-pair-judge/asked"] == 8  # four answers in both orders
