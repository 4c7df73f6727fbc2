"""PPO with other rewards, critics, references and rows: what each method is without its change, and with it."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.registry import get_method
from etude.evaluation.rank_fit import rank_fit
from etude.evaluation.small_batch import small_tokens
from etude.experience.groups import Groups
from etude.learners.value_model import ValueModel
from etude.methods.preference.pf_ppo import (
    BestOfRanks,
    BestRandomRanks,
    BestWorstRanks,
    EqualRanks,
    RankFilter,
    RankReweighting,
)
from etude.methods.preference.rto import DPOTokenReward
from etude.policies.language import LanguagePolicy
from etude.policies.texts.models import SavedModel
from etude.references.soup import Soup
from etude.rewards.control import NormalizedScores
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import TaskReward
from etude.stages.turns import ByChance, ConstantChance, Interleaved, Like
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Shown(Toy):
    """With a worked answer to each problem."""

    def problems(self, split: str) -> list[Problem]:
        return [Problem(p.id, p.prompt, info={"demonstration": "abc"}) for p in super().problems(split)]


def replaced(name: str, **changes: Any) -> Any:
    return get_method(name).replace(**changes)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguagePolicy, Path]:
    """A toy model whose value head is not zero, and its folder."""
    policy: Any = random_policy(seed=3)
    torch.nn.init.normal_(policy.add_value_head().weight, generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("scorer")
    policy.save(folder)
    return policy, folder


# PPO-max


def test_ppo_max_without_its_measures_is_ppo_rlhf() -> None:
    method, parent = get_method("ppo-max"), get_method("ppo-rlhf")
    judged, _, _, distance = method.rewards
    off = method.replace(
        stages=(), rewards=(judged.replace(weight=0.2), distance.replace(coefficient=0.02)), critic=parent.critic,
        optimizer=method.optimizer.replace(warmup=0.0), problems=32, epochs=2, minibatches=2,
    )  # fmt: skip
    assert off.diff(parent) == {}


def test_a_clip_of_values_changes_no_loss_within_its_band() -> None:
    """Beyond it a value is charged for what the clip left it short of."""
    batch, _ = small_tokens(frozenset({"values"}))  # type: ignore[arg-type]
    moved = 0.3 * torch.randn(batch.values.shape, generator=torch.Generator().manual_seed(1))
    clipped, plain = ValueModel(clip=0.2), ValueModel()
    near = batch.values + moved.clamp(-0.2, 0.2)
    torch.testing.assert_close(clipped.loss(batch, near), plain.loss(batch, near), atol=1e-6, rtol=0)
    far = batch.values + moved
    held = plain.loss(batch, near)
    torch.testing.assert_close(clipped.loss(batch, far), torch.maximum(held, plain.loss(batch, far)), atol=1e-6, rtol=0)
    assert bool((clipped.loss(batch, far) > plain.loss(batch, far) + 1e-4).any())


@pytest.mark.slow
def test_a_critic_can_begin_as_a_reward_model(scorer: tuple[LanguagePolicy, Path]) -> None:
    """With its value head; another model's tokens are refused."""
    judge, folder = scorer
    policy: Any = random_policy(seed=0)
    batch = sampled_rows(policy, policy)
    network = ValueModel(model=str(folder)).build(policy)
    said = judge.evaluate(batch, {"values"}).values
    torch.testing.assert_close(network.values(batch), said)
    assert not torch.allclose(said[batch.action_mask], torch.zeros(()))
    policy.tokenizer = copy.deepcopy(policy.tokenizer)
    policy.tokenizer.add_tokens(["<other>"])
    with pytest.raises(ConfigError, match="other tokens than the policy"):
        ValueModel(model=str(folder)).build(policy)


@pytest.mark.slow
def test_a_critic_waits_in_steps_between_that_have_none(scorer: tuple[LanguagePolicy, Path]) -> None:
    """All steps are of supervised learning: the policy moves, the network beside it stays."""
    stages = (Interleaved(turn=Like(id="sft"), chooser=ByChance(chance=ConstantChance(p=1.0))),)
    rewards = (TaskReward(), NormalizedScores())
    loop = make_loop(replaced("ppo-max", stages=stages, rewards=rewards, problems=2), Shown(), random_policy(seed=0))
    loop.updater.learners.critic.age = 5  # so that nobody waits for it
    before = {k: v.clone() for k, v in loop.updater.learners.tensors().items()}
    start = [p.clone() for p in loop.policy.parameters()]
    metrics = loop.step().metrics
    assert metrics["other"] == 1 and not any(k.startswith("value") for k in metrics)
    after = loop.updater.learners.tensors()
    assert all(torch.equal(v, before[k]) for k, v in after.items() if k != "learners.critic.age")
    assert any(not torch.equal(p, q) for p, q in zip(start, loop.policy.parameters()))


