"""Directional stimulus prompting: what is masked and by whom, what hints are paid, and what the black box is asked."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import rewards_to_go
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.rows import concatenate, to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experiments.preference.directional_stimulus_prompting import experiment
from etude.loops.whole_batch import values_all
from etude.methods.preference.directional_stimulus_prompting.masked import GentleKLPenalty, MaskedGroups, Nucleus
from etude.methods.preference.directional_stimulus_prompting.stimuli import HintlessBaseline, KeywordReward
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.tasks.language.hinted_writing import HintedWriting
from language_toys import Toy, draws, make_loop, random_policy, random_prompts

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS, NAME = 3, "directional-stimulus-prompting"
DOUBLE = torch.float64


# What is expected of all hints of two words, by enumeration


class Hints:
    """All hints of two words [9] of a softmax policy, each with what a black box makes of it."""

    def __init__(self, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.first, self.second, *others = (
            torch.randn(*shape, generator=random, dtype=DOUBLE)
            for shape in ((WORDS,), (WORDS, WORDS), (WORDS,), (WORDS, WORDS), (WORDS * WORDS,))
        )
        self.reference, self.worth = others[:2], others[2]
        self.words = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
        self.policy = [self.first.requires_grad_(), self.second.requires_grad_()]

    def said(self, table: list[Tensor]) -> Tensor:
        """Log-probabilities [9, 2] of the words."""
        one, two = self.words.T
        return torch.stack([table[0].log_softmax(0)[one], table[1].log_softmax(1)[one, two]], 1)

    def gradient(self, worth: Tensor, coefficient: float | None, table: list[Tensor] | None = None) -> Tensor:
        """The expected gradient of PPO's surrogate, from fresh samples that are paid `worth` [9] and the penalty."""
        table = table or self.policy
        logp, mask = self.said(table), torch.ones(9, 2, dtype=torch.bool)
        paid = torch.stack([torch.zeros_like(worth), worth], 1)
        batch: Any = SimpleNamespace(behaviour_logp=logp.detach(), reference_logp=self.said(self.reference))
        batch.action_mask, batch.allowed = mask, None
        if coefficient:
            paid = paid + GentleKLPenalty(coefficient=coefficient, target=1.0).bind().shape(batch)
        batch.advantages = rewards_to_go(paid, mask, 1.0)
        loss = (ClippedSurrogate()(batch, TokenLogProbs(logp)) * logp.detach().sum(1, keepdim=True).exp()).sum()
        return -torch.cat([g.flatten() for g in torch.autograd.grad(loss, table)])


def test_a_black_box_that_ignores_hints_teaches_nothing_and_the_penalty_leads_back() -> None:
    world, alike = Hints(), torch.full((9,), 0.7, dtype=DOUBLE)
    assert world.gradient(alike, None).abs().max() < 1e-15
    logp, reference = world.said(world.policy), world.said(world.reference)
    divergence = (logp.sum(1).exp() * (logp - reference).sum(1)).sum()
    wanted = -0.05 * torch.cat([g.flatten() for g in torch.autograd.grad(divergence, world.policy)])
    found = world.gradient(alike, 0.05)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-14) and wanted.abs().max() > 1e-3
    stays = [x.clone().requires_grad_() for x in world.reference]
    assert world.gradient(alike, 0.05, stays).abs().max() < 1e-15
    assert world.gradient(world.worth, None).abs().max() > 0.01


def test_an_improvement_over_no_hints_has_ten_times_the_gradient() -> None:
    world = Hints(seed=1)
    task = SimpleNamespace(expect=lambda asked: None, score=lambda problem, said: 0.31)
    episodes = [Episode(Problem("p", "?"), [])] * 9
    taken = HintlessBaseline(weight=10.0).score(episodes, SimpleNamespace(task=task))  # type: ignore[arg-type]
    improved = 10 * world.worth + torch.tensor(taken, dtype=DOUBLE)
    assert torch.allclose(improved, 10 * (world.worth - 0.31), rtol=0, atol=1e-14)
    assert torch.allclose(world.gradient(improved, None), 10 * world.gradient(world.worth, None), rtol=0, atol=1e-13)


# The coefficient


