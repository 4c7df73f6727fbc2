"""Kimi k1.5: mirror descent, the length reward, what is drawn, and completions in pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.batches import TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.curricula.prioritised import Prioritised
from etude.evaluation.exact import expected_gradient
from etude.evaluation.long_to_short import average_weights, length_pairs, rejected, second_phase, shortest_correct
from etude.experience.groups import Groups
from etude.experience.pieces import PartialRollouts
from etude.loops.bandit import Bandit
from etude.methods.rlvr.kimi_k1_5 import LengthReward, MeanBaseline, MirrorDescent, length_reward
from etude.objectives.policy_gradient import PolicyGradient
from etude.optimizers.restarting import RestartingAdamW
from etude.policies.language import LanguagePolicy
from etude.policies.tabular import SoftmaxTree
from etude.tasks.language.sums import sums
from language_toys import Toy, make_loop, random_policy

KIMI = get_method("kimi-k1-5")


def tree(seed: int = 0) -> SoftmaxTree:
    return SoftmaxTree(1, 3, 2, ends=True, spread=1.0, seed=seed)


def plain() -> Any:
    """Mirror descent on the task's reward alone."""
    return KIMI.replace(rewards=KIMI.rewards[:1], experience=Groups(size=3), curriculum=get_method("grpo").curriculum)


# Mirror descent


@pytest.mark.slow
def test_at_the_reference_the_gradient_is_the_group_policy_gradient() -> None:
    at = Bandit(tree(), torch.rand(1, 7, generator=torch.Generator().manual_seed(2)).double())
    found = expected_gradient(plain(), at, 3)
    pg = plain().replace(objective=PolicyGradient())  # per token, divided by the limit of 2 tokens
    torch.testing.assert_close(found, at.policy.length * expected_gradient(pg, at, 3), atol=1e-12, rtol=0)


def test_away_from_it_the_gradient_is_the_papers() -> None:
    """(r - rbar) grad log pi - tau/2 grad (log ratio)^2; the second term vanishes at the reference."""
    now, old, tau = tree(0), tree(5), 0.3
    at = Bandit(now, torch.rand(1, 7, generator=torch.Generator().manual_seed(2)).double())
    response = torch.tensor([0, 2, 4, 6])
    prompt = torch.zeros_like(response)

    def gradients(behaviour: SoftmaxTree) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch = at.batch(prompt, response, behaviour.rows(0, prompt, response, behaviour.table().detach()))
        batch.advantages = MeanBaseline()(batch)
        said = now.rows(0, prompt, response, now.table())
        log_pi = now.logp()[0, 0, response]
        ratio = log_pi - behaviour.logp()[0, 0, response].detach()
        centred = batch.scores - batch.scores.mean()
        return tuple(
            torch.autograd.grad(x, now.logits[0], retain_graph=True)[0]
            for x in (MirrorDescent(tau=tau)(batch, said).mean(), (centred * log_pi).mean(), (ratio**2).mean())
        )  # type: ignore[return-value]

    loss, reward, square = gradients(old)
    torch.testing.assert_close(loss, -(reward - tau / 2 * square), atol=1e-12, rtol=0)
    assert float(square.abs().max()) > 1e-3
    _, _, square = gradients(now)
    torch.testing.assert_close(square, torch.zeros_like(square), atol=1e-12, rtol=0)


def test_with_the_exact_normaliser_the_optimum_has_no_loss_anywhere() -> None:
    tau, old = 0.4, tree(1)
    rewards = torch.rand(1, 7, generator=torch.Generator().manual_seed(3)).double()
    logp = old.logp()[0, 0].detach()
    log_z = torch.logsumexp(logp + rewards[0] / tau, 0)
    best = logp + rewards[0] / tau - log_z
    response = torch.arange(7)
    prompt = torch.zeros_like(response)
    batch = Bandit(old, rewards).batch(prompt, response, old.rows(0, prompt, response, old.table().detach()))
    batch.advantages = (rewards[0] - tau * log_z)[:, None] * batch.action_mask
    first = torch.zeros_like(batch.behaviour_logp)
    first[:, 0] = best  # all of a completion's log-probability on its first token: only the sum matters
    found = MirrorDescent(tau=tau)(batch, TokenLogProbs(first))
    torch.testing.assert_close(found, torch.zeros(7, dtype=torch.float64), atol=1e-20, rtol=0)
    assert float(MirrorDescent(tau=tau)(batch, TokenLogProbs(batch.behaviour_logp)).max()) > 1e-3


def test_the_optimizer_forgets_before_every_batch() -> None:
    assert [RestartingAdamW(every=2).restarts(s) for s in range(4)] == [True, False, True, False]
    assert all(KIMI.optimizer.restarts(s) for s in range(3))


# The length reward


