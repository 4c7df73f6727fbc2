"""HGPO: completions in both modes, whose first tokens are the policy's own, and credit between and within the modes."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupStd, LeaveOneOut
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, InvariantError
from etude.core.fit import check as check_fit
from etude.core.part import Need
from etude.core.rows import to_batch
from etude.core.slots import Context, TokenWeights
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.groups import Groups
from etude.experience.modes import DIRECT, THINK, BothModes
from etude.experience.second_look import LookAgain
from etude.experience.shown import AttemptAndCritique
from etude.experiments.rlvr import hgpo as experiment
from etude.experiments.watched import Job, Run
from etude.filters.informative import InformativeGroups
from etude.loops.recorded import recorded_entropies, recorded_hidden
from etude.methods.rlvr import hgpo as module
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.hgpo import BetweenAndWithin, between_modes, hgpo, within_modes
from etude.policies.fingerprint import fingerprint
from etude.policies.language import LanguagePolicy
from etude.runs.beds import load_bed
from language_toys import Toy, make_loop, random_policy

EXACT = GroupAdvantage(scale=GroupStd(epsilon=0.0))
MODES = ("T", "NO")
PART = BothModes(modes=MODES)
CPU = torch.device("cpu")


def collected(part: BothModes, policy: LanguagePolicy, task: LanguageTask | None = None, **options: Any) -> Any:
    task = task or Toy()
    context = Context(task, policy, Stream(3), max_tokens=task.max_tokens, **options)
    return part.collect(task.problems("train"), context)


def rows(scores: list[float], mode: list[int], lengths: list[int], group: list[int] | None = None) -> TokenBatch:
    """A row for each completion, two tokens of prompt before it, two tokens of mode at its beginning."""
    group = group or [0] * len(scores)
    episodes = []
    for m, n, g in zip(mode, lengths, group):
        asked = Segment("user", "?", [5, 6], [0, 0], [0.0, 0.0])
        said = Segment("assistant", "", [7] * n, [1] * n, [-1.0] * n)
        episodes.append(Episode(Problem(f"p{g}", "?"), [asked, said], g, info={"mode": m, "mode_tokens": 2}))
    return to_batch(episodes, 0, 1.0, CPU).replace(scores=torch.tensor(scores))


# Credit


def test_with_the_population_deviation_within_is_the_same_over_all_or_inside_of_each_mode() -> None:
    """Both have mean 2 / N: identity 1 of the row, for several N."""
    draw = torch.Generator().manual_seed(0)
    for size in (4, 6, 8):
        group, mode = torch.arange(3).repeat_interleave(size), torch.tensor(([0] * (size // 2) + [1] * (size // 2)) * 3)
        scores, length = torch.rand(3 * size, generator=draw), torch.randint(1, 9, (3 * size,), generator=draw)
        best = within_modes(scores, mode, length, group)
        batch = rows(scores.tolist(), mode.tolist(), [3] * 3 * size, group.tolist())
        inside = batch.replace(group=2 * group + mode)
        torch.testing.assert_close(EXACT.of_scores(batch, best), EXACT.of_scores(inside, best), rtol=0, atol=1e-6)
        assert best.view(3, 2, -1).sum(-1).tolist() == [[1.0, 1.0]] * 3
        high, low = math.sqrt((size - 2) / 2), -math.sqrt(2 / (size - 2))
        found = EXACT.of_scores(batch, best)
        torch.testing.assert_close(found, torch.where(best == 1, high, low), rtol=0, atol=1e-6)


def test_of_four_completions_both_terms_are_plus_or_minus_one() -> None:
    batch = rows([0.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [5, 4, 3, 4])
    credit = BetweenAndWithin(of=EXACT)(batch)
    within, between = [-1, 1, 1, -1], [1, 1, -1, -1]
    for i in range(4):
        n = int(batch.action_counts[i])
        assert credit[i, 2 : 2 + n].tolist() == pytest.approx([within[i] + between[i]] * 2 + [within[i]] * (n - 2))
        assert not credit[i, :2].any() and not credit[i, 2 + n :].any()


def test_without_alpha_the_mode_has_the_credit_of_its_completion_alone() -> None:
    batch = rows([0.0, 1.0, 1.0, 1.0], [0, 0, 1, 1], [5, 4, 3, 4])
    credit = BetweenAndWithin(of=EXACT, alpha=0.0)(batch)
    best = within_modes(batch.scores, torch.tensor([0, 0, 1, 1]), batch.action_counts, batch.group)
    torch.testing.assert_close(credit, EXACT.of_scores(batch, best)[:, None] * batch.action_mask)
    once, thrice = (BetweenAndWithin(of=EXACT, alpha=a)(batch) for a in (1.0, 3.0))
    torch.testing.assert_close(thrice - credit, 3 * (once - credit))


@pytest.mark.parametrize(("margin", "winner"), [(math.inf, DIRECT), (-math.inf, THINK)])
def test_a_margin_without_bound_lets_one_mode_win_always(margin: float, winner: int) -> None:
    draw, mode = torch.Generator().manual_seed(1), torch.tensor([0, 0, 1, 1] * 50)
    scores, group = torch.rand(200, generator=draw), torch.arange(50).repeat_interleave(4)
    assert torch.equal(between_modes(scores, mode, group, margin), (mode == winner).float())


def test_thinking_wins_only_by_more_than_the_margin() -> None:
    mode, group = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.long)
    for think, margin, won in [(0.75, 0.2, 1.0), (0.5, 0.2, 0.0), (1.0, 0.5, 0.0), (0.75, 0.0, 1.0), (0.5, 0.0, 0.0)]:
        found = between_modes(torch.tensor([think, think, 0.0, 1.0]), mode, group, margin)
        assert found.tolist() == [won, won, 1 - won, 1 - won], (think, margin)


def test_a_mode_that_lost_its_completions_is_not_compared() -> None:
    batch = rows([1.0, 0.0, 0.0], [0, 0, 0], [4, 4, 4])
    assert not between_modes(batch.scores, torch.zeros(3, dtype=torch.long), batch.group, 0.2).any()
    credit = BetweenAndWithin(of=EXACT)(batch)
    assert credit[:, 2].tolist() == credit[:, 4].tolist()


def test_of_equally_good_completions_the_shorter_one_is_best_then_the_first() -> None:
    mode, group = torch.tensor([0, 0, 0, 1, 1, 1]), torch.zeros(6, dtype=torch.long)
    scores, length = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0]), torch.tensor([1, 9, 7, 4, 3, 3])
    assert within_modes(scores, mode, length, group).tolist() == [0, 0, 1, 0, 1, 0]
    batch = rows(scores.tolist(), mode.tolist(), (length + 2).tolist())
    first = BetweenAndWithin(of=EXACT, alpha=0.0, shorter=False)(batch)[:, 2] > 0
    assert first.tolist() == [False, True, False, True, False, False]


def test_credit_may_be_rloos() -> None:
    batch = rows([0.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [5, 4, 3, 4])
    credit = BetweenAndWithin(of=GroupAdvantage(centre=LeaveOneOut(), scale=None))(batch)
    assert credit[:, 4].tolist() == pytest.approx([-2 / 3, 2 / 3, 2 / 3, -2 / 3])
    assert (credit[:, 2] - credit[:, 4]).tolist() == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3])


def test_an_episode_of_two_rows_counts_once_and_says_its_mode_once() -> None:
    batch = rows([0.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [6, 4, 3, 4])
    part, index = BetweenAndWithin(of=EXACT), torch.tensor([0, 0, 1, 2, 3])
    cut, mask = batch.rows(index), batch.action_mask[index].clone()
    mask[0, 5:], mask[1, :5] = False, False
    found, whole = part(cut.replace(action_mask=mask)), part(batch)
    torch.testing.assert_close(found[0] + found[1], whole[0])
    torch.testing.assert_close(found[2:], whole[1:])


# Completions


def test_half_of_the_completions_begin_with_each_mode() -> None:
    policy = random_policy()
    episodes = collected(BothModes(size=6, modes=MODES), policy)
    assert [e.group for e in episodes] == [g for g in range(3) for _ in range(6)]
    for i, e in enumerate(episodes):
        mode = THINK if i % 6 < 3 else DIRECT
        assert e.info["mode"] == mode and e.info["mode_tokens"] == len(MODES[mode])
        assert e.completion.startswith(MODES[mode])
        assert e.turns[0].tokens[: len(MODES[mode])] == policy.encode(MODES[mode])
        assert e.action_count == len(e.turns[0].tokens) > len(MODES[mode])


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_behaviour_of_a_forced_token_is_the_policys_own(temperature: float) -> None:
    """Against the model's own logits over the whole text, token by token, for texts of one token and of two."""
    policy = random_policy(dtype=torch.float64)
    for e in collected(BothModes(modes=MODES, temperature=temperature), policy):
        logits = policy.model(torch.tensor([e.tokens])).logits[0].double() / temperature
        mask = [m for s in e.segments for m in s.action_mask]
        said = [p for s in e.segments for p in s.behaviour_logp]
        assert sum(mask) == e.action_count
        for place in (i for i, m in enumerate(mask) if m):
            expected = float(logits[place - 1].log_softmax(-1)[e.tokens[place]].detach())
            assert said[place] == pytest.approx(expected, abs=1e-9), "not 0, and not another token's"
        assert min(said[mask.index(1) : mask.index(1) + e.info["mode_tokens"]]) < -0.1


