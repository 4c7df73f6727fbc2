"""SPA-RL: contributions are read at ends of turns, add up to the return, and are paid there in its place."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import RewardToGo, rewards_to_go
from etude.advantages.turns import turn_ends
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError, RewardError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.rows import read_behind_turns, to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.experience.views import LastTurns
from etude.methods.agents.spa_rl import ExploredTurns, LeaveOneOutTurns, SummedReturn
from etude.policies.language import LanguagePolicy
from etude.policies.texts.models import SavedModel
from etude.rewards import redistribute
from etude.rewards.outcome import TaskReward
from etude.rewards.redistribute import Redistribute, contributions
from etude.rewards.scoring import score
from etude.tasks.agents.milestones import milestones
from language_toys import Toy, make_loop, random_episodes, random_policy

SPA: Any = get_method("spa-rl")
ESTIMATOR: Any = get_method("spa-estimator")


def said(*tokens: int, valid: bool | None = True, reward: float = 0.0) -> Segment:
    segment = Segment("assistant", "", list(tokens), [1] * len(tokens), [-1.0] * len(tokens), 0, reward=reward)
    if valid is not None:
        segment.info["valid"] = valid
    return segment


def seen(*tokens: int) -> Segment:
    return Segment("user", "", list(tokens), [0] * len(tokens), [0.0] * len(tokens))


def game(*turns: Segment, group: int = 0, stop: StopReason = StopReason.TERMINATED) -> Episode:
    """A prompt of two tokens, and an answer of one between turns."""
    segments = [seen(3, 4)]
    for turn in turns:
        segments += [turn, seen(5)]
    return Episode(Problem(f"p{group}", "?"), segments[:-1], group, stop=stop)


def rows(*episodes: Episode) -> TokenBatch:
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    double = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    return batch.replace(rewards=double, scores=double[:, 0])


def paid(parts: Any, batch: TokenBatch, policy: Any = None) -> TokenBatch:
    context = Context(None, policy or SimpleNamespace(tokenizer=Words()), Stream(0))
    return score(batch, parts, context)


class Words:
    """A tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        return {}


def shared(monkeypatch: pytest.MonkeyPatch, c: Tensor, **weights: float) -> Any:
    """A bound `Redistribute` whose estimator says c [B, T]."""
    monkeypatch.setattr(redistribute, "contributions", lambda scorer, batch: c)
    part: Any = Redistribute(model="given", **weights).bind()
    part.made["scorer"] = SimpleNamespace(tokenizer=Words())
    return part