def test_length_rewards_are_what_the_paper_says() -> None:
    random = torch.Generator().manual_seed(0)
    length = torch.randint(1, 30, (60,), generator=random).double()
    right = torch.rand(60, generator=random) < 0.5
    group = torch.arange(60) // 6
    found = length_reward(length, right, group)
    assert bool((found.abs() <= 0.5).all())
    assert bool((found[~right] <= 0).all())
    for g in range(10):
        mine = group == g
        shortest, longest = length[mine].min(), length[mine].max()
        assert bool((found[mine & right & (length == shortest)] == 0.5).all())
        assert bool((found[mine & (length == longest)] == -0.5).all())
    lam = 0.5 - (length[:6] - length[:6].min()) / (length[:6].max() - length[:6].min())
    torch.testing.assert_close(found[:6], torch.where(right[:6], lam, lam.clamp(max=0)), atol=1e-12, rtol=0)
    same = length_reward(torch.full((4,), 7.0), torch.tensor([True, False, True, False]), torch.zeros(4))
    assert same.tolist() == [0.0] * 4


def test_length_counts_after_a_share_of_the_steps() -> None:
    def episode(size: int, reward: float) -> Episode:
        said = Segment("assistant", "", [5] * size, [1] * size, [0.0] * size, reward=reward)
        return Episode(Problem("p", "?"), [Segment("user", "?", [1], [0], [0.0]), said])

    episodes = [episode(2, 1.0), episode(6, 1.0), episode(4, 0.0)]
    part = LengthReward(weight=2.0, start=0.3)
    assert part.score(episodes, Context(sums, None, Stream(0), 2, 10)) == [0.0, 0.0, 0.0]
    assert part.score(episodes, Context(sums, None, Stream(0), 3, 10)) == [1.0, -1.0, 0.0]


def test_the_baseline_knows_those_that_ended_before(make_batch) -> None:
    episodes = [Episode(Problem("a", "?"), group=0, info={"earlier": [1.0, 0.0]}) for _ in range(2)]
    episodes += [Episode(Problem("b", "?"), group=1, info={}) for _ in range(2)]
    batch = make_batch([[1]] * 4, scores=[1.0, 0.0, 1.0, 1.0], group=[0, 0, 1, 1], episodes=episodes)
    assert MeanBaseline()(batch)[:, 0].tolist() == [0.5, -0.5, 0.0, 0.0]
    batch = make_batch([[1]] * 2, scores=[1.0, 1.0], group=[0, 0], episodes=episodes[:2])
    assert MeanBaseline()(batch)[:, 0].tolist() == [0.25, 0.25]


# What is drawn


def pool(rates: dict[str, float], levels: list[str] | None = None) -> list[Problem]:
    return [Problem(name, "?", level=(levels or [""] * len(rates))[i]) for i, name in enumerate(rates)]


@pytest.mark.slow
def test_problems_are_drawn_in_proportion_to_how_often_they_fail() -> None:
    rates = {"a": 0.0, "b": 0.5, "c": 0.75, "d": 1.0}
    part, problems = Prioritised(widen=0).bind(), pool(rates)
    for name, rate in rates.items():
        part.outcomes.visit(name, rate)
    drawn = [part.choose(problems, 1, Stream(s))[0].id for s in range(4000)]
    for name, share in zip("abcd", (4 / 7, 2 / 7, 1 / 7, 0.0)):
        assert drawn.count(name) / 4000 == pytest.approx(share, abs=0.025)
    assert sorted(p.id for p in part.choose(problems, 4, Stream(0))) == ["a", "b", "c", "d"]
    assert len(part.choose(problems, 11, Stream(0))) == 11


def test_easy_levels_come_first() -> None:
    problems = pool({str(i): 0.0 for i in range(9)}, ["terms10", "terms3", "terms4"] * 3)
    part = Prioritised(widen=4).bind()
    seen = [{p.level for p in part.choose(problems, 2, Stream(s))} for s in range(40)]
    assert set().union(*seen[:2]) == {"terms3"}
    assert set().union(*seen[2:4]) <= {"terms3", "terms4"}
    assert set().union(*seen) == {"terms3", "terms4", "terms10"}


# Completions in pieces


def collected(part: Any, policy: Any, problems: list[Problem], stream: Stream) -> list[Episode]:
    return part.collect(problems, Context(Toy(), policy, stream, max_tokens=12))


