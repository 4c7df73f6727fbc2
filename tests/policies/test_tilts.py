"""Sampling from softmax(log pi + beta (min Q - V)): what is drawn, what is recorded, and how it is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, InvariantError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.learners.token_values import ImplicitTokenQ, ReturnTokenQ, ValuedWords, ValueTilt
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling
from language_toys import VOCABULARY, Toy, draws, make_loop, random_policy, random_prompts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def values(policy: LanguagePolicy, critics: int = 2, states: bool = True, seed: int = 0) -> ValuedWords:
    """Random values of words."""
    network, random = ValuedWords(policy, critics, 16, states), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if not name.startswith("model."):
                p.copy_(torch.randn(p.shape, generator=random) * 0.2)
    return network.requires_grad_(False)


def advantages(network: ValuedWords, tokens: list[int]) -> Tensor:
    """[V] min Q - V behind a text, from the heads' weights and a whole forward pass."""
    with torch.no_grad():
        h = network.model.model(torch.tensor([tokens])).last_hidden_state[0, -1]

        def head(of: Any) -> Tensor:
            return of.last.weight @ (of.hidden.weight @ h + of.hidden.bias).clamp(min=0) + of.last.bias

        least = torch.minimum(*(head(q) for q in network.q)) if len(network.q) == 2 else head(network.q[0])
        return least if network.v is None else least - head(network.v)


def said(policy: LanguagePolicy, tilt: ValueTilt | None, prompts: list[list[int]], **how: Any) -> list[Completion]:
    sampling = Sampling(max_tokens=5, tilt=tilt, **how)
    return policy.generate(prompts, sampling, draws(len(prompts)))


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return random_policy(dtype=torch.float64)


def test_beta_of_zero_is_the_policy_itself(policy: LanguagePolicy) -> None:
    prompts = random_prompts(6)
    plain, none = (said(policy, tilt, prompts) for tilt in (None, ValueTilt(values(policy), 0.0)))
    assert [c.tokens for c in plain] == [c.tokens for c in none]
    assert [c.logp for c in plain] == [c.logp for c in none]


def test_what_is_recorded_is_the_tilted_distributions(policy: LanguagePolicy) -> None:
    prompts, network, beta = random_prompts(4), values(policy), 3.0
    for temperature in (1.0, 0.5):
        found = said(policy, ValueTilt(network, beta), prompts, temperature=temperature, tilts=True)
        for prompt, completion in zip(prompts, found):
            assert completion.tilts is not None
            for t, (token, logp) in enumerate(zip(completion.tokens, completion.logp)):
                text = prompt + completion.tokens[:t]
                with torch.no_grad():
                    logits = policy.model(torch.tensor([text])).logits[0, -1]
                added = beta * advantages(network, text)
                whole = ((logits + added) / temperature).log_softmax(0)
                assert logp == pytest.approx(float(whole[token]), abs=1e-6)
                torch.testing.assert_close(completion.tilts[t].double(), added, rtol=1e-4, atol=1e-5)
    assert any(c.tokens != d.tokens for c, d in zip(found, said(policy, None, prompts, temperature=0.5)))


def test_a_number_for_the_state_changes_nothing(policy: LanguagePolicy) -> None:
    network = values(policy)
    with_v = said(policy, ValueTilt(network, 4.0), random_prompts(5))
    network.v = None
    without = said(policy, ValueTilt(network, 4.0), random_prompts(5))
    assert [c.tokens for c in with_v] == [c.tokens for c in without]
    for one, other in zip(with_v, without):
        assert one.logp == pytest.approx(other.logp, abs=1e-9)


def test_without_end_it_is_the_best_word(policy: LanguagePolicy) -> None:
    prompts, network = random_prompts(4), values(policy)
    for prompt, completion in zip(prompts, said(policy, ValueTilt(network, 1e9), prompts)):
        for t, token in enumerate(completion.tokens):
            assert token == int(advantages(network, prompt + completion.tokens[:t]).argmax())
        assert completion.logp == pytest.approx([0.0] * len(completion.logp))


def test_greedy_words_are_those_of_the_tilted_policy(policy: LanguagePolicy) -> None:
    prompts, network = random_prompts(3), values(policy)
    for prompt, completion in zip(prompts, said(policy, ValueTilt(network, 3.0), prompts, temperature=0.0)):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt])).logits[0, -1]
        assert completion.tokens[0] == int((logits + 3.0 * advantages(network, prompt)).argmax())