def contributing(batch: TokenBatch, seed: int = 0) -> Tensor:
    """[B, T] random contributions at the ends of turns."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch.rewards.shape, generator=random, dtype=torch.float64) * turn_ends(batch)


def games() -> TokenBatch:
    """Games of one to four turns, of which some are paid in the end and one also on the way."""
    return rows(
        game(said(6, 7), said(8), said(9, 9, 9, reward=1.0)),
        game(said(6, valid=False), said(7, 7), said(8), said(9, reward=0.75)),
        game(said(6, 6, reward=0.25), said(7, valid=False, reward=0.5)),
        game(said(6, valid=False)),
    )


# Where it is read


@pytest.fixture(scope="module")
def scorer() -> LanguagePolicy:
    found = random_policy(seed=5)
    found.add_value_head()
    assert found.value_head is not None
    torch.nn.init.normal_(found.value_head.weight)
    return found


def test_contributions_are_the_head_on_the_last_token_of_each_turn(scorer: LanguagePolicy) -> None:
    """Row by row, without padding and without anything behind the turn."""
    batch = to_batch(random_episodes((2, 2), turns=3), 0, 1.0, torch.device("cpu"))
    found, head = contributions(scorer, batch), scorer.value_head
    assert head is not None
    for row, end in turn_ends(batch).nonzero().tolist():
        states = scorer.model.model(batch.tokens[row : row + 1, : end + 1]).last_hidden_state
        assert found[row, end].item() == pytest.approx(head(states[0, -1]).item(), abs=1e-4)
    assert int(turn_ends(batch).sum()) == 12 and not found[~turn_ends(batch)].any()


def test_turns_are_read_behind_their_last_token_and_nowhere_else() -> None:
    holed = Segment("assistant", "", [6, 7, 8], [1, 1, 0], [0.0] * 3, reward=0.5)
    told = Episode(Problem("p", "?"), [seen(3), holed, said(9, reward=0.25), seen(), seen(5, 5), said(4, reward=1.0)])
    read = read_behind_turns(told, pad=0)
    assert [s.action_mask for s in read.segments] == [[0], [0, 0, 1], [0], [], [1, 0], [0], [1]]
    assert [s.reward for s in read.segments] == [0, 0.5, 0, 0, 0.25, 0, 1.0]
    assert read.tokens == [*told.tokens, 0] and read.reward == told.reward
    batch = to_batch([read], 0, 1.0, torch.device("cpu"))
    assert TaskReward().shape(batch).sum().item() == told.reward
    assert all(s.action_mask for s in told.segments if s.tokens), "the episode itself is as it was"


class Letters:
    """Three turns; each that begins with an early letter counts, and all that count is paid in the end."""

    def __init__(self, task: Any) -> None:
        self.count = self.turn = 0

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        self.count = self.turn = 0
        return [Segment("user", str(problem.prompt))]

    def step(self, segment: Segment) -> StepResult:
        good = segment.text[:1] < "n" and segment.text[:1].isprintable()
        self.turn, self.count = self.turn + 1, self.count + good
        ended = self.turn == 3
        return StepResult([Segment("user", ";")], float(self.count * ended), ended, info={"valid": good})


def letters() -> Toy:
    return Toy(world=Letters, max_turns=3, max_tokens=1)


@pytest.mark.slow
def test_an_estimator_finds_what_each_turn_was_worth(tmp_path: Any) -> None:
    """It is told sums alone, of episodes of a policy that stays as it is."""
    policy, problems = random_policy(seed=1), letters().problems("train")
    policy.save(tmp_path)
    explored = ExploredTurns(whose=SavedModel(model=str(tmp_path)), size=12, temperature=0.3)
    optimizer = ESTIMATOR.optimizer.replace(lr=5e-3)
    loop = make_loop(ESTIMATOR.replace(problems=3, experience=explored, optimizer=optimizer), letters(), policy)
    losses = [loop.step().metrics["loss"] for _ in range(20)]
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    context = Context(letters(), random_policy(seed=1), Stream(3), max_tokens=1)
    episodes = explored.replace(size=30).bind().collect(problems, context)
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    told = loop.policy.evaluate(batch, {"values"}).values
    assert told is not None
    worth = torch.tensor([float(s.info["valid"]) for e in episodes for s in e.segments if "valid" in s.info])
    assert float(torch.corrcoef(torch.stack([told[batch.action_mask].detach(), worth]))[0, 1]) > 0.6


def sampling(context: Context) -> Any:
    return Groups().sampling(context)


# Identities


def test_an_exact_estimator_leaves_every_return_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = games()
    c, ends = contributing(batch), turn_ends(batch)
    before = paid((TaskReward(),), batch)
    surplus = (before.scores - c.sum(1)) / ends.sum(1)
    exact = c + surplus[:, None] * ends
    after = paid((TaskReward(), shared(monkeypatch, exact, alpha=1.0, beta=0.0)), batch)
    torch.testing.assert_close(after.scores, before.scores, atol=1e-12, rtol=0)
    start = [rewards_to_go(each.rewards, each.action_mask, 1.0)[:, 2] for each in (before, after)]
    torch.testing.assert_close(start[1], start[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(after.rewards, exact, atol=1e-12, rtol=0)
    off = paid((TaskReward(), shared(monkeypatch, 2 * exact, alpha=1.0, beta=0.0)), batch)
    assert (off.scores - before.scores).abs().max() > 0.5


def test_shifts_between_turns_change_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """c_t + w_t - w_{t-1} with w_0 = w_T = 0: neither what is learned from nor the return can tell them apart."""
    batch = games()
    c, ends = contributing(batch), turn_ends(batch)
    shifted, random = c.clone(), torch.Generator().manual_seed(4)
    for row in range(len(batch)):
        places = ends[row].nonzero()[:, 0]
        w = torch.cat([torch.randn(len(places) - 1, generator=random).double(), torch.zeros(1).double()])
        shifted[row, places] += w - torch.cat([torch.zeros(1).double(), w[:-1]])
    assert (shifted - c).abs().max() > 0.5
    scores = [paid((TaskReward(), shared(monkeypatch, x, alpha=0.7, beta=0.5)), batch).scores for x in (c, shifted)]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-12, rtol=0)
    read = SimpleNamespace(action_mask=ends, scores=torch.tensor([1.0, 0.75, 0.75, 0.0], dtype=torch.float64))
    losses = [SummedReturn()(read, TokenLogProbs(None, values=x)) for x in (c, shifted)]  # type: ignore[arg-type]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-12, rtol=0)


def test_shifts_by_the_state_leave_the_expected_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turns of two choices: w depends on what was said first; all four games, each as likely as it is."""
    c = torch.tensor([[0.3, 0.1], [0.3, 0.9], [-0.2, 0.4], [-0.2, 0.0]], dtype=torch.float64)
    logits = torch.tensor([0.4, -0.3, 0.8], dtype=torch.float64)
    found = [expected_gradient(monkeypatch, logits, c, w) for w in ((0.0, 0.0), (1.5, -0.7))]
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)
    assert found[0].abs().min() > 1e-3
    wrong = expected_gradient(monkeypatch, logits, c, (1.5, -0.7), back=0.5)
    assert (wrong - found[0]).abs().max() > 1e-2, "where less is taken back than was given, it does change"