def test_what_follows_a_mode_is_drawn_as_if_the_mode_had_been_drawn() -> None:
    """Its numbers are those behind the mode's; and it does not depend on which others there are."""
    policy = random_policy()
    whole = collected(PART, policy)
    one = collected(PART, policy, Toy(prompts=("one:",)))
    assert [e.tokens for e in whole[:4]] == [e.tokens for e in one]
    assert len({tuple(e.tokens) for e in whole}) == len(whole)


def test_a_limit_counts_the_mode() -> None:
    episodes = collected(PART, random_policy(), Toy(max_tokens=5))
    assert max(e.action_count for e in episodes) == 5
    with pytest.raises(ConfigError, match="no room for an answer after a mode of 2"):
        collected(PART, random_policy(), Toy(max_tokens=2))


class Heard(Toy):
    """Pays for what was said in the first mode."""

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion.startswith("T"))


def test_the_task_hears_the_mode() -> None:
    assert [e.reward for e in collected(PART, random_policy(), Heard())] == [1, 1, 0, 0] * 3


def test_what_the_sampler_records_of_tokens_is_there_of_the_modes_too() -> None:
    policy = random_policy(dtype=torch.float64)
    episodes = collected(PART, policy, record=frozenset({Need.ENTROPY, Need.HIDDEN}))
    batch = to_batch(episodes, 0, 1.0, CPU)
    entropy, hidden = recorded_entropies(batch), recorded_hidden(batch)
    now = policy.evaluate(batch, {"entropy", "hidden"})
    assert entropy is not None and hidden is not None and now.entropy is not None and now.hidden is not None
    torch.testing.assert_close(entropy.double(), now.entropy.detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden, now.hidden.detach(), atol=1e-9, rtol=0)