# RTO


def sampled_rows(policy: Any, reference: Any) -> TokenBatch:
    """Completions of a toy policy, and what another one says of them."""
    loop = make_loop(get_method("ppo").replace(problems=2), Toy(), policy)
    batch = loop.gatherer.gather(loop.method, 2, loop.context(loop.method, loop.stream))
    batch.reference_logp = reference.evaluate(batch).logp.detach()
    return batch


@pytest.fixture(scope="module")
def rows(scorer: tuple[LanguagePolicy, Path]) -> TokenBatch:
    return sampled_rows(random_policy(seed=0), random_policy(seed=1))


def test_token_rewards_add_up_to_the_implicit_reward(scorer: tuple[LanguagePolicy, Path], rows: TokenBatch) -> None:
    """Of the saved model, row by row; with the clip each token is within it, and some are cut."""
    judge, folder = scorer
    context: Any = SimpleNamespace(policy=random_policy(seed=0))
    part = DPOTokenReward(whose=SavedModel(model=str(folder)), coefficient=0.3, clip=None).bind()
    paid = part.shape_in(rows, context)
    of_sequences = 0.3 * (judge.evaluate(rows).logp.detach() - rows.reference_logp).sum(1)
    torch.testing.assert_close(paid.sum(1), of_sequences, atol=1e-5, rtol=1e-5)
    assert bool((paid[~rows.action_mask] == 0).all()) and float(paid.abs().max()) > 0.05
    cut = part.replace(clip=0.05).bind().shape_in(rows, context)
    torch.testing.assert_close(cut, paid.clamp(-0.05, 0.05))
    assert not part.replace(coefficient=0.0).bind().shape_in(rows, context).any()  # which is PPO


def test_what_dpo_trained_is_the_optimum_of_the_token_terms_alone(rows: TokenBatch) -> None:
    """With beta_1 = beta_2 and no reward model, each token that pi_dpo samples pays for its own distance exactly."""
    batch = rows.replace(behaviour_logp=rows.behaviour_logp + 0.0)
    token = DPOTokenReward(coefficient=0.05, clip=None).paid(batch.behaviour_logp, batch)
    assert not (token + KLPenalty(coefficient=0.05).shape(batch)).any()


def test_of_an_exact_optimum_token_rewards_are_differences_of_soft_values() -> None:
    """Two tokens of three: V(s) = beta log sum_a ref(a | s) exp(V(s, a) / beta), pi ~ ref exp(V / beta)."""
    random, beta = torch.Generator().manual_seed(0), 0.7
    reward = torch.randn(3, 3, generator=random, dtype=torch.float64)
    first, second = (torch.randn(*n, generator=random, dtype=torch.float64).log_softmax(-1) for n in ((3,), (3, 3)))
    v = beta * (second + reward / beta).logsumexp(-1)
    root = beta * (first + v / beta).logsumexp(-1)
    best = (first + (v - root) / beta)[:, None].expand(3, 3), second + (reward - v[:, None]) / beta
    logp, reference = (torch.stack(pair, -1).view(9, 2) for pair in (best, (first[:, None].expand(3, 3), second)))
    assert float(logp.sum(1).exp().sum()) == pytest.approx(1)
    batch: Any = SimpleNamespace(reference_logp=reference, action_mask=torch.ones(9, 2, dtype=torch.bool))
    paid = DPOTokenReward(coefficient=beta, clip=None).paid(logp, batch)
    torch.testing.assert_close(paid[:, 0].view(3, 3), (v - root)[:, None].expand(3, 3))  # V(s_1) - V(s_0)
    torch.testing.assert_close(paid.sum(1).view(3, 3), reward - root)  # the rest is what the sequence is worth


# SALSA


