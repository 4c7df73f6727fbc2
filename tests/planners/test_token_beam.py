"""Beam search by likelihood: greedy at width 1, the likeliest answer of all where nothing is dropped."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch

from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.language import evaluate_split
from etude.evaluation.searched import search_split
from etude.experience.groups import Groups
from etude.planners.token_beam import TokenBeam
from etude.planners.trees import Trees
from etude.policies.language import LanguagePolicy
from language_toys import Toy, draws, random_policy, random_prompts

pytestmark = pytest.mark.usefixtures("one_thread")


def trees_of(policy: LanguagePolicy, task: Any, search: TokenBeam, count: int = 2) -> Trees:
    context = Context(task, policy, Stream(0), max_tokens=task.max_tokens)
    whole = Groups().sampling(context)
    return Trees([task.problems("train")[i] for i in range(count)], context, whole, search.step(whole))


def saying_only(policy: LanguagePolicy, allowed: list[int]) -> LanguagePolicy:
    """The policy with all tokens but these ruled out, so that all answers can be gone through."""
    ban = torch.full((policy.model.config.vocab_size,), -math.inf)
    ban[allowed] = 0.0
    plain: Any = policy.head_logits
    policy.head_logits = lambda model, hidden: plain(model, hidden) + ban  # type: ignore[method-assign]
    return policy


def enumerated(
    policy: LanguagePolicy, prompt: list[int], allowed: list[int], most: int
) -> dict[tuple[int, ...], float]:
    """The log-probability of every answer, each token's given all before it, by the model itself."""
    end, found = policy.end_ids[0], dict[tuple[int, ...], float]()
    words = [t for t in allowed if t != end]
    paths = [(*p, end) for n in range(most) for p in product(words, repeat=n)] + list(product(words, repeat=most))
    for path in paths:
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *path]])).logits[0, len(prompt) - 1 : -1]
        logp = logits[:, allowed].log_softmax(-1)
        found[path] = float(sum(logp[i, allowed.index(t)] for i, t in enumerate(path)))
    return found


@pytest.fixture(scope="module")
def few() -> tuple[LanguagePolicy, list[int], Toy]:
    """A policy that says one of four tokens, the end among them, and a task of answers of four."""
    policy = random_policy()
    allowed = [policy.end_ids[0], 70, 71, 72]
    return saying_only(policy, allowed), allowed, Toy(max_tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize("per_token", [False, True])
def test_a_beam_that_drops_nothing_finds_the_likeliest_answer(
    few: tuple[LanguagePolicy, list[int], Toy], per_token: bool
) -> None:
    policy, allowed, task = few
    search = TokenBeam(width=200, per_token=per_token)
    trees = trees_of(policy, task, search)
    prompts = [list(trees.talk.tokens(root.row)) for root in trees.roots]
    for node, prompt in zip(search.find(trees), prompts, strict=True):
        every = enumerated(policy, prompt, allowed, task.max_tokens)
        assert math.fsum(math.exp(x) for x in every.values()) == pytest.approx(1, abs=1e-4)
        worth = {path: x / len(path) if per_token else x for path, x in every.items()}
        best = max(worth, key=worth.__getitem__)
        assert tuple(node.tokens) == best and sum(node.logp) == pytest.approx(every[best], abs=1e-4)


def test_width_one_is_greedy_and_wider_beams_find_likelier_answers() -> None:
    policy, task = random_policy(), Toy(max_tokens=5)
    plain = evaluate_split(policy, task, "test", problems=4, temperature=0)
    one = search_split(policy, task, "test", TokenBeam(width=1), problems=4)
    assert [e.completion for e in one.episodes] == [row[0].completion for row in plain.episodes]
    assert one.tokens.tolist() == [row[0].action_count for row in plain.episodes]
    wide = search_split(policy, task, "test", TokenBeam(width=6), problems=4)
    sums = [[sum(e.segments[-1].behaviour_logp) for e in found.episodes] for found in (one, wide)]
    assert all(b >= a - 1e-5 for a, b in zip(*sums)) and sum(sums[1]) > sum(sums[0]) + 1e-3
    alone = search_split(policy, task, "test", TokenBeam(width=6), problems=2)
    assert [e.completion for e in alone.episodes] == [e.completion for e in wide.episodes[:2]]


def test_what_follows_is_the_models_word_and_rows_go_on_from_it() -> None:
    policy = random_policy()
    talk = policy.converse()
    rows = talk.open(prompts := random_prompts(3))
    for _ in range(2):
        said = talk.following(rows, 4).log_softmax(-1)
        for row, tokens in zip(said, prompts):
            with torch.no_grad():
                whole = policy.model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            torch.testing.assert_close(row, whole, atol=1e-4, rtol=1e-4)
        new = said.argmax(-1).tolist()
        forks = talk.fork(rows)
        talk.extend(forks, [[t] for t in new])
        talk.close(rows)
        rows, prompts = forks, [[*p, t] for p, t in zip(prompts, new)]
    with pytest.raises(ValueError, match="ask once"):
        talk.following([rows[0], rows[0]], 4)
    how = Groups().sampling(Context(Toy(), policy, Stream(0), max_tokens=2))
    sampled = talk.sample(rows, how, draws(3))
    other = policy.converse()
    again = other.sample(
        other.open(prompts), Groups().sampling(Context(Toy(), policy, Stream(0), max_tokens=2)), draws(3)
    )
    assert [c.tokens for c in sampled] == [c.tokens for c in again]