def test_a_prompt_that_fills_the_context_loses_its_completions_and_no_others() -> None:
    policy = random_policy(context=16)
    episodes = collected(PART, policy, Toy(prompts=("a" * 14, "one:")))
    assert [e.action_count > 0 for e in episodes] == [True] * 2 + [False] * 2 + [True] * 4
    assert all(e.turns[0].behaviour_logp[0] < 0 for e in episodes if e.action_count)


@pytest.mark.parametrize("modes", [("T", ""), ("T", "T"), ("<think>", "<think>!"), ("NO", "N")])
def test_modes_that_cannot_be_told_apart_are_refused(modes: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="must be told apart"):
        collected(BothModes(modes=modes), random_policy())


def test_an_odd_number_of_completions_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be even"):
        BothModes(size=5)


def test_company_that_has_no_modes_is_refused() -> None:
    with pytest.raises(ConfigError, match="set experience=both-modes"):
        check_fit(hgpo.replace(experience=Groups()))
    with pytest.raises(ConfigError, match="leave out the second look"):
        check_fit(hgpo.replace(second_look=LookAgain(shows=AttemptAndCritique())))


# In the loop


def small(**changes: Any) -> Any:
    return hgpo.replace(**{"problems": 3, "experience": PART, **changes})


@pytest.mark.slow
def test_a_forced_token_is_trained_from_pi_old() -> None:
    """At the policy that sampled every ratio is 1, the mode's too, however unlikely the mode was."""
    loop = make_loop(small(), Heard())
    seen: list[tuple[TokenBatch, Tensor]] = []
    learn = loop.trainer.learn

    def watched(players: Any, rows: dict[str, TokenBatch], *given: Any) -> Any:
        seen.append((rows["policy"], loop.policy.evaluate(rows["policy"]).logp.detach()))
        return learn(players, rows, *given)

    loop.trainer.learn = watched  # type: ignore[method-assign]
    for _ in range(3):
        metrics = loop.step().metrics
    for batch, logp in seen:  # of the version that sampled, in every step
        torch.testing.assert_close(batch.behaviour_logp, logp * batch.action_mask, atol=2e-5, rtol=0)
        assert bool(batch.action_mask[:, [len(e.segments[0].tokens) for e in batch.episodes]].diagonal().all())
    assert metrics["behaviour_kl"] < 1e-8 and metrics["clip_fraction"] == 0