def expected_gradient(
    monkeypatch: pytest.MonkeyPatch, logits: Tensor, c: Tensor, w: tuple[float, float], back: float = 1.0
) -> Tensor:
    weights = logits.clone().requires_grad_(True)
    choices = list(itertools.product((0, 1), (0, 1)))
    batch = rows(*(game(said(6 + one), said(6 + two)) for one, two in choices))
    ends = turn_ends(batch)
    shift = torch.tensor([[w[one], -back * w[one]] for one, _ in choices], dtype=torch.float64)
    placed = torch.zeros_like(batch.rewards).masked_scatter(ends, c + shift)
    batch = paid((TaskReward(), shared(monkeypatch, placed, alpha=1.0, beta=0.0)), batch)
    credit = RewardToGo(baseline=None)(batch)[ends].view(4, 2)
    first, second = weights[0], weights[1:]
    logp = torch.stack([
        torch.stack([sure(first, one), sure(second[one], two)]) for one, two in choices
    ])  # fmt: skip
    chance = logp.sum(1).exp().detach()
    (chance[:, None] * credit * logp).sum().backward()
    assert weights.grad is not None
    return weights.grad


def sure(logit: Tensor, choice: int) -> Tensor:
    return torch.nn.functional.logsigmoid(logit if choice else -logit)


def test_least_squares_finds_contributions_that_can_be_told_apart() -> None:
    """R is truly a sum of what features of turns are worth, and the feature matrix has full column rank."""
    random = torch.Generator().manual_seed(2)
    features = torch.randn(12, 5, 3, generator=random, dtype=torch.float64)
    mask = torch.rand(12, 5, generator=random) < 0.7
    worth = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)
    summed = (features * mask[..., None]).sum(1)
    assert torch.linalg.matrix_rank(summed) == 3
    batch: Any = SimpleNamespace(action_mask=mask, scores=summed @ worth)
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(SummedReturn()(batch, _values(features @ w)).mean(), w, create_graph=True)
    curvature = torch.stack([torch.autograd.grad(g, w, retain_graph=True)[0] for g in slope])
    learned = w - torch.linalg.solve(curvature, slope)  # the loss is a quadratic: one step of Newton's
    torch.testing.assert_close(learned.detach(), worth, atol=1e-10, rtol=0)
    torch.testing.assert_close(features @ learned.detach(), features @ worth, atol=1e-10, rtol=0)


