"""Chain traversal: hand-set weights walk it, at zero weights it is chance, the estimated gradient is the true one."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from etude.advantages.group import BatchMean
from etude.core.registry import get_method
from etude.experiments.rlvr.chain_model import (
    ChainModel,
    Problems,
    Said,
    accuracy,
    draw,
    generate,
    judge,
    reinforce_loss,
)

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"atol": 1e-10, "rtol": 0.0}


def walker(vertices: int, strength: float, softmax: bool) -> ChainModel:
    """A[v, (v, u)] = strength, V[(v, u), u] = 1, all else 0."""
    types = vertices + vertices**2
    queries, values = torch.zeros(vertices, types), torch.zeros(types, vertices)
    for v, u in product(range(vertices), repeat=2):
        queries[v, vertices + v * vertices + u] = strength
        values[vertices + v * vertices + u, u] = 1.0
    return ChainModel(queries, values, 0.2, softmax)


@pytest.mark.first
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(("length", "vertices"), [(2, 4), (3, 6), (4, 12), (8, 16), (12, 24)])
def test_hand_set_weights_traverse_every_chain(length: int, vertices: int, softmax: bool) -> None:
    random = torch.Generator().manual_seed(length)
    for start in range(length - 1):
        found = accuracy(
            walker(vertices, 50.0, softmax),
            length=length,
            vertices=vertices,
            starts=[start],
            count=64,
            generator=random,
        )
        assert found == (1.0, 1.0)


def test_a_prompt_counts_its_edges_and_its_source() -> None:
    problems = draw(200, 3, 8, [0, 1], torch.Generator().manual_seed(0))
    assert set(problems.start.tolist()) == {0, 1}
    for row in range(200):
        chain, start = problems.chain[row].tolist(), int(problems.start[row])
        types = problems.counts[row].nonzero()[:, 0].tolist()
        vertices, edges = [t for t in types if t < 8], [divmod(t - 8, 8) for t in types if t >= 8]
        assert vertices == [chain[start]] == [int(problems.source[row])]
        assert len(edges) == 4 and {(chain[0], chain[1]), (chain[1], chain[2])} <= set(edges)
        ends = {b for _, b in edges} - {a for a, _ in edges}
        assert ends == set(problems.sinks[row].tolist()) and int(problems.sinks[row, 0]) == chain[2]
        assert len({v for e in edges for v in e}) == 6


def enumerate_said(model: ChainModel, problems: Problems) -> Said:
    """Everything that can be said to one problem, each ended by its first sink or by the limit."""
    sinks, limit = set(problems.sinks[0].tolist()), problems.chain.shape[1] + 1
    n = model.values.shape[1]
    found: list[tuple[list[int], Tensor]] = []

    def go(path: list[int], counts: Tensor, vertex: Tensor, logp: Tensor) -> None:
        if path and (path[-1] in sinks or len(path) == limit):
            found.append((path, logp))
            return
        table = model.logits(vertex, counts).log_softmax(-1)[0]
        for u in range(n):
            more = counts.clone()
            more[0, u] += 1
            go([*path, u], more, torch.tensor([u]), logp + table[u])

    go([], problems.counts, problems.source, torch.zeros((), dtype=model.queries.dtype))
    tokens = torch.tensor([p + [0] * (limit - len(p)) for p, _ in found])
    going = torch.tensor([[k < len(p) for k in range(limit)] for p, _ in found])
    many = Problems(*(getattr(problems, k).expand(len(found), *getattr(problems, k).shape[1:]) for k in vars(problems)))
    return Said(tokens, going, torch.stack([x for _, x in found]), *judge(many, tokens, going))


def double(problems: Problems) -> Problems:
    return Problems(problems.chain, problems.start, problems.counts.double(), problems.sinks)


def model_of(vertices: int, scale: float, seed: int = 0) -> ChainModel:
    types = vertices + vertices**2
    random = torch.Generator().manual_seed(seed)
    a, v = (torch.randn(*s, generator=random, dtype=torch.float64) for s in ((vertices, types), (types, vertices)))
    return ChainModel((scale * a).requires_grad_(), (scale * v).requires_grad_(), 1.0)


@pytest.mark.parametrize("length", [2, 3])
def test_without_weights_every_start_has_the_same_chance(length: int) -> None:
    n = 2 * length
    model = model_of(n, 1e-9)
    for start in range(length - 1):
        problems = double(draw(1, length, n, [start], torch.Generator().manual_seed(start)))
        first = model.logits(problems.source, problems.counts).softmax(-1)
        torch.testing.assert_close(first, torch.full_like(first, 1 / n), **EXACT)
        said = enumerate_said(model, problems)
        chance = said.logp.exp().detach()
        assert float(chance.sum()) == pytest.approx(1, abs=1e-10)
        sink = 1 - (1 - 2 / n) ** (length + 1)
        assert float((chance * said.reward).sum()) == pytest.approx(sink / 2, abs=1e-10)


@pytest.mark.slow
def test_the_estimated_gradient_is_the_exact_one() -> None:
    model = model_of(4, 0.6)
    problems = double(draw(1, 2, 4, [0], torch.Generator().manual_seed(0)))
    said = enumerate_said(model, problems)
    exact = torch.autograd.grad((said.logp.exp() * said.reward).sum(), model.parameters())
    count = 200_000
    many = Problems(*(getattr(problems, k).expand(count, *getattr(problems, k).shape[1:]) for k in vars(problems)))
    sampled = generate(model, many, torch.Generator().manual_seed(1))
    expected = float((said.logp.exp() * said.reward).sum().detach())
    assert float(sampled.reward.mean()) == pytest.approx(expected, abs=4 * 0.5 / count**0.5)
    estimate = torch.autograd.grad(reinforce_loss(sampled), model.parameters())
    for mine, theirs in zip(estimate, exact):
        torch.testing.assert_close(-mine, theirs, atol=0.01, rtol=0)
        assert float(torch.cosine_similarity(-mine.flatten(), theirs.flatten(), dim=0)) > 0.999


def test_the_baseline_turns_the_expected_gradient_nowhere() -> None:
    """Any constant leaves it alone; the mean of a batch of two, which holds the sample itself, halves it."""
    model = model_of(4, 0.6, 1)
    said = enumerate_said(model, double(draw(1, 2, 4, [0], torch.Generator().manual_seed(3))))
    chance = said.logp.exp().detach()
    exact = torch.autograd.grad((said.logp.exp() * said.reward).sum(), model.parameters(), retain_graph=True)
    for baseline in (0.0, 0.3, 1.0):
        loss = (chance * (said.reward - baseline) * said.logp).sum()
        for mine, theirs in zip(torch.autograd.grad(loss, model.parameters(), retain_graph=True), exact):
            torch.testing.assert_close(mine, theirs, **EXACT)
    total = torch.zeros((), dtype=torch.float64)
    for i, j in product(range(len(chance)), repeat=2):
        pair = torch.tensor([i, j])
        rows = Said(said.tokens[pair], said.going[pair], said.logp[pair], said.reward[pair], said.traversed[pair])
        total = total + chance[i] * chance[j] * reinforce_loss(rows)
    for mine, theirs in zip(torch.autograd.grad(total, model.parameters()), exact):
        torch.testing.assert_close(mine, -theirs / 2, **EXACT)


def test_the_sampler_records_its_own_log_probabilities() -> None:
    model = model_of(6, 0.5)
    problems = double(draw(50, 3, 6, [0, 1], torch.Generator().manual_seed(0)))
    said = generate(model, problems, torch.Generator().manual_seed(0))
    for row in range(50):
        one = Problems(*(getattr(problems, k)[row : row + 1] for k in vars(problems)))
        counts, vertex, logp = one.counts.clone(), one.source, torch.zeros((), dtype=torch.float64)
        for token, on in zip(said.tokens[row], said.going[row]):
            if on:
                logp = logp + model.logits(vertex, counts).log_softmax(-1)[0, token]
                counts[0, token] += 1
                vertex = token[None]
        torch.testing.assert_close(said.logp[row], logp, **EXACT)


def test_only_the_way_itself_is_a_traversal() -> None:
    """m = 3: chain 0 1 2, the other one ends in 5; four tokens at most, none counts after a sink."""
    chain, counts = torch.tensor([[0, 1, 2]]), torch.zeros(1, 42)
    problems = Problems(chain, torch.tensor([0]), counts, torch.tensor([[2, 5]]))
    cases = {
        (1, 2): (1.0, True), (2,): (1.0, False), (1, 1, 2): (1.0, False), (1, 5): (0.0, False),
        (3, 1, 0, 4): (0.0, False), (4, 4, 4, 2): (1.0, False),
    }  # fmt: skip
    for said, (reward, traversed) in cases.items():
        tokens = torch.tensor([[*said, *[2] * (4 - len(said))]])  # what stands behind the end does not count
        going = torch.tensor([[k < len(said) for k in range(4)]])
        found = judge(problems, tokens, going)
        assert (float(found[0]), bool(found[1])) == (reward, traversed), said


def test_the_method_sums_token_losses_and_centres_on_the_batch() -> None:
    method = get_method("chain-traversal-rl")
    changed = set(method.diff(get_method("reinforce")))
    assert changed == {"aggregation"}
    assert method.advantages is not None and method.advantages.baseline == BatchMean()