@pytest.mark.parametrize("wrong", [0.0, -30.0])
def test_a_behaviour_that_is_not_the_policys_stops_the_run(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the token had been certain, or were that of another policy."""
    loop = make_loop(small(), Heard())
    collect = BothModes.collect

    def spoiled(part: BothModes, problems: Any, context: Context) -> list[Episode]:
        episodes = collect(part, problems, context)
        for e in episodes:
            e.turns[0].behaviour_logp[0] = wrong
        return episodes

    monkeypatch.setattr(BothModes, "collect", spoiled)
    with pytest.raises(InvariantError, match="log-probabilities"):
        loop.step()


class Choosing(LanguageTask):
    """Two kinds of problem: one that is solved by thinking alone, one that both modes solve; a letter more is no harm.

    Nothing but the mode decides, so what is learned is the choice.
    """

    id: ClassVar[str] = "choosing"
    max_tokens: ClassVar[int] = 4

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{name}", f"{name}:") for name in ("hard", "easy")]

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion.startswith("T") or problem.prompt == "easy:")


def odds(policy: LanguagePolicy) -> list[float]:
    """log pi(think) - log pi(not) of both problems."""
    first = [policy.encode(m)[0] for m in MODES]
    found = []
    for problem in Choosing().problems("test"):
        logits = policy.model(torch.tensor([policy.encode(str(problem.prompt))])).logits[0, -1]
        found.append(float((logits[first[0]] - logits[first[1]]).detach()))
    return found


@pytest.mark.slow
def test_the_choice_of_a_mode_is_learned_by_what_the_modes_are_worth() -> None:
    policy = random_policy()
    optimizer = hgpo.optimizer.replace(lr=1e-2)  # type: ignore[union-attr]
    loop = make_loop(small(problems=2, optimizer=optimizer), Choosing(), policy, steps=20)
    before = odds(policy)
    for _ in range(20):
        loop.step()
    hard, easy = (after - b for after, b in zip(odds(policy), before))
    assert hard > 1 and easy < -1


def test_without_alpha_the_choice_is_not_learned() -> None:
    """What is left on the mode's token sums to nothing within each mode, up to what lengths weigh."""
    policy = random_policy()
    optimizer = hgpo.optimizer.replace(lr=1e-2)  # type: ignore[union-attr]
    credit = BetweenAndWithin(alpha=0.0)
    loop = make_loop(small(problems=2, optimizer=optimizer, advantages=credit), Choosing(), policy, steps=5)
    batch = loop._assess(loop.method, 2, 0, Stream(0))["policy"]
    found = credit(batch)
    first = found[torch.arange(len(batch)), batch.action_mask.int().argmax(1)]
    assert first.view(2, 2, 2).sum(-1).abs().max() < 1e-5


class Weighed(TokenWeights):
    """A factor that needs the entropy of what was sampled."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ENTROPY})

    def __call__(self, batch: TokenBatch, policy: Any) -> Tensor:
        assert batch.entropy is not None, "the sampler's record is whole"
        return torch.ones_like(batch.entropy)


@pytest.mark.slow
def test_it_stacks_with_what_reads_the_samplers_record_and_with_dapos_parts() -> None:
    loop = make_loop(small(token_weights=(Weighed(),)), Heard())
    assert loop.step().metrics["gradient_norm"] > 0
    loop = make_loop(small(filters=(InformativeGroups(),)), Heard())
    assert loop.step().metrics["gradient_norm"] > 0


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Any) -> None:
    whole = make_loop(small(reference=dataclasses.replace(hgpo.reference, every=2)), Heard(), steps=4)
    for _ in range(2):
        whole.step()
    whole.save(tmp_path)
    for _ in range(2):
        whole.step()
    again = make_loop(small(reference=dataclasses.replace(hgpo.reference, every=2)), Heard(), steps=4)
    again.load(tmp_path)
    for _ in range(2):
        again.step()
    assert fingerprint(again.policy.parameters()) == fingerprint(whole.policy.parameters())


@pytest.mark.slow
def test_the_reference_moves_when_it_is_told_to() -> None:
    loop = make_loop(small(reference=dataclasses.replace(hgpo.reference, every=2)), Heard(), steps=4)
    weights = [fingerprint(loop.policy.reference.parameters())]  # type: ignore[union-attr]
    for _ in range(3):
        loop.step()
        weights.append(fingerprint(loop.policy.reference.parameters()))  # type: ignore[union-attr]
    assert weights[0] == weights[1] != weights[2] == weights[3]


def test_grpo_with_both_modes_is_grpo_on_forced_completions() -> None:
    """The experience stands alone: with one kind of credit for all tokens the mode is a token like others."""
    loop = make_loop(grpo.replace(problems=3, experience=PART), Heard())
    assert loop.step().metrics["gradient_norm"] > 0
    assert module.hgpo.experience == BothModes(size=4)


# Its claim


def test_the_experiment_measures_what_the_claim_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: Job) -> Run:
        worth = {"hgpo": 0.9, "wide": 0.8, "grpo": 0.6, "rft": 0.5, "start": 0.4}[job.label]
        figures = ("pass@1", "hybrid accuracy", "accuracy per token", "thinking", "thinking by difficulty")
        return Run(job.label, job.seed, [{"rows": 64.0}] * job.steps, [], dict.fromkeys(figures, worth))

    def started(task: Any, *, steps: int) -> Any:
        assert (task.id, steps) == (bed.task, bed.start.steps) and bed.start.set["optimizer.lr"] == 1e-3
        return nullcontext(SimpleNamespace(folder="first"))

    bed: Any = load_bed("language/hybrid-sums")
    monkeypatch.setattr(experiment, "run", run)
    monkeypatch.setattr(experiment, "spread", lambda function, jobs: [function(job) for job in jobs])
    monkeypatch.setattr(experiment, "started", started)
    found = experiment.experiment([3, 4])
    claim = hgpo.claim
    assert claim is not None and {m.name for m in claim.measures} == set(found[0].arm) == set(found[0].baseline)
    assert [p.seed for p in found] == [3, 4]
    assert (found[0].arm["accuracy"], found[0].baseline["accuracy"], found[0].start["accuracy"]) == (0.9, 0.6, 0.4)
    assert (
        found[0].arm["thinking with a wide margin"] == 0.8 and found[0].baseline["thinking with a wide margin"] == 0.9
    )
    assert found[0].budgets["completions"] == (64.0 * experiment.STEPS, 64.0 * experiment.STEPS)


def test_arms_differ_in_what_they_are_named_for() -> None:
    arms = experiment.arms()
    assert {m.experience.size * m.problems for m in arms.values()} == {128}  # type: ignore[union-attr]
    assert arms["wide"].diff(arms["hgpo"]).keys() == {"advantages.margin"}
    for method in arms.values():
        check_fit(method, experiment.TASK)


@pytest.mark.slow
def test_figures_are_those_of_free_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "PROBLEMS", 12)
    policy = random_policy()
    found = experiment.figures(SimpleNamespace(policy=policy))
    assert 0 <= found["hybrid accuracy"] <= 1 and found["accuracy per token"] >= 0
    assert -1 <= found["thinking by difficulty"] <= 1
