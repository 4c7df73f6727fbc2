"""Selective token generation: the joint distribution of voice and word, its gradient, and what stays frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.complete import complete_token
from etude.core.registry import get_method
from etude.core.rows import concatenate, last_action, to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.experiments.preference.selective_token_generation import experiment
from etude.loops.credit import credited, loss
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.policies.language import LanguagePolicy
from etude.policies.loading import is_shipped, named
from etude.policies.logprobs import voiced_logprobs
from etude.policies.sampling import Sampling
from etude.policies.selective import Selective, selective
from etude.runs.warm import start_of
from language_toys import Toy, draws, make_loop, random_model, random_policy, random_prompts, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
NAME, DOUBLE = "selective-token-generation", torch.float64


def two_voices(alone: bool = False, seed: int = 1, **options: Any) -> LanguagePolicy:
    """A policy of two voices in float64, whose adapter and selector have left their starts."""
    model = selective(random_model().to(DOUBLE), alone, seed)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in [p for p in model.parameters() if p.requires_grad]:
            p.add_(0.3 * torch.randn(p.shape, generator=random, dtype=DOUBLE))
    return LanguagePolicy(model, tokenizer(), shadow=False, **options)


@torch.no_grad()
def parts(policy: LanguagePolicy, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """log lambda [T, 2], log p_0 and log p_1 [T, V] after each token, written out from the modules' own weights."""
    model: Any = policy.model
    own = model.model
    h = own.frozen.base_model(input_ids=torch.tensor([tokens])).last_hidden_state
    z, _ = own.lstm(h)
    frozen = (h @ own.frozen.lm_head.weight.T).log_softmax(-1)
    adapter = ((h + own.towards(z)) @ own.words.weight.T).log_softmax(-1)
    return own.selector(z).log_softmax(-1)[0], frozen[0], adapter[0]


def sampled(policy: LanguagePolicy, count: int = 6) -> TokenBatch:
    problems = Toy().problems("train")
    context = Context(Toy(), policy, Stream(3), max_tokens=8)
    return to_batch(Groups(size=count).collect(problems, context), 0, 1.0, policy.device)


@pytest.fixture(scope="module")
def drawn() -> tuple[LanguagePolicy, TokenBatch]:
    policy = two_voices()
    return policy, sampled(policy)


# What is said, by whom


@pytest.mark.slow
def test_logits_are_the_joint_distribution_and_words_alone_have_the_mixture_s_chances() -> None:
    policy, tokens = two_voices(), [5, 17, 40, 80]
    chosen, frozen, adapter = parts(policy, tokens)
    wanted = torch.cat([chosen[:, :1] + frozen, chosen[:, 1:] + adapter], 1)
    found = policy.model(torch.tensor([tokens])).logits[0].detach()
    assert torch.allclose(found, wanted, rtol=0, atol=1e-6)  # norms are in float32
    assert torch.allclose(found.exp().sum(-1), torch.ones(4, dtype=DOUBLE), atol=1e-12)
    mixture = (chosen.exp()[:, :, None] * torch.stack([frozen.exp(), adapter.exp()], 1)).sum(1)
    unknown = voiced_logprobs(found, torch.tensor([9, 9, 9, 9]), torch.full((4,), -1), 2)[0]
    assert torch.allclose(unknown.exp(), mixture[:, 9], rtol=0, atol=1e-6)
    assert float(chosen.exp()[:, 0].min()) > 0.05 and float(chosen.exp()[:, 0].max()) < 0.95


@pytest.mark.slow
def test_voice_and_word_are_as_likely_in_training_as_in_sampling(drawn: Any) -> None:
    policy, batch = drawn
    mask = batch.action_mask
    said = policy.evaluate(batch, {"entropy"})
    said.logp = said.logp.detach()
    assert torch.allclose(said.logp[mask], batch.behaviour_logp[mask].double(), rtol=0, atol=1e-5)  # in float32
    assert {0, 1} == set(batch.voices[mask].tolist()) and bool((batch.voices[~mask] == -1).all())
    for row in range(3):
        tokens = batch.tokens[row][batch.attention_mask[row]].tolist()
        chosen, frozen, adapter = parts(policy, tokens)
        for t in mask[row].nonzero()[:, 0].tolist():
            k, w = int(batch.voices[row, t]), tokens[t]
            one = chosen[t - 1, k] + (frozen, adapter)[k][t - 1, w]
            assert float(said.logp[row, t]) == pytest.approx(float(one), abs=1e-5)
    fresh = batch.replace(behaviour_logp=said.logp, advantages=torch.ones_like(said.logp))
    loss = ClippedSurrogate()(fresh, TokenLogProbs(policy.evaluate(batch).logp))[mask]
    assert torch.allclose(loss, -torch.ones_like(loss), rtol=0, atol=1e-12)  # ratios begin at 1


