"""Sampling: what is recorded is what was drawn, and no shortcut changes a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.rows import to_batch
from etude.policies import sampling as module
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling, generate, truncate
from language_toys import KINDS, draws, random_model, random_policy, random_prompts, tokenizer

F64 = torch.float64
PROMPTS = [*random_prompts(3, seed=1) * 3, *random_prompts(2, seed=2)]


def batch_of(prompts: Sequence[Sequence[int]], said: Sequence[Completion], temperature: float = 1.0) -> Any:
    episodes = [
        Episode(
            Problem(str(i), ""),
            [Segment("user", "", list(p), [0] * len(p), [0.0] * len(p)),
             Segment("assistant", "", c.tokens, [1] * len(c.tokens), c.logp)],
            i,
        )
        for i, (p, c) in enumerate(zip(prompts, said, strict=True))
    ]  # fmt: skip
    return to_batch(episodes, 0, temperature, torch.device("cpu"))


@pytest.mark.first
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_recorded_logp_is_that_of_the_training_forward(kind: str, temperature: float) -> None:
    policy = random_policy(kind, dtype=F64)
    said = policy.generate(PROMPTS, Sampling(temperature, max_tokens=12, entropy=True), draws(len(PROMPTS)))
    batch = batch_of(PROMPTS, said, temperature)
    trained = policy.evaluate(batch, {"entropy"})
    torch.testing.assert_close(trained.logp.float(), batch.behaviour_logp, rtol=0, atol=2e-6)
    recorded = torch.tensor([h for c in said for h in c.entropy], dtype=F64)
    torch.testing.assert_close(trained.entropy[batch.action_mask], recorded, rtol=0, atol=1e-8)


def test_which_rows_are_dropped_where() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [module.worth_dropping(n, 100, cpu) for n in (76, 75)] == [False, True]
    assert [module.worth_dropping(n, 100, gpu) for n in (75, 51, 50)] == [False, False, True]
    assert module.worth_dropping(1, 4, cpu) and not module.worth_dropping(1, 32, gpu)


def test_dropping_finished_rows_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(dtype=F64)
    results = []
    for share in (0.0, 0.75, 1.0):
        monkeypatch.setattr(module, "COMPACT_BELOW", share)
        monkeypatch.setattr(LanguagePolicy, "end_ids", property(lambda self: list(range(1, 40))))
        results.append(policy.generate(PROMPTS, Sampling(max_tokens=30), draws(len(PROMPTS), 4)))
    assert len({len(c.tokens) for c in results[0]}) > 3, "rows end at different times"
    for other in results[1:]:
        assert [c.tokens for c in other] == [c.tokens for c in results[0]]
        assert [c.stop for c in other] == [c.stop for c in results[0]]
        logps = [torch.tensor([x for c in r for x in c.logp]) for r in (results[0], other)]
        torch.testing.assert_close(*logps, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prefill_changes_no_token(kind: str) -> None:
    """Each prompt alone, with the draw that it had in the batch, says the same."""
    policy, wanted = random_policy(kind, dtype=F64), Sampling(max_tokens=10)
    together = policy.generate(PROMPTS, wanted, draws(len(PROMPTS), 7))
    for row, (prompt, draw) in enumerate(zip(PROMPTS, draws(len(PROMPTS), 7))):
        (alone,) = policy.generate([prompt], wanted, [draw])
        assert (alone.tokens, alone.stop) == (together[row].tokens, together[row].stop)
        assert alone.logp == pytest.approx(together[row].logp, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_hugging_faces_greedy(kind: str) -> None:
    model = random_model(kind, seed=3).double()
    policy = LanguagePolicy(model, tokenizer())
    said = policy.generate(PROMPTS, Sampling(temperature=0, max_tokens=15, entropy=True), draws(len(PROMPTS)))
    for prompt, completion in zip(PROMPTS, said):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=15, pad_token_id=0, eos_token_id=1
        )
        assert completion.tokens == out[0, len(prompt) :].tolist()
        assert set(completion.logp) == {0.0} == set(completion.entropy)


@pytest.mark.slow
@pytest.mark.parametrize("n", [5_000, 20_000])
def test_tokens_are_drawn_with_their_probabilities(n: int) -> None:
    """Chi-square over the first token of n completions; a wrong distribution has a p-value of about 0."""
    policy, prompt = random_policy(seed=2), [5, 9, 33]
    logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1]
    for temperature, top_k in ((1.0, 0), (0.6, 0), (1.0, 4)):
        wanted = Sampling(temperature, top_k=top_k, max_tokens=1)
        expected = (truncate(logits[None] / temperature, wanted)[0]).softmax(-1).double().detach()
        drawn = Counter(c.tokens[0] for c in policy.generate([prompt] * n, wanted, draws(n, 11)))
        often = [v for v in range(len(expected)) if expected[v] * n >= 5]
        counts = [drawn[v] for v in often] + [n - sum(drawn[v] for v in often)]
        shares = [float(expected[v]) for v in often] + [1 - sum(float(expected[v]) for v in often)]
        if shares[-1] < 1e-9:
            assert counts.pop() == 0
            shares.pop()
        assert chisquare(counts, [s * n / sum(shares) for s in shares]).pvalue > 1e-3


logit_rows = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12).map(lambda x: torch.tensor([x]))


@given(logit_rows, st.integers(1, 14))
def test_top_k_keeps_the_k_largest(logits: torch.Tensor, k: int) -> None:
    kept = torch.isfinite(truncate(logits, Sampling(top_k=k)))[0]
    k = min(k, logits.shape[1])
    assert kept.sum() >= k and logits[0][kept].min() >= logits[0].sort(descending=True).values[k - 1]


@given(logit_rows, st.floats(0.01, 0.999))
def test_top_p_keeps_the_smallest_set_of_that_mass(logits: torch.Tensor, p: float) -> None:
    kept = torch.isfinite(truncate(logits, Sampling(top_p=p)))[0]
    probs = logits.double().softmax(-1)[0]
    mass = float(probs[kept].sum())
    assert mass >= p - 1e-5, "the set has the mass"
    assert mass - float(probs[kept].min()) < p + 1e-5, "and would not without its least likely token"
    if not kept.all():
        assert probs[kept].min() >= probs[~kept].max() - 1e-7


def test_truncated_supports_by_hand() -> None:
    """Probabilities 0.5, 0.25, 0.15, 0.1."""
    logits = torch.tensor([[0.15, 0.5, 0.1, 0.25]]).log()
    kept = {
        name: torch.isfinite(truncate(logits, s))[0].tolist()
        for name, s in {"k2": Sampling(top_k=2), "p.6": Sampling(top_p=0.6), "p.4": Sampling(top_p=0.4)}.items()
    }
    assert kept == {
        "k2": [False, True, False, True], "p.6": [False, True, False, True], "p.4": [False, True, False, False],
    }  # fmt: skip


@pytest.mark.first
@pytest.mark.parametrize("wanted", [Sampling(top_k=3, max_tokens=6), Sampling(0.7, top_p=0.6, max_tokens=6)])
def test_truncated_logp_is_renormalised(wanted: Sampling) -> None:
    policy = random_policy(dtype=F64)
    said = policy.generate(PROMPTS, wanted, draws(len(PROMPTS), 3))
    for prompt, completion in zip(PROMPTS, said):
        seen = list(prompt)
        for token, logp in zip(completion.tokens, completion.logp):
            logits = policy.model(input_ids=torch.tensor([seen])).logits[:, -1].detach() / wanted.temperature
            expected = truncate(logits, wanted).log_softmax(-1)[0, token]
            assert logp == pytest.approx(float(expected), abs=1e-9)
            seen.append(token)


# How completions end


Lists = Sequence[Sequence[int]]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Completion]]:
    """Completions of a policy that says given tokens, whatever it sees: the i-th list after the i-th prompt."""

    def run(
        script: Sequence[Sequence[int]], wanted: Sampling, prompts: Sequence[Sequence[int]] = ()
    ) -> list[Completion]:
        padded = [[*said, *[50] * (wanted.max_tokens - len(said))][: wanted.max_tokens] for said in script]
        given = torch.tensor(padded, dtype=F64).T
        monkeypatch.setattr(module, "uniforms", lambda keys, first, count: given[int(first[0]) :][:count])
        monkeypatch.setattr(module, "_draw", lambda logits, sampling, u: (u.long(), torch.zeros(len(u)), None))
        asked = prompts or [[10 + i] for i in range(len(script))]
        return generate(random_policy(), asked, wanted, draws(len(asked)))

    return run


Say = Callable[..., list[Completion]]


def ids(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def test_end_token_is_kept_and_ends_the_row(say: Say) -> None:
    a, b = say([[60, 61, 1, 62], [60, 1]], Sampling(max_tokens=6))
    assert (a.tokens, a.stop, len(a.logp)) == ([60, 61, 1], StopReason.END_OF_TEXT, 3)
    assert (b.tokens, b.stop) == ([60, 1], StopReason.END_OF_TEXT)


def test_length_limit_is_a_reason(say: Say) -> None:
    a, b = say([[60] * 9, [60, 60, 1]], Sampling(max_tokens=3))
    assert (len(a.tokens), a.stop) == (3, StopReason.MAX_TOKENS)
    assert (len(b.tokens), b.stop) == (3, StopReason.END_OF_TEXT), "an end token in the last place is an end"


def test_stop_strings_across_token_boundaries(say: Say) -> None:
    texts = ["ab</x> more", "no <x", "a\n\nb", "é</x>", "yesyes"]
    stops = ("</x>", "\n\n", "esy")
    said = say([ids(t) for t in texts], Sampling(max_tokens=12, stop=stops))
    shown = [tokenizer().decode(c.tokens) for c in said]
    assert shown[0] == "ab</x>" and shown[2] == "a\n\n" and shown[3] == "é</x>"
    assert said[1].stop is StopReason.MAX_TOKENS and len(said[1].tokens) == 12
    assert [c.stop for c in said if c is not said[1]] == [StopReason.STOP_STRING] * 4
    assert shown[4] == "yesyes", "a stop string inside a token keeps the whole token"


def test_a_stop_string_in_the_prompt_does_not_count(say: Say) -> None:
    (said,) = say([[60, 61, 1]], Sampling(max_tokens=5, stop=("</x>",)), [ids("</x>")])
    assert said.tokens == [60, 61, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_fills_the_context_ends_and_leaves_the_others_alone(kind: str) -> None:
    policy = random_policy(kind, dtype=F64, context=16)
    policy.__class__ = type("Endless", (LanguagePolicy,), {"end_ids": property(lambda self: [1000])})
    long, short = [7] * 14, [8, 9]
    a, b = policy.generate([long, short], Sampling(max_tokens=10), draws(2))
    assert (len(a.tokens), a.stop) == (2, StopReason.CONTEXT_OVERFLOW)
    assert (len(b.tokens), b.stop) == (10, StopReason.MAX_TOKENS)
    batch = batch_of([long, short], [a, b])
    torch.testing.assert_close(policy.evaluate(batch).logp.float(), batch.behaviour_logp, rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [0, 16, 20])
def test_prompts_that_leave_no_room_are_refused(size: int) -> None:
    policy = random_policy(context=16)
    with pytest.raises(ConfigError, match=rf"from 1 to 15 tokens, as the model attends to 16; got {size}\."):
        policy.generate([[5], [7] * size], Sampling(max_tokens=4), draws(2))


def test_no_prompts_no_completions() -> None:
    assert random_policy().generate([], Sampling(), []) == []


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_the_same_draws_say_the_same(seed: int, count: int) -> None:
    policy, prompts = random_policy(), random_prompts(count, seed=seed)
    a, b = (policy.generate(prompts, Sampling(max_tokens=5), draws(count, seed)) for _ in range(2))
    assert a == b
    assert all(hash(tuple(c.tokens)) in policy.emitted for c in a)
