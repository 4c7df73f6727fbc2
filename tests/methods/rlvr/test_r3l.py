"""R3L: reports, retries from a step, what is learned of either, and what the loss makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from etude.advantages.group import group_mean, group_sum
from etude.core.batches import TokenLogProbs
from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError, InvariantError
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.loops.losses import loss_terms, with_shares
from etude.methods.rlvr.r3l import OPMD, AmplifiedAdvantage, r3l
from etude.methods.rlvr.r3l.retry import ReflectThenRetry, Report, imitated, read_report, without_prefix
from etude.policies.conversation import Conversation
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling
from etude.tasks.agents.attr_20q import attr_20q
from language_toys import Toy, gradients, make_loop, random_batch, random_policy


class Reporter(LanguagePolicy):
    """A policy whose reports are given, in turn; everything else it samples."""

    reports: tuple[str, ...] = ()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, draws: Sequence[Draw], begun: Sequence[int] = ()
    ) -> list[Completion]:
        said = super().generate(prompts, sampling, draws, begun)
        if sampling.stop != (">",):
            return said
        given = [self.encode(self.reports[i % len(self.reports)]) for i in range(len(said))]
        said = [Completion(t, [0.0] * len(t), stop=StopReason.STOP_STRING) for t in given]
        self.emitted.update(hash(tuple(c.tokens)) for c in said)
        return said


def reporter(*reports: str, name: str | None = None) -> Reporter:
    policy: Any = LanguagePolicy.load(name, device="cpu") if name else random_policy(context=256)
    policy.__class__ = Reporter
    policy.reports = reports
    return policy  # type: ignore[no-any-return]


def collect(experience: ReflectThenRetry, task: Any, policy: Any, count: int = 2) -> tuple[Any, list[Episode]]:
    bound, pool = experience.bind(), task.problems("train")
    context = Context(task, policy, Stream(4), max_tokens=task.max_tokens)
    return bound, bound.collect([pool[i] for i in range(count)], context)


def said(episode: Episode) -> list[Segment]:
    return [s for s in episode.segments if s.role == "assistant"]


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("<ok>", Report("ok")), ("<fail 0 W>", Report("fail", 0, "W")),
        (" <slow 4 go-up>\n", Report("slow", 4, "go-up")),
        ("<fail 5 W>", None), ("<fail -1 W>", None), ("<fail 1>", None), ("<ok 1 W>", None), ("fail 1 W", None),
        ("<fail 1 W> <ok>", None), ("<fail one W>", None), ("<good 1 W>", None), ("<fail 1 a b>", None), ("", None),
    ],
)  # fmt: skip
def test_reports_are_read_strictly(text: str, report: Report | None) -> None:
    assert read_report(text, steps=5) == report


def test_without_retries_and_amplification_it_is_the_mean_baseline_group_policy_gradient_over_one_plus_tau() -> None:
    method = r3l.replace(
        experience=Groups(size=3), advantages=AmplifiedAdvantage(alpha=1.0), objective=OPMD(tau=0.5)
    )  # fmt: skip
    policy = random_policy(dtype=torch.float64)
    batch = random_batch((3, 3), seed=4)
    scores = torch.tensor([1.0, 0.0, 0.25, 0.0, 0.5, 0.0], dtype=torch.float64)
    batch = batch.replace(scores=scores, rewards=batch.rewards.double(), weights=batch.weights.double())
    batch = batch.replace(advantages=method.advantages(batch))
    batch = with_shares(method, batch, 8)
    loss_terms(method, batch, policy.evaluate(batch))["objective"].total.backward()
    found = gradients(policy)
    policy.model.zero_grad()
    logp = policy.evaluate(batch).logp
    centred = (batch.scores - group_mean(batch.scores, batch.group)).double()
    (-(centred[:, None] * logp * batch.action_mask).sum() / batch.action_mask.sum() / 1.5).backward()
    assert all(torch.allclose(found[k], v, atol=1e-10, rtol=0) for k, v in gradients(policy).items())


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_gains_of_a_group_outweigh_its_losses_by_alpha(alpha: float) -> None:
    batch = random_batch((4, 3, 5), seed=2)
    batch = batch.replace(scores=torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    found = AmplifiedAdvantage(alpha=alpha)(batch)
    credit = (found * batch.action_mask).sum(1) / batch.action_counts
    gains, losses = (group_sum(credit.clamp(**b), batch.group) for b in ({"min": 0}, {"max": 0}))
    assert torch.allclose(gains, -alpha * losses, atol=1e-12) and float(gains.min()) > 0


def test_imitated_rows_have_advantage_one_and_nobody_is_compared_with_them() -> None:
    batch = random_batch((5,)).replace(scores=torch.tensor([1.0, 0.0, 0.0, 9.0, -9.0]))
    for e in batch.episodes[3:]:
        e.auxiliary = True
    part = AmplifiedAdvantage(alpha=3.0)
    third = 1 / 3
    assert part(batch)[batch.action_mask].unique().tolist() == pytest.approx([-third, 1.0, 2.0])
    found = [float(row[mask][0]) for row, mask in zip(part(batch), batch.action_mask)]
    assert found == pytest.approx([2.0, -third, -third, 1.0, 1.0])
    full = [float(row[m][0]) for row, m in zip(part.replace(full=1.0)(batch), batch.action_mask)]
    assert full == pytest.approx([1.0, -third, -third, 1.0, 1.0])


@pytest.mark.slow
def test_saying_k_steps_again_meets_the_same_observations() -> None:
    policy = reporter("<fail 2 K>", name="tiny")
    _, rows = collect(ReflectThenRetry(size=4, pivotal=False, imitate=False), attr_20q, policy)
    attempts, retries = rows[:4], rows[4:]
    assert len(retries) == 4
    for retry in retries:
        attempt = attempts[retry.parent or 0]
        shared = [s.tokens for s in attempt.segments[:5]]  # opening, and two turns with their answers
        assert [s.tokens for s in retry.segments[:5]] == shared and retry.seed == attempt.seed
        assert retry.fork_turn == 2 and retry.elsewhere
        assert not any("try" in s.text for s in retry.segments)


@pytest.mark.slow
def test_the_guidance_is_seen_but_not_in_what_is_distilled(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = reporter("<fail 2 K>", name="tiny")
    seen: list[list[int]] = []
    plain = Conversation.open

    def watched(self: Conversation, prompts: Sequence[Sequence[int]]) -> list[int]:
        seen.extend(map(list, prompts))
        return plain(self, prompts)

    monkeypatch.setattr(Conversation, "open", watched)
    collect(ReflectThenRetry(size=4), attr_20q, policy)
    text = [policy.decode(p) for p in seen]
    assert sum(t.endswith("try K\n") for t in text) == 4 and sum(t.endswith("report: ") for t in text) == 4


def masks(rows: list[Episode]) -> list[list[list[int]]]:
    return [[s.action_mask for s in said(e)] for e in rows]


@pytest.mark.slow
def test_common_steps_are_learned_in_neither_and_keep_their_reward() -> None:
    policy = reporter("<fail 2 K>", name="tiny")
    _, rows = collect(ReflectThenRetry(size=4, imitate=False), attr_20q, policy)
    _, whole = collect(ReflectThenRetry(size=4, pivotal=False, imitate=False), attr_20q, policy)
    for row, other in zip(rows, whole):
        assert [s.tokens for s in row.segments] == [s.tokens for s in other.segments]
        assert not any(map(any, masks([row])[0][:2])) and all(map(all, masks([row])[0][2:]))
        assert all(map(all, masks([other])[0]))
        assert row.reward == pytest.approx(other.reward) and said(row)[0].reward == said(row)[1].reward == 0


@pytest.mark.slow
def test_with_step_zero_masks_are_unchanged() -> None:
    policy = reporter("<fail 0 K>", name="tiny")
    _, rows = collect(ReflectThenRetry(size=4, imitate=False), attr_20q, policy)
    assert len(rows) == 8 and all(all(map(all, m)) for m in masks(rows))
    assert masks([without_prefix(rows[0], 0, 0)]) == masks(rows[:1])


@pytest.mark.slow
def test_a_masked_prefix_has_exactly_no_gradient() -> None:
    policy = reporter("<fail 2 K>", name="tiny")
    _, rows = collect(ReflectThenRetry(size=4, imitate=False), attr_20q, policy)
    batch = to_batch(rows, 0, 1.0, policy.device)
    batch = batch.replace(advantages=torch.ones_like(batch.behaviour_logp))
    logp = torch.randn(batch.tokens.shape, requires_grad=True)
    batch = with_shares(r3l, batch, 8)
    loss_terms(r3l, batch, TokenLogProbs(logp))["objective"].total.backward()
    assert logp.grad is not None
    for row, episode in enumerate(rows):
        third = next(i for i, s in enumerate(episode.segments) if s is said(episode)[2])
        start = sum(len(s.tokens) for s in episode.segments[:third])
        assert not logp.grad[row, :start].any() and logp.grad[row, start:].any()


def test_a_single_completion_is_cut_at_its_separators() -> None:
    policy, task = reporter("<fail 1 W>"), Toy(max_tokens=9)
    found = ReflectThenRetry(size=2, imitate=False, separator="a")
    tokens = policy.encode("xyazbacc")
    whole = Segment("assistant", "xyazbacc", tokens, [1] * 8, [0.0] * 8)
    attempt = Episode(task.problems("train")[0], [Segment("user", "one:"), whole], draw=Draw.at(0))
    context = Context(task, policy, Stream(0))
    assert found._places(attempt, context) == [(0, 0), (0, 3), (0, 6)]
    start = found._start(0, attempt, Report("fail", 1, "W"), context)
    assert start.open and start.segments[0].tokens == tokens[:3] and start.hint == "try W\n"
    assert masks([without_prefix(attempt, 0, 3)]) == [[[0] * 3 + [1] * 5]]


def test_retries_inside_a_completion_show_the_guidance_before_it() -> None:
    policy, task = reporter("<fail 0 W>"), Toy(max_tokens=9)
    _, rows = collect(ReflectThenRetry(size=2, imitate=False), task, policy)
    assert [len(r.segments) for r in rows] == [2, 2, 2, 2] and rows[2].elsewhere


def paid(*rewards: float) -> Any:
    """A task that pays its completions in this order."""
    left = list(rewards)
    return Toy(scoring=lambda problem, completion: left.pop(0), max_tokens=6)


def test_what_helped_is_imitated_and_what_did_not_is_not() -> None:
    policy = reporter("<fail 0 W>", "<fail 0 W>", "<ok>", "<ok>")
    part, rows = collect(ReflectThenRetry(size=4), paid(0.0, 0.0, 1.0, 0.0, 1.0, 0.5), policy)
    extra = [e for e in rows if e.auxiliary]
    assert [e.segments[-1].role for e in extra] == ["critique", "assistant", "critique"]
    report, guided, fine = extra
    assert report.segments[-1].text == "<fail 0 W>" and report.action_count == len(report.segments[-1].tokens)
    assert [s.text for s in guided.segments if "hint" in s.info] == ["try W\n"] and guided.reward == 1.0
    assert fine.segments[-1].text == "<ok>" and fine.group == 1  # true of the third attempt, not of the fourth
    assert part.state == {"attempts": 4, "rejected": 0, "retries": 2, "attempt_successes": 1, "retry_successes": 1,
                          "helped": 2, "peer_successes": 0.0}  # fmt: skip


def test_what_other_attempts_at_the_same_problems_came_to_is_counted_once_for_each_retry() -> None:
    """Of three attempts each at two problems, the first two of the one and the first of the other are retried."""
    policy = reporter("<fail 0 W>", "<fail 0 W>", "<ok>", "<fail 0 W>", "<ok>", "<ok>")
    part, _ = collect(ReflectThenRetry(size=6), paid(0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0), policy)
    assert part.state["retries"] == 3
    assert part.state["peer_successes"] == pytest.approx(1 / 2 + 1 / 2 + 1 / 2)


def test_a_retry_that_is_no_better_is_not_imitated() -> None:
    """An attempt that had succeeded, reported as slow, and a retry that succeeds too."""
    _, rows = collect(ReflectThenRetry(size=2), paid(1.0, 0.5, 1.0, 1.0), reporter("<slow 0 W>"))
    assert [e.group for e in rows if e.auxiliary] == [1, 1]


@pytest.mark.parametrize(("size", "better"), [(6, 0), (5, 2), (7, 0)])
def test_a_slow_success_that_succeeds_again_in_fewer_steps_is_imitated(size: int, better: int) -> None:
    """As in the published code: both are paid 1, and what decides is the number of steps."""
    steps = [Segment("assistant", "a", [5], [1], [0.0], reward=float(i == 0)) for i in range(7)]
    attempt, retry = (Episode(Problem("p", "?"), steps[:n]) for n in (6, size))
    task = Toy(max_turns=9)
    part = ReflectThenRetry(size=2)
    context = Context(task, None, Stream(0))
    shorter = part._steps(retry, context) < part._steps(attempt, context)
    report = Episode(Problem("p", "?"), [Segment("critique", "<slow 1 W>")], auxiliary=True)
    found = imitated(attempt, report, Report("slow", 1, "W"), retry, task, shorter)
    assert len(found) == better and all(e.auxiliary for e in found)


def test_rejected_reports_leave_the_attempt_as_it_is() -> None:
    part, rows = collect(ReflectThenRetry(size=4), Toy(), reporter("<fail 9 W>", "nonsense"))
    assert len(rows) == 4 == part.state["rejected"] and all(all(map(all, m)) for m in masks(rows))


@pytest.mark.slow
def test_rows_sampled_elsewhere_are_not_compared_with_the_trainer() -> None:
    """Their log-probabilities are of another context: comparing them would stop the run."""
    method = r3l.replace(problems=2, experience=ReflectThenRetry(size=4, imitate=False))
    loop = make_loop(method, policy=reporter("<fail 0 somewhere>"))
    metrics = loop.step().metrics
    assert metrics["rows"] == 8 and metrics["logp_gap"] < 1e-4
    batch = to_batch(collect(method.experience, Toy(), loop.policy)[1], 0, 1.0, loop.policy.device)
    assert batch.elsewhere is not None and batch.elsewhere.sum() == 4
    assert batch.sampled.all() and batch.on_policy.sum() == 4
    gap = loop.policy.evaluate(batch).logp.detach() - batch.behaviour_logp
    assert float(gap[batch.action_mask & batch.elsewhere[:, None]].abs().mean()) > 0.01

    class Careless(ReflectThenRetry):
        def collect(self, problems: Any, context: Any) -> list[Episode]:
            rows = super().collect(problems, context)
            return [dataclasses.replace(e, elsewhere=False) for e in rows]

    careless = method.replace(experience=Careless(size=4, imitate=False))
    with pytest.raises(InvariantError, match="differ by"):
        make_loop(careless, policy=reporter("<fail 0 somewhere>")).step()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="even"):
        ReflectThenRetry(size=5)
    with pytest.raises(ConfigError, match="guidance"):
        ReflectThenRetry(guidance="try")