@pytest.mark.first
@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_the_tokens_of_the_whole(seed: int) -> None:
    """Also where some end before others: what a completion draws depends on neither piece nor company."""
    policy, problems = random_policy(dtype=torch.float64), Toy().problems("train")[:2]
    policy.__class__ = type("Ends", (LanguagePolicy,), {"end_ids": property(lambda self: list(range(1, 40)))})
    whole = collected(Groups(size=8), policy, problems, Stream(seed))
    part, done = PartialRollouts(size=8, cap=4, times=12).bind(), []
    for step in range(3):
        state = json.loads(json.dumps(part.state))  # as a checkpoint keeps it
        part = part.bind()
        part.state.update(state)
        done += collected(part, policy, [] if step else problems, Stream(seed if step == 0 else 100 + step))
    by_draw = {e.draw: e.segments[-1] for e in done}
    assert len(by_draw) == 16 and len({len(said.tokens) for said in by_draw.values()}) > 4
    for piece, other in ((by_draw[e.draw], e.segments[-1]) for e in whole):
        assert piece.tokens == other.tokens
        torch.testing.assert_close(
            torch.tensor(piece.behaviour_logp), torch.tensor(other.behaviour_logp), atol=1e-9, rtol=0
        )
        size, old = len(piece.tokens), (len(piece.tokens) - 1) // 4 * 4
        assert piece.action_mask == [0] * old + [1] * (size - old)
        assert piece.info.get("begun", 0) == old


def test_what_ends_in_a_step_is_given_back_and_the_rest_goes_on() -> None:
    policy, problems = random_policy(seed=1), Toy().problems("train")
    part = PartialRollouts(size=8, cap=3).bind()
    ended = []
    for step in range(6):
        found = collected(part, policy, problems if step == 0 else [], Stream(step))
        assert all(sum(e.segments[-1].action_mask) <= 6 for e in found)
        part.before_update(_scored(found))
        ended += found
        if not part.state["open"]:
            break
    assert len(ended) == 24
    for visit in {e.info["visit"] for e in ended}:
        mine = [e for e in ended if e.info["visit"] == visit]
        assert len(mine) == 8
        for e in mine:  # knows exactly those of its group that came in earlier steps
            assert len(e.info["earlier"]) <= 7
            assert all(x == 0.5 for x in e.info["earlier"])


def _scored(episodes: list[Episode]) -> Any:
    class Batch:
        pass

    batch: Any = Batch()
    batch.episodes, batch.scores = episodes, torch.full((len(episodes),), 0.5)
    return batch


def test_loops_are_stopped_early() -> None:
    part = PartialRollouts(size=1, cap=4, times=4, longest=1)
    said = Segment("assistant", "", [7] * 4, [1] * 4, [0.0] * 4)
    episode = Episode(Problem("p", "?"), [said], stop=StopReason.MAX_TOKENS)
    assert not part.goes_on(episode, 12)
    said.tokens = [7, 8, 7, 7]
    assert part.goes_on(episode, 12)
    assert not part.goes_on(episode, 4)


def test_several_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="single turn"):
        PartialRollouts().bind().collect([], Context(Toy(max_turns=2), None, Stream(0)))


@pytest.mark.slow
def test_older_tokens_are_not_trained_on() -> None:
    loop = make_loop(KIMI.replace(problems=3, experience=PartialRollouts(size=4, cap=3)), Toy())
    begun = 0
    for _ in range(4):
        for e in loop.step().episodes:
            begun += len(e["segments"]) > 0
    assert begun
    assert loop.method.experience.state["visits"] == 12


# From long to short


@pytest.mark.slow
def test_the_short_data_are_the_shortest_right_answers_and_longer_ones_lose(tmp_path: Path) -> None:
    policy, task = LanguagePolicy.load("tiny", device="cpu"), sums.replace(terms=(4,))
    problems = task.problems("train")[:12]
    short = shortest_correct(policy, task, problems)
    assert short and all(task.score(p, p.info["demonstration"]) == 1.0 for p in short)
    for pair in length_pairs(policy, task, problems):
        chosen, lost = (len(policy.encode(pair.info[k])) for k in ("chosen", "rejected"))
        assert task.score(pair, pair.info["chosen"]) == 1.0
        assert lost > chosen * (1.5 if task.score(pair, pair.info["rejected"]) == 1.0 else 1.0) - 1

    def episode(size: int) -> Episode:
        return Episode(Problem("p", "?"), [Segment("assistant", "", [1] * size, [1] * size, [0.0] * size)])

    best = episode(4)
    assert [rejected(episode(n), best, True) for n in (4, 6, 7)] == [False, False, True]
    assert [rejected(episode(n), best, False) for n in (3, 4, 5)] == [False, False, True]
    policy.save(tmp_path / "long")
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(1.0)
    policy.save(tmp_path / "short")
    average_weights(tmp_path / "long", tmp_path / "short", tmp_path / "both", 0.25)
    both, long = (LanguagePolicy.load(str(tmp_path / n), device="cpu") for n in ("both", "long"))
    for p, q in zip(both.model.parameters(), long.model.parameters()):
        torch.testing.assert_close(p, q + 0.25, atol=1e-5, rtol=0)


def test_the_second_phase_is_shorter_and_rewards_length_at_once() -> None:
    again = second_phase(KIMI, 20)
    assert again.experience.max_tokens == 20
    assert [p.start for p in again.rewards if isinstance(p, LengthReward)] == [0.0]
    assert len(again.rewards) == len(KIMI.rewards)