def trained(name: str, folder: Path, **changes: Any) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Some steps from the model of a folder, with a reward that is exact."""
    policy = LanguagePolicy.load(str(folder), device="cpu")
    rewards = (TaskReward(), KLPenalty(coefficient=changes.pop("beta", 0.1)))
    count = changes.pop("steps", 1)
    method = replaced(name, rewards=rewards, problems=2, experience=Groups(size=3), **changes)
    loop = make_loop(method, Toy(), policy)
    steps = [loop.step().metrics for _ in range(count)]
    return [{k: v for k, v in m.items() if "second" not in k} for m in steps], loop.policy.tensors()


@pytest.mark.slow
def test_a_soup_of_one_model_is_ppo_to_the_last_bit(scorer: tuple[LanguagePolicy, Path], tmp_path: Path) -> None:
    """theta_1 = theta_2; and without a penalty the anchor has no say, whatever it is."""
    _, folder = scorer
    plain = trained("ppo-rlhf", folder, steps=2)
    again = trained("salsa", folder, steps=2, reference=Soup(models=(str(folder), str(folder))))
    assert plain[0] == again[0] and all(torch.equal(v, again[1][k]) for k, v in plain[1].items())
    random_policy(seed=8).save(tmp_path)
    other = Soup(models=(str(tmp_path),))
    far = trained("salsa", folder, reference=other)
    assert far[0][0]["reference_kl"] > 0.05 > plain[0][0]["reference_kl"]
    free, same = (trained(n, folder, beta=0.0, **r) for n, r in (("ppo-rlhf", {}), ("salsa", {"reference": other})))
    own = [k for k in free[1] if not k.startswith("reference.")]
    assert all(torch.equal(free[1][k], same[1][k]) for k in own)
    assert not all(torch.equal(far[1][k], plain[1][k]) for k in own)


def test_a_soup_is_the_average_of_all_weights_and_stays_in_checkpoints(tmp_path: Path) -> None:
    one, two = random_policy(seed=0), random_policy(seed=1)
    two.save(tmp_path / "two")
    soup = Soup(models=(str(tmp_path / "two"),), share=0.25)
    method = replaced("salsa", reference=soup, rewards=(TaskReward(), KLPenalty()), problems=2)
    loop = make_loop(method, Toy(), one)
    theirs = dict(two.model.named_parameters())
    for name, mine in one.model.named_parameters():
        found = loop.policy.tensors()[f"reference.{name}"]
        torch.testing.assert_close(found, 0.25 * mine.detach() + 0.75 * theirs[name].detach())
    wanted = {k: v.clone() for k, v in loop.policy.tensors().items() if k.startswith("reference.")}
    loop.save(tmp_path / "kept")
    again = make_loop(method, Toy(), random_policy(seed=0))
    again.policy.move_reference(1.0)
    again.load(tmp_path / "kept")
    assert all(torch.equal(again.policy.tensors()[k], v) for k, v in wanted.items())


def test_a_soup_of_linear_models_is_their_geometric_mean() -> None:
    random = torch.Generator().manual_seed(0)
    features, *models = (torch.randn(5, 4, generator=random, dtype=torch.float64) for _ in range(3))
    theta = Soup(models=("RUN",), share=0.3).averaged({"w": models[0]}, [{"w": models[1]}])["w"]
    one, two, mixed = ((features @ m.T).log_softmax(-1) for m in (*models, theta))
    torch.testing.assert_close(mixed, (0.3 * one + 0.7 * two).log_softmax(-1))


def test_a_soup_of_nothing_or_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set reference\.models=RUN"):
        replaced("salsa", rewards=(TaskReward(), KLPenalty())).check()
    LanguagePolicy.load("tiny", device="cpu").save(tmp_path)
    with pytest.raises(ConfigError, match="another shape"):
        make_loop(
            replaced("salsa", reference=Soup(models=(str(tmp_path),)), rewards=(TaskReward(), KLPenalty())), Toy(),
            random_policy(seed=0),
        )  # fmt: skip


# PF-PPO

RANKS = (BestOfRanks(), BestRandomRanks(), BestWorstRanks(), EqualRanks())


def responses(prompts: int, count: int, seed: int = 0) -> Any:
    """Scores of `count` responses to each prompt, with the keys of their samples."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(prompts * count, generator=random, dtype=torch.float64)
    keys = torch.randint(2**62, (prompts * count,), generator=random)
    group = torch.arange(prompts).repeat_interleave(count)
    return SimpleNamespace(scores=scores, outcomes=None, draw=keys, group=group, once=lambda: None)


def ranked(batch: Any, weights: torch.Tensor, count: int) -> torch.Tensor:
    """[N] mean weight of each rank, the best first."""
    order = batch.scores.view(-1, count).argsort(dim=1, descending=True)
    return weights.view(-1, count).gather(1, order).mean(0)