@pytest.mark.slow
def test_rows_are_sampled_alike_together_and_apart_and_voices_stay_with_them(drawn: Any) -> None:
    policy, batch = drawn
    prompts = random_prompts(5, low=2, high=9)
    together = policy.generate(prompts, Sampling(max_tokens=6), draws(5))
    apart = [policy.generate([p], Sampling(max_tokens=6), [d])[0] for p, d in zip(prompts, draws(5))]
    assert [(c.tokens, c.voices) for c in together] == [(c.tokens, c.voices) for c in apart]
    assert all(max(c.tokens) < 307 and len(c.voices) == len(c.tokens) for c in together)
    both = concatenate([batch.rows(torch.tensor([0])), batch.rows(torch.tensor([3, 1]), trim=True)])
    mine = batch.action_mask[3]
    assert both.voices is not None and torch.equal(both.voices[1][mine], batch.voices[3][mine])
    shared, plain = two_voices(), two_voices(share_prompts=False)
    assert torch.allclose(shared.evaluate(batch).logp, plain.evaluate(batch).logp, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_top_p_filters_words_of_both_voices_together() -> None:
    policy, prompt = two_voices(), random_prompts(1)[0]
    logits = policy.model(torch.tensor([prompt])).logits[0, -1].detach()
    order, kept, total = logits.softmax(0).argsort(descending=True).tolist(), set[int](), 0.0
    for place in order:
        if total >= 0.5:
            break
        kept.add(place)
        total += float(logits.softmax(0)[place])
    found = policy.generate([prompt] * 300, Sampling(top_p=0.5, max_tokens=1), draws(300))
    seen = {c.voices[0] * 307 + c.tokens[0] for c in found}
    assert seen <= kept and len(seen) > len(kept) / 3 and {c.voices[0] for c in found} == {0, 1}


# Gradients


def gradients(policy: LanguagePolicy, loss: Tensor) -> dict[str, Tensor]:
    named_ones = policy.masters.parameters
    return dict(zip(named_ones, torch.autograd.grad(loss, list(named_ones.values()), materialize_grads=True)))


@pytest.mark.slow
def test_words_of_the_frozen_model_teach_the_selector_alone(drawn: Any) -> None:
    policy, batch = drawn
    logp = policy.evaluate(batch).logp
    theirs = gradients(policy, logp[batch.voices == 0].sum())
    assert not bool(theirs["model.words.weight"].abs().max() > 1e-12)
    assert not bool(theirs["model.towards.weight"].abs().max() > 1e-12)
    assert theirs["model.selector.weight"].abs().max() > 1e-3 and theirs["model.lstm.weight_ih_l0"].abs().max() > 1e-6
    ours = gradients(policy, policy.evaluate(batch).logp[batch.voices == 1].sum())
    assert ours["model.words.weight"].abs().max() > 1e-3
    assert not any(k.startswith("model.frozen") for k in policy.masters.parameters)


def test_the_joint_score_gradient_is_that_of_the_expected_reward() -> None:
    """Two steps over three words, all choices of voice and word enumerated: 36 texts, rewarded by their words."""
    random = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=DOUBLE)

    chooses, words = [noise(2), noise(3, 2)], [noise(3), noise(3, 3)]
    frozen, worth = [noise(3).log_softmax(0), noise(3, 3).log_softmax(1)], noise(3, 3)
    learned = [x.requires_grad_() for x in (*chooses, *words)]

    def joint(t: int) -> Tensor:
        """Outputs of a step [.., 6], words by voice, as the policy has them."""
        own = chooses[t].log_softmax(-1)
        return torch.cat([own[..., :1] + frozen[t], own[..., 1:] + words[t].log_softmax(-1)], -1)

    one, two = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    outputs = torch.stack([joint(0).expand(36, -1), joint(1)[one % 3]], 1)
    said = torch.stack([one, two], 1)
    logp = torch.stack([voiced_logprobs(outputs[:, t], said[:, t] % 3, said[:, t] // 3, 2)[0] for t in range(2)], 1)
    chance, paid = logp.sum(1).exp(), worth[one % 3, two % 3]
    assert float(chance.detach().sum()) == pytest.approx(1, abs=1e-12)
    batch: Any = TokenBatchLike(advantages=(paid - 0.4)[:, None].expand(-1, 2).detach())
    loss = (PolicyGradient()(batch, TokenLogProbs(logp)).sum(1) * chance.detach()).sum()
    found = torch.autograd.grad(-loss, learned, retain_graph=True)
    mixtures = [x.exp().unflatten(-1, (2, 3)).sum(-2) for x in (joint(0), joint(1))]
    expected = (mixtures[0][:, None] * mixtures[1] * worth).sum()
    assert float(expected.detach()) == pytest.approx(float((chance.detach() * paid).sum()), abs=1e-12)
    for mine, theirs in zip(found, torch.autograd.grad(expected, learned)):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-13) and theirs.abs().max() > 1e-3


class TokenBatchLike:
    """Rows with advantages and nothing else."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


# One voice alone


@pytest.mark.slow
def test_an_adapter_alone_says_everything_and_a_selector_that_trusts_the_frozen_model_lets_it_learn_nothing() -> None:
    policy = two_voices(alone=True)
    _, _, adapter = parts(policy, [5, 17, 40])
    found = policy.model(torch.tensor([[5, 17, 40]])).logits[0].detach().log_softmax(-1)
    assert torch.allclose(found[:, 307:], adapter, rtol=0, atol=1e-6) and not bool(found[:, :307].exp().any())
    batch = sampled(policy, 2)
    assert set(batch.voices[batch.action_mask].tolist()) == {1}
    trusting: Any = two_voices()
    with torch.no_grad():
        trusting.model.model.selector.weight.zero_()
        trusting.model.model.selector.bias.copy_(torch.tensor([50.0, -50.0]))
    rows = sampled(trusting, 2)
    assert set(rows.voices[rows.action_mask].tolist()) == {0}
    slopes = gradients(trusting, trusting.evaluate(rows).logp.sum())
    assert all(float(v.abs().max()) < 1e-12 for v in slopes.values())
    frozen = LanguagePolicy(trusting.model.model.frozen, tokenizer(), shadow=False)
    same = frozen.evaluate(rows.replace(voices=None)).logp
    assert torch.allclose(trusting.evaluate(rows).logp, same, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_adapter_alone_learns_by_reinforce_with_a_critic_of_its_own_distribution() -> None:
    """NonSTG-RL: -1/T sum_t (R - V_t) log p_1(w_t) + (V_t - R)^2, written out from the modules; no selector learns."""
    policy: Any = two_voices(alone=True)
    head, random = policy.add_value_head(), torch.Generator().manual_seed(4)
    torch.nn.init.normal_(head.weight, std=0.2, generator=random)
    batch, method = sampled(policy, 2), complete_token(get_method(NAME))
    worth = torch.randn(len(batch), generator=random)
    last = torch.zeros_like(batch.rewards).scatter(1, last_action(batch)[:, None], worth[:, None])
    batch = batch.replace(rewards=last, scores=worth, values=policy.evaluate(batch, {"values"}).values.detach())
    said = loss(method, credited(method, batch), policy.evaluate(batch, {"values"}), 8)
    wanted = torch.stack([alone(policy, batch, row, float(worth[row])) for row in range(len(batch))]).mean()
    assert float(said.detach()) == pytest.approx(float(wanted.detach()), abs=1e-5)
    found, expected = gradients(policy, said), gradients(policy, wanted)
    for name, value in found.items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-4, atol=1e-6, msg=name)
    assert not any(bool(found[f"model.selector.{kind}"].any()) for kind in ("weight", "bias"))
    learning = ("model.words.weight", "model.towards.weight", "model.lstm.weight_ih_l0")
    assert all(float(found[name].norm()) > 1e-4 for name in learning)


def alone(policy: Any, batch: TokenBatch, row: int, worth: float) -> Tensor:
    """The loss of one text: of the adapter's words by its own softmax, and of a line through its states for V."""
    own, head = policy.model.model, policy.add_value_head()
    tokens, places = batch.tokens[row][batch.attention_mask[row]], batch.action_mask[row].nonzero()[:, 0] - 1
    h = own.frozen.base_model(input_ids=tokens[None]).last_hidden_state.detach()
    z, _ = own.lstm(h)
    g = h + own.towards(z)
    logits = g @ own.words.weight.T
    normalisers = torch.stack([(h @ own.frozen.lm_head.weight.T).logsumexp(-1), logits.logsumexp(-1)], -1)
    states = torch.cat([h, g, z, torch.tensor([-1.0, 0.0], dtype=DOUBLE) - normalisers / 2**14], -1)[0, places]
    assert float(states.detach().abs().max()) < 50  # nothing that V reads drowns the rest
    value = (states * head.weight[0]).sum(-1) + head.bias
    logp = logits.log_softmax(-1)[0, places, tokens[places + 1]]
    return (-(worth - value.detach()) * logp + (value - worth) ** 2).mean()


@pytest.mark.slow
def test_written_rows_are_as_likely_as_their_words_by_any_voice(drawn: Any) -> None:
    policy, batch = drawn
    unknown = policy.evaluate(batch.replace(voices=None)).logp[batch.action_mask]
    both = [
        policy.evaluate(batch.replace(voices=torch.full_like(batch.voices, k))).logp[batch.action_mask] for k in (0, 1)
    ]
    assert torch.allclose(unknown, torch.stack(both).logsumexp(0), rtol=0, atol=1e-12)


# The policy as a model


@pytest.mark.slow
def test_it_is_saved_loaded_and_named(tmp_path: Path) -> None:
    policy = two_voices()
    policy.save(tmp_path)
    again = LanguagePolicy.load(str(tmp_path), device="cpu", dtype="float64")
    assert again.end_ids == policy.end_ids == [1]
    assert isinstance(again.model, Selective) and [*again.masters.parameters] == [*policy.masters.parameters]
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in policy.model.state_dict().items())
    random_policy().save(tmp_path / "plain")
    fresh = LanguagePolicy.load(f"selective:{tmp_path / 'plain'}", device="cpu")
    assert fresh.voices == 2 and random_policy().voices == 1
    assert named("selective:adapter:x") == "adapter:x" and named("tiny") == "tiny"
    assert is_shipped("adapter:blank:1x16x2") and not is_shipped("selective:else")
    assert start_of("selective:tiny", World.LANGUAGE) == ("selective:tiny", [])


@pytest.mark.slow
def test_only_the_adapter_and_the_selector_are_trained_and_a_run_resumes(tmp_path: Path) -> None:
    method: Any = get_method(NAME).replace(problems=3)

    def loop() -> Any:
        return make_loop(method, Toy(), two_voices(), steps=2)

    one, frozen = loop(), two_voices().model.model.frozen.state_dict()  # type: ignore[union-attr]
    one.step()
    one.save(tmp_path)
    assert one.step().metrics["gradient_norm"] > 0
    assert all(torch.equal(v, frozen[k]) for k, v in one.policy.model.model.frozen.state_dict().items())
    again = loop()
    again.load(tmp_path)
    again.step()
    assert all(torch.equal(v, one.policy.tensors()[k]) for k, v in again.policy.tensors().items())


@pytest.mark.slow
def test_the_experiment_measures_what_the_claim_names(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"MODEL": "blank:1x16x2", "TAUGHT": 1, "LABELLED": 1, "STEPS": 1, "TESTED": 6, "LOOKED": 3}
    for name, value in {**small, "CHANGES": {"problems": 2}}.items():
        monkeypatch.setattr(f"etude.experiments.preference.selective_token_generation.{name}", value)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})  # no processes of their own
    (pair,) = experiment([3])
    claim = get_method(NAME).claim
    assert claim is not None and [m.name for m in claim.measures] == [*pair.arm] == [*pair.baseline]
    assert claim.learned_on in pair.start