def _values(values: Tensor) -> TokenLogProbs:
    return TokenLogProbs(values, values=values)


def test_without_either_term_turns_are_paid_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = games()
    part = shared(monkeypatch, contributing(batch), alpha=0.0, beta=0.0)
    assert not paid((TaskReward(), part), batch).rewards.any()


# What turns are paid


def test_turns_are_paid_both_terms_on_their_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(game(said(6, 7), said(8, valid=False, reward=1.0)))
    c = torch.tensor([[0, 0, 0, 0.25, 0, -0.5]], dtype=torch.float64)
    found = paid((TaskReward(), shared(monkeypatch, c, alpha=2.0, beta=0.5)), batch)
    assert found.rewards.tolist() == [[0, 0, 0, 1.0, 0, -1.0]] and found.scores.tolist() == [0.0]
    assert batch.episodes[0].scores == {"task-reward": 1.0, "redistribute": -1.0}


def test_rows_that_go_on_are_paid_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(game(said(6, reward=1.0)), game(said(6), stop=StopReason.PAUSED))
    for part in (shared(monkeypatch, turn_ends(batch).double()), LeaveOneOutTurns()):
        found = paid((TaskReward(), part), batch.replace(unfinished=torch.tensor([False, True])))
        assert found.rewards[0].any() and not found.rewards[1].any()


def test_the_release_pays_every_turn_alike_and_the_last_always() -> None:
    batch = rows(
        game(said(6), said(7, valid=False), said(8, valid=False, reward=1.0)),
        game(said(6, valid=False)), game(said(6, reward=0.5)),
        game(said(6, 6), said(7, reward=0.75), group=1),
    )  # fmt: skip
    found = paid((TaskReward(), LeaveOneOutTurns(beta=0.5)), batch)
    values = [found.rewards[row][turn_ends(batch)[row]].tolist() for row in range(4)]
    assert values == [[0.75 + 0.5, 0.75, 0.75 + 0.5], [-0.75 + 0.5], [0.5], [0.75 + 0.5, 0.75 + 0.5]]
    assert not found.rewards[~turn_ends(batch)].any()


def test_environments_say_turn_by_turn_what_could_be_done() -> None:
    context = Context(letters(), random_policy(seed=1), Stream(0), max_tokens=1)
    episodes = rollout(fresh(letters().problems("train"), 8, context.stream), context, sampling(context))
    for episode in episodes:
        assert [s.info["valid"] for s in episode.turns] == [
            s.text[:1] < "n" and s.text[:1].isprintable() for s in episode.turns
        ]
    assert {s.info["valid"] for e in episodes for s in e.turns} == {True, False}


def test_milestones_say_what_could_not_be_done() -> None:
    game, problem = milestones.environment(), milestones.problems("test")[0]
    game.reset(problem, 0)
    answers = [game.step(Segment("assistant", text)) for text in (" open", " go studio")]
    assert [a.info and a.info["valid"] for a in answers] == [False, True]


# What does not fit


def test_an_environment_that_does_not_say_so_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(game(said(6, valid=None)))
    with pytest.raises(RewardError, match=re.escape("have its steps return `info={'valid': ...}`, or set beta to 0.")):
        paid((shared(monkeypatch, contributing(batch)),), batch)
    paid((shared(monkeypatch, contributing(batch), beta=0.0),), batch)


def test_a_model_with_other_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    part = shared(monkeypatch, torch.zeros(1, 3))
    part.made["scorer"] = SimpleNamespace(tokenizer=SimpleNamespace(get_vocab=lambda: {"a": 1}))
    with pytest.raises(ConfigError, match="train the estimator from the policy"):
        paid((part,), rows(game(said(6))))


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (SPA, "train one with `etude train spa-estimator` and name its folder with --set rewards.redistribute.model"),
        (SPA.replace(experience=SPA.experience.replace(view=LastTurns())), "set experience.view=full-history"),
        (ESTIMATOR, "names no model: set its field model"),
        (ESTIMATOR.replace(experience=get_method("sft").slots()["experience"]), "set experience=explored-turns"),
    ],
)
def test_methods_that_cannot_work_are_refused(method: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        check(method)