@pytest.mark.parametrize("ranks", RANKS, ids=lambda part: part.name)
def test_both_placements_draw_ranks_by_their_chances(ranks: Any) -> None:
    """A histogram over 1,000 prompts; by independent draws within four standard errors."""
    batch, chances = responses(1_000, 5), torch.tensor(ranks.of(5), dtype=torch.float64)
    chances /= chances.sum()
    independent = RankReweighting(ranks=ranks).weigh(batch)
    share = ranked(batch, independent, 5) / ranked(batch, independent, 5).sum()
    error = 4 * (chances * (1 - chances) / 5_000).sqrt() + 1e-12
    assert bool(((share - chances).abs() <= error).all()), share
    kept = RankFilter(ranks=ranks, draws=2).weigh(batch)
    drawn = kept.view(-1, 5) if isinstance(ranks, BestOfRanks) else kept.view(-1, 5).clamp(max=1)
    share = ranked(batch, drawn, 5) / ranked(batch, drawn, 5).sum()
    assert bool(((share - chances).abs() <= 4 * (chances * (1 - chances) / 2_000).sqrt() + 1e-12).all()), share
    assert float(kept[kept > 0].mean()) == pytest.approx(1) == float(independent[independent > 0].mean())


def test_the_release_keeps_the_best_and_one_other() -> None:
    """And its weights of 0.4 and 0.1 are those, once normalised."""
    batch = responses(50, 5)
    kept = RankFilter().weigh(batch).view(-1, 5)
    assert set(kept.flatten().tolist()) == {0.0, 1.0} and bool((kept.sum(1) == 2).all())
    best = batch.scores.view(-1, 5).argmax(1)
    assert bool((kept.gather(1, best[:, None]) == 1).all())
    weights = torch.tensor(BestRandomRanks().of(5), dtype=torch.float64)
    released = torch.tensor([0.4] + [0.1] * 4, dtype=torch.float64)
    torch.testing.assert_close(weights / weights.sum(), released / released.sum())


def test_what_is_drawn_depends_on_ranks_alone() -> None:
    """Not on the scale of scores, nor on the order of rows."""
    batch, order = responses(20, 5), torch.randperm(100, generator=torch.Generator().manual_seed(1))
    for part in (RankFilter(), RankReweighting()):
        found = part.weigh(batch)
        for change in (torch.exp, lambda r: 3 * r - 8):
            changed = SimpleNamespace(**{**vars(batch), "scores": change(batch.scores)})
            assert torch.equal(part.weigh(changed), found)
        moved = {k: v[order] for k, v in vars(batch).items() if isinstance(v, torch.Tensor)}
        assert torch.equal(part.weigh(SimpleNamespace(**{**vars(batch), **moved})), found[order])


@pytest.mark.parametrize("part", [RankFilter(EqualRanks(), None), RankFilter(EqualRanks(), 5)])
def test_equal_chances_keep_everything(part: Any) -> None:
    assert part.weigh(responses(30, 5)).tolist() == [1.0] * 150


def test_few_responses_leave_nothing_to_choose() -> None:
    """One response is PPO's; of two, best and random, and best and worst, are all there are."""
    for ranks in RANKS:
        assert RankFilter(ranks).weigh(responses(9, 1)).tolist() == [1.0] * 9
    for ranks in (BestRandomRanks(), BestWorstRanks()):
        assert RankFilter(ranks).weigh(responses(9, 2)).tolist() == [1.0] * 18


def test_a_fit_by_ranks_is_the_squared_correlation_of_what_is_drawn() -> None:
    random = torch.Generator().manual_seed(0)
    gold = torch.randn(300, 5, generator=random, dtype=torch.float64)
    proxy = gold + 0.8 * torch.randn(300, 5, generator=random, dtype=torch.float64)
    for ranks in RANKS:
        order = proxy.argsort(1, descending=True)
        again = torch.tensor(ranks.of(5))
        pairs = [v.gather(1, order).repeat_interleave(again, 1).flatten() for v in (proxy, gold)]
        found = rank_fit(proxy, gold, ranks)
        assert found == pytest.approx(float(torch.corrcoef(torch.stack(pairs))[0, 1] ** 2))
        assert rank_fit(2 * proxy + 1, 5 - gold, ranks) == pytest.approx(found)
    assert rank_fit(proxy, gold, BestWorstRanks()) > rank_fit(proxy, gold, EqualRanks()) > 0
    with pytest.raises(DataError, match="two scores"):
        rank_fit(proxy, gold[:, :2], EqualRanks())