def after(away: list[float], coefficient: float = 0.005, target: float = 0.5) -> float:
    part = GentleKLPenalty(coefficient=coefficient, target=target).bind()
    rows = SimpleNamespace(behaviour_logp=torch.tensor([away], dtype=DOUBLE), action_mask=torch.tensor([[True] * 2]))
    rows.reference_logp = torch.zeros(1, 2, dtype=DOUBLE)
    found = part.shape(rows)  # type: ignore[arg-type]
    assert torch.equal(found, -coefficient * rows.behaviour_logp)  # this batch pays what was said before it
    return float(part.state["coefficient"])


def test_the_coefficient_stays_on_target_and_moves_by_a_fiftieth_at_most() -> None:
    assert after([0.25, 0.75]) == 0.005
    assert after([50.0, 50.0]) == pytest.approx(0.005 * 1.02, abs=1e-15)
    assert after([-50.0, 0.0]) == pytest.approx(0.005 * 0.98, abs=1e-15)
    assert after([0.55, 0.55], 0.01) == pytest.approx(0.01 * 1.01, abs=1e-15)


# Sampling within a set


def context(policy: Any, step: int = 0, task: Any = None) -> Context:
    return Context(task or Toy(), policy, Stream(3).split(step), step, max_tokens=8)


@pytest.fixture(scope="module")
def masked() -> tuple[LanguagePolicy, LanguagePolicy, TokenBatch]:
    """A policy, the copy that its tokens were drawn within, and rows."""
    policy, lagging = random_policy(dtype=DOUBLE, shadow=False), random_policy(dtype=DOUBLE, seed=4, shadow=False)
    part = MaskedGroups(size=6, mask=0.4).bind()
    part.state.update(taken=0, weights={k: p.detach() for k, p in lagging.masters.parameters.items()})
    problems = Toy().problems("train")
    return policy, lagging, to_batch(part.collect(problems, context(policy)), 0, 1.0, policy.device)


def sets(lagging: LanguagePolicy, batch: TokenBatch, mass: float) -> Tensor:
    """[B, T, V] worked out from the whole rows, one token after the other."""
    logits = lagging.model(input_ids=batch.tokens, attention_mask=batch.attention_mask.long()).logits.detach()
    found = torch.ones(*batch.tokens.shape, logits.shape[-1], dtype=torch.bool)
    for row, place in batch.action_mask.nonzero().tolist():
        probs, inside, total = logits[row, place - 1].softmax(0), set(lagging.end_ids), 0.0
        for token in probs.argsort(descending=True).tolist():
            if total >= mass:
                break
            inside.add(token)
            total += float(probs[token])
        found[row, place] = torch.tensor([v in inside for v in range(len(probs))])
    return found


def raw(policy: LanguagePolicy, batch: TokenBatch) -> Tensor:
    """[B, T, V] of the whole distribution that each token was predicted by."""
    logits = policy.model(input_ids=batch.tokens, attention_mask=batch.attention_mask.long()).logits
    return torch.nn.functional.pad(logits.log_softmax(-1)[:, :-1], (0, 0, 1, 0))


@pytest.mark.slow
def test_tokens_come_from_the_set_of_the_copy(masked: Any) -> None:
    _, lagging, batch = masked
    wanted = sets(lagging, batch, 0.4)
    assert torch.equal(batch.allowed[batch.action_mask], wanted[batch.action_mask])
    inside = wanted.gather(-1, batch.tokens[..., None])[..., 0]
    assert bool(inside[batch.action_mask].all())
    size = wanted[batch.action_mask].sum(-1).float()
    assert size.min() >= 2 and size.max() < 200 and len(set(size.tolist())) > 5


@pytest.mark.slow
def test_log_probabilities_are_those_within_the_set_in_sampling_and_in_training(masked: Any) -> None:
    policy, _, batch = masked
    mask, whole = batch.action_mask, raw(policy, batch)
    within = whole - whole.masked_fill(~batch.allowed, -torch.inf).logsumexp(-1, keepdim=True)
    wanted = within.gather(-1, batch.tokens[..., None])[..., 0].detach()
    said = policy.evaluate(batch, {"entropy"})
    assert torch.allclose(said.logp[mask], wanted[mask], rtol=0, atol=1e-12)
    assert torch.allclose(batch.behaviour_logp[mask].double(), wanted[mask], rtol=0, atol=1e-6)  # kept in float32
    p = within.exp().masked_fill(~batch.allowed, 0.0)
    entropy = -(p * within.masked_fill(~batch.allowed, 0.0)).sum(-1).detach()
    assert said.entropy is not None and torch.allclose(said.entropy[mask], entropy[mask], rtol=0, atol=1e-12)
    batch.advantages = torch.ones_like(batch.rewards, dtype=DOUBLE)
    fresh = batch.replace(behaviour_logp=wanted * mask)
    loss = ClippedSurrogate()(fresh, TokenLogProbs(said.logp))[mask]
    assert torch.allclose(loss, -torch.ones_like(loss), rtol=0, atol=1e-12)  # ratios are 1