class Only:
    """Lets through some tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def begin(self, rows: Any, room: int) -> Only:
        return self

    def allowed(self, rows: Any) -> Tensor:
        found = torch.zeros(len(rows), VOCABULARY, dtype=torch.bool)
        found[:, self.tokens] = True
        return found

    def said(self, rows: Any, tokens: Tensor) -> None:
        return None


def test_words_that_may_not_come_have_no_part_in_it(policy: LanguagePolicy) -> None:
    prompts, network = random_prompts(3), values(policy)
    found = said(policy, ValueTilt(network, 3.0), prompts, within=Only(7, 8, 9))
    for prompt, completion in zip(prompts, found):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt])).logits[0, -1]
        whole = (logits + 3.0 * advantages(network, prompt))[[7, 8, 9]].log_softmax(0)
        assert completion.logp[0] == pytest.approx(float(whole[completion.tokens[0] - 7]), abs=1e-6)


def test_rows_that_go_on_are_not_read_twice(policy: LanguagePolicy) -> None:
    network = values(policy)
    tilt, engine, work = ValueTilt(network, 2.0), policy.converse(), network.policy.work
    rows = engine.open(random_prompts(3))
    for turn, new in enumerate(([[5, 6], [7], [8, 9, 10]], [[3], [4], [5, 5]])):
        engine.sample(rows, Sampling(max_tokens=4, tilt=tilt), draws(3, turn))
        left = len(engine.tokens(rows[2]))
        engine.extend(rows, new)
    engine.close([rows.pop()])
    engine.sample(rows, Sampling(max_tokens=4, tilt=tilt), draws(2, 9))
    held = [len(engine.tokens(row)) for row in rows] + [left]
    assert work["prefilled_tokens"] == sum(size - 1 for size in held)  # all but the last word of each, once
    assert work["prefilled_again"] == 0 and len(tilt.handles) == 2


def test_rows_that_begin_elsewhere_are_read_anew(policy: LanguagePolicy) -> None:
    network = values(policy)
    tilt, prompts = ValueTilt(network, 2.0), random_prompts(3)
    first, again = (said(policy, tilt, prompts) for _ in range(2))
    assert [c.logp for c in first] == [c.logp for c in again]
    assert len(tilt.conversation._rows) == 3


# In the loop


def tilted_rows(policy: LanguagePolicy, network: ValuedWords) -> TokenBatch:
    """Rows that were sampled so."""
    prompts = random_prompts(4)
    found = said(policy, ValueTilt(network, 3.0), prompts, tilts=True)
    episodes = []
    for group, (prompt, c) in enumerate(zip(prompts, found)):
        shown = Segment("user", "", prompt, [0] * len(prompt), [0.0] * len(prompt))
        spoken = Segment("assistant", "", c.tokens, [1] * len(c.tokens), c.logp, info={"tilts": c.tilts})
        episodes.append(Episode(Problem(f"p{group}", "?"), [shown, spoken], group))
    return to_batch(episodes, 0, 1.0, torch.device("cpu"))


def test_training_says_of_rows_what_the_sampler_did(policy: LanguagePolicy) -> None:
    batch = tilted_rows(policy, values(policy))
    out = policy.evaluate(batch, {"entropy"})
    torch.testing.assert_close(out.logp.float(), batch.behaviour_logp, rtol=0, atol=1e-5)
    some = batch.rows(torch.tensor([2, 0]), trim=True)
    torch.testing.assert_close(policy.evaluate(some).logp.float(), some.behaviour_logp, rtol=0, atol=1e-5)
    free = policy.evaluate(batch.replace(tilts=None)).logp.detach()
    assert float((free.float() - batch.behaviour_logp).abs().max()) > 0.1
    policy.keep_reference()
    torch.testing.assert_close(policy.reference_logp(batch), free)  # a reference says whatever it wants


def sampling_loop() -> Any:
    """GRPO whose policy is sampled from with what returns teach."""
    method: Any = get_method("grpo")
    learner = ReturnTokenQ(beta=2.0)
    changed = method.replace(learners=(learner,), problems=3, experience=method.experience.replace(size=3))
    return make_loop(changed, Toy(), steps=4)


def test_samples_of_the_loop_are_tilted_and_agree_with_training() -> None:
    loop = sampling_loop()
    network = loop.updater.learners.networks["return-token-q"]
    for _ in range(2):
        report = loop.step()
        assert report.metrics["logp_gap"] <= report.metrics["logp_gap_bound"]
    assert float(network.q[0].last.weight.detach().abs().max()) > 0
    context = loop.context(loop.method, Stream(0))
    assert context.policy.tilt.network is network and Groups().sampling(context).tilts


def test_tilts_that_are_not_those_of_the_sampler_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = sampling_loop()
    loop.step()
    network = loop.updater.learners.networks["return-token-q"]
    with torch.no_grad():
        network.q[0].last.bias.normal_()
    gather = loop.gatherer.gather

    def tampered(*args: Any) -> TokenBatch:
        batch = gather(*args)
        return batch.replace(tilts=None)

    monkeypatch.setattr(loop.gatherer, "gather", tampered)
    with pytest.raises(InvariantError, match="differ by"):
        loop.step()


def test_samplers_that_are_ahead_are_refused() -> None:
    method: Any = get_method("grpo")
    with pytest.raises(ConfigError, match="leave out --bound"):
        make_loop(method.replace(learners=(ReturnTokenQ(),), bound=1), Toy(), steps=4)


def test_engines_that_know_no_tilt_say_so(policy: LanguagePolicy) -> None:
    from etude.policies.engines.native import Native

    engine = Native.__new__(Native)
    lacking = engine.lacks(replace(Sampling(), tilt=ValueTilt(values(policy), 1.0)))
    assert lacking is not None and "tilted" in lacking


def test_contexts_of_policies_without_a_tilt_sample_as_ever() -> None:
    how = Groups().sampling(Context(Toy(), random_policy(), Stream(0)))
    assert how.tilt is None and not how.tilts
    assert ImplicitTokenQ.tilts
