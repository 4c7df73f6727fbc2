"""Softmax trees: everything about them is a sum."""

from __future__ import annotations

import pytest
import torch

from etude.policies.tabular import SoftmaxTree

SHAPES = [(2, 3, 1, False), (2, 3, 2, False), (1, 2, 3, False), (2, 3, 3, True)]


def tree(shape: tuple[int, int, int, bool], members: int = 2) -> SoftmaxTree:
    prompts, vocabulary, length, ends = shape
    return SoftmaxTree(prompts, vocabulary, length, members, ends=ends, spread=1.0, seed=3)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_response_is_there_once_and_their_probabilities_sum_to_one(shape: tuple[int, int, int, bool]) -> None:
    policy = tree(shape)
    written = {tuple(t[m].tolist()) for t, m in zip(policy.tokens, policy.mask)}
    _, vocabulary, length, ends = shape
    expected = sum((vocabulary - 1) ** k for k in range(length)) + (vocabulary - 1) ** length
    assert len(written) == len(policy.tokens) == (expected if ends else vocabulary**length)
    torch.testing.assert_close(policy.probs().sum(-1), torch.ones(2, shape[0]).double(), atol=1e-14, rtol=0)


def test_a_response_is_as_likely_as_its_tokens_one_after_another() -> None:
    policy = tree((2, 3, 2, False))
    table = policy.logits[1].log_softmax(-1)
    first, second = 2, 1
    row = next(i for i, t in enumerate(policy.tokens.tolist()) if t == [first, second])
    root, node = policy.nodes[row].tolist()
    others = [n for r, (t, n) in enumerate(zip(policy.tokens.tolist(), policy.nodes.tolist())) if t[0] != first]
    assert node not in [n[1] for n in others]  # the second token's logits belong to this prefix alone
    by_hand = table[0, root, first] + table[0, node, second]
    assert policy.logp()[1, 0, row].item() == pytest.approx(by_hand.item(), abs=1e-14)


def test_samples_follow_the_probabilities() -> None:
    policy = tree((1, 3, 2, True), members=1)
    n = 40_000
    uniform = torch.rand(1, 1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(policy.sample(uniform)[0, 0], minlength=len(policy.tokens)) / n
    assert (counts - policy.probs()[0, 0]).abs().max() < 4 * (0.25 / n) ** 0.5


def test_rows_say_what_the_tables_say() -> None:
    policy = tree((2, 3, 3, True))
    response = torch.arange(len(policy.tokens))
    prompt = torch.ones_like(response)
    said = policy.rows(1, prompt, response, policy.table(), frozenset({"entropy", "hidden"}))
    torch.testing.assert_close(said.logp.sum(1), policy.logp()[1, 1])
    assert said.entropy is not None and said.hidden is not None and said.head is not None
    per_node = -(policy.table().exp() * policy.table()).sum(-1)[1, 1]
    torch.testing.assert_close(said.entropy[policy.mask], per_node[policy.nodes[policy.mask]])
    logp = said.head.logits(said.hidden).log_softmax(-1).gather(-1, policy.tokens[..., None])[..., 0]
    torch.testing.assert_close(torch.where(policy.mask, logp, 0.0), said.logp)


def test_the_head_knows_the_gradient_by_the_state_without_a_backward_pass() -> None:
    from etude.core.batches import Head

    generator = torch.Generator().manual_seed(0)
    for bias, softcap, temperature in ((False, None, 1.0), (True, None, 0.7), (True, 2.0, 1.3)):
        weight = torch.randn(7, 5, generator=generator, dtype=torch.float64)
        head = Head(weight, torch.randn(7, generator=generator).double() if bias else None, temperature, softcap)
        hidden = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
        tokens = torch.tensor([0, 3, 6, 3])
        logp = head.logits(hidden).log_softmax(-1).gather(1, tokens[:, None]).sum()
        (slope,) = torch.autograd.grad(logp, hidden)
        torch.testing.assert_close(head.score(hidden.detach(), tokens), slope, atol=1e-12, rtol=1e-10)