@pytest.mark.slow
def test_the_gradient_is_that_of_the_distribution_within_the_set(masked: Any) -> None:
    policy, _, batch = masked
    parameters = policy.parameters()
    own = torch.autograd.grad(policy.evaluate(batch).logp.sum(), parameters)
    whole = raw(policy, batch)
    within = whole - whole.masked_fill(~batch.allowed, -torch.inf).logsumexp(-1, keepdim=True)
    wanted = within.gather(-1, batch.tokens[..., None])[..., 0]
    for mine, theirs in zip(own, torch.autograd.grad(wanted[batch.action_mask].sum(), parameters)):
        assert (mine - theirs).abs().max() <= 1e-6 * theirs.abs().max()  # norms are in float32


@pytest.mark.slow
def test_the_divergence_does_not_see_the_set(masked: Any) -> None:
    policy, lagging, batch = masked
    policy = copy.copy(policy)
    policy.weights.reference = lagging.model
    mask = batch.action_mask
    batch = batch.replace(reference_logp=policy.reference_logp(batch), episodes=[])
    mine, theirs = (raw(p, batch).gather(-1, batch.tokens[..., None])[..., 0].detach() for p in (policy, lagging))
    assert torch.allclose(batch.reference_logp[mask], theirs[mask], rtol=0, atol=1e-12)
    found = GentleKLPenalty(coefficient=0.5).bind().shape_in(batch, context(policy))
    assert torch.allclose(found[mask].double(), (-0.5 * (mine - theirs))[mask], rtol=0, atol=1e-6)
    assert not bool(found[~mask].any()) and (batch.behaviour_logp[mask] - mine[mask]).min() > 0.1


@pytest.mark.slow
def test_what_may_be_drawn_stays_with_rows_however_they_are_sampled_and_moved(masked: Any) -> None:
    policy, lagging, batch = masked
    prompts = random_prompts(5, low=2, high=9)
    how = Sampling(max_tokens=6, within=Nucleus(lagging, 0.4))
    together = policy.generate(prompts, how, draws(5))
    apart = [policy.generate([p], how, [d])[0] for p, d in zip(prompts, draws(5))]
    assert [c.tokens for c in together] == [c.tokens for c in apart]
    for one, two in zip(together, apart):
        assert one.allowed is not None and two.allowed is not None and torch.equal(one.allowed, two.allowed)
        assert len(one.allowed) == len(one.tokens)
    both = concatenate([batch.rows(torch.tensor([0])), batch.rows(torch.tensor([3, 1]), trim=True)])
    assert both.allowed is not None and torch.equal(
        both.allowed[1, : batch.lengths[3]], batch.allowed[3, : batch.lengths[3]]
    )
    assert values_all(policy, batch, 64)[0].shape == batch.tokens.shape
    plain = Episode(
        Problem("p", "?"), [Segment("user", "", [5], [0], [0.0]), Segment("assistant", "", [6], [1], [0.0])]
    )
    mixed = to_batch([batch.episodes[0], plain], 0, 1.0, policy.device)
    assert mixed.allowed is not None and bool(mixed.allowed[1].all()) and not bool(mixed.allowed[0].all())


def run(steps: int = 2, **changes: Any) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Metrics of some steps but for what was slow, and all weights after them."""
    method: Any = get_method(NAME)
    method = method.replace(problems=2, epochs=2, experience=MaskedGroups(size=2, mask=0.5)).replace(**changes)
    loop = make_loop(method, Toy(), random_policy())
    told = [loop.step().metrics for _ in range(steps)]
    return [{k: v for k, v in m.items() if "second" not in k} for m in told], loop.policy.tensors()


@pytest.mark.slow
def test_with_all_of_the_mass_it_is_ppo_sample_for_sample() -> None:
    plain, own = run(experience=Groups(size=2)), run(experience=MaskedGroups(size=2, mask=1.0))
    assert plain[0] == own[0] and all(torch.equal(v, own[1][k]) for k, v in plain[1].items())
    assert run()[0] != plain[0]


@pytest.mark.slow
def test_the_copy_is_taken_every_so_many_steps_and_is_in_checkpoints(tmp_path: Any) -> None:
    method: Any = get_method(NAME).replace(problems=2, epochs=1, experience=MaskedGroups(size=2, mask=0.5, every=2))
    loop = make_loop(method, Toy(), random_policy(), steps=4)
    taken, weights = [], []
    for step in range(4):
        weights.append(next(iter(loop.policy.masters.parameters.values())).detach().clone())
        loop.step()
        state = loop.method.experience.state
        taken.append(state["taken"])
        assert torch.equal(next(iter(state["weights"].values())), weights[taken[-1]])
        if step == 2:
            loop.save(tmp_path)
    assert taken == [0, 0, 2, 2]
    last = loop.policy.tensors()
    again = make_loop(method, Toy(), random_policy(), steps=4)
    again.load(tmp_path)
    again.step()
    assert all(torch.equal(v, last[k]) for k, v in again.policy.tensors().items())


def test_truncating_the_policy_s_own_distribution_is_refused() -> None:
    method: Any = get_method(NAME)
    with pytest.raises(ConfigError, match="would be biased"):
        method.replace(experience=MaskedGroups(top_k=50)).check()


# What hints are paid


def by_hand(text: str, reference: str, avoided: tuple[str, ...] = ()) -> list[float]:
    """As the release pays each separator of a text, keyword by keyword."""
    paid, keywords = [], text.lower().split(";")[:-1]
    for n, keyword in enumerate(k.strip() for k in keywords):
        history = ";".join(keywords[:n])
        bad = keyword == "" or keyword in avoided or keyword in history or keyword not in reference.lower()
        paid.append(-0.2 if bad else 1.0)
    return paid


@pytest.mark.parametrize("text", ["a;b;a;", ";; c ;d", "AB;b;ab;", "e", "the;a;"])
def test_keywords_are_paid_where_they_are_closed(text: str) -> None:
    part = KeywordReward(avoided=("the",))
    found = part.paid(list(text), "the Bca ab")
    assert [x for x, c in zip(found, text) if c == ";"] == by_hand(text, "the Bca ab", ("the",))
    assert not any(x for x, c in zip(found, text) if c != ";")
    pieces = ["".join(g) for g in itertools.batched(text, 2)] if hasattr(itertools, "batched") else [text]
    assert sum(part.paid(pieces, "the Bca ab")) == pytest.approx(sum(found), abs=1e-12)
    with pytest.raises(ConfigError, match="closes a keyword"):
        KeywordReward(separator="")


@pytest.mark.slow
def test_it_learns_which_hints_pay_on_its_task() -> None:
    """A policy that says letters at random learns to close words of the prompt."""
    policy = LanguagePolicy.load("blank:1x16x2", device="cpu")
    method: Any = get_method(NAME).replace(problems=4, minibatches=1)
    loop = make_loop(method, HintedWriting(size=4), policy, steps=1)
    report = loop.step()
    assert {"reward/task-reward", "reward/keyword-reward", "reward/gentle-kl-penalty"} <= {*report.metrics}
    with pytest.raises(ConfigError, match="saying nothing"):
        from etude.core.fit import check
        from etude.tasks import resolve_task

        check(method.replace(rewards=(*method.rewards, HintlessBaseline())), resolve_task("attr-20q"))


@pytest.mark.slow
def test_the_experiment_measures_what_the_claim_names(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"MODEL": "blank:1x16x2", "TAUGHT": 1, "LABELLED": 1, "STEPS": 1, "TESTED": 10}
    for name, value in {**small, "CHANGES": {"problems": 2}}.items():
        monkeypatch.setattr(f"etude.experiments.preference.directional_stimulus_prompting.{name}", value)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})  # no processes of their own
    (pair,) = experiment([3])
    claim = get_method(NAME).claim
    assert claim is not None and [m.name for m in claim.measures] == [*pair.arm] == [*pair.baseline]
    assert claim.learned_on in pair.start
    assert all(0 <= x <= 1 for x in (*pair.arm.values(), *pair.baseline.values()))
