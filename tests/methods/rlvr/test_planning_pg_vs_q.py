"""Policy gradient is supervised learning on right answers; Q-learning's fixed points; what outcome rewards forget."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Problem, Segment
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experiments.rlvr.path_models import Graphs, Walks, excess, log_likelihood, pairs_tensor, walk
from etude.experiments.rlvr.planning_pg_vs_q import pg_gradient, q_gradient, q_target, teach
from etude.loops.language import LanguageLoop
from etude.loops.update import Updater
from etude.methods.rlvr.planning_pg_vs_q import LogitsAsValues, PathSteps, Taught, q_learning, q_targets
from etude.optimizers.adam import AdamW
from etude.policies.language import LanguagePolicy
from etude.policies.written import written
from etude.rewards.scoring import score
from etude.tasks.language.paths import Paths, data

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"atol": 1e-10, "rtol": 0.0}
METHOD = get_method("planning-pg-vs-q")


# Policy gradient


@pytest.fixture
def batch(make_batch: Callable[..., TokenBatch]) -> TokenBatch:
    """Four completions, two of them right."""
    mask = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0]])
    right = torch.tensor([1.0, 0.0, 0.0, 1.0])
    rewards = torch.zeros(4, 4)
    rewards[[0, 3], [3, 1]] = 1.0
    tokens = torch.tensor([[0, 1, 2, 3], [0, 2, 2, 0], [0, 3, 1, 0], [0, 1, 0, 0]])
    made = make_batch(mask, tokens=tokens, rewards=rewards, scores=right)
    made.advantages = METHOD.advantages(made)
    return made


def tabular(batch: TokenBatch) -> tuple[Tensor, TokenLogProbs]:
    """Logits by position, and what they say about the batch."""
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    said = logits.log_softmax(-1).expand(4, 4, 4).gather(-1, batch.tokens[..., None])[..., 0]
    return logits, TokenLogProbs(torch.where(batch.action_mask, said, 0.0))


def test_without_kl_it_is_supervised_learning_on_the_right_answers(batch: TokenBatch) -> None:
    logits, policy = tabular(batch)
    (found,) = torch.autograd.grad(METHOD.objective(batch, policy).sum(), logits, retain_graph=True)
    right = batch.rows(torch.tensor([0, 3]))
    kept = TokenLogProbs(policy.logp[torch.tensor([0, 3])])
    (expected,) = torch.autograd.grad(get_method("sft").objective(right, kept).sum(), logits)
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("strength", [0.0, 1e-3, 0.1])
def test_the_penalty_is_the_papers(batch: TokenBatch, strength: float) -> None:
    """-sum (R - lambda sg[log(pi / base)]) log pi, by the policy gradient and the k2 estimate."""
    logits, policy = tabular(batch)
    batch.reference_logp = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (part,) = METHOD.regularizers
    loss = METHOD.objective(batch, policy) + part.replace(coefficient=strength)(batch, policy)
    (found,) = torch.autograd.grad((loss * batch.action_mask).sum(), logits, retain_graph=True)
    ratio = (policy.logp - batch.reference_logp).detach()
    credit = (batch.scores[:, None] - strength * ratio) * batch.action_mask
    (expected,) = torch.autograd.grad(-(credit * policy.logp).sum(), logits)
    torch.testing.assert_close(found, expected, **EXACT)


def graphs(count: int = 2) -> Graphs:
    return Graphs.of([data(Paths(nodes=10, density=0.3, demonstrations=5, seed=k)) for k in range(count)])


def sampled(made: Graphs, table: Tensor) -> Walks:
    asked = pairs_tensor([d.train for d in made.sets], 40)
    return walk(table, made.edges, *asked, 6, [torch.Generator().manual_seed(s) for s in range(len(made.sets))])


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_the_tables_gradient_equals_autograd(penalty: float) -> None:
    made = graphs()
    random = torch.Generator().manual_seed(0)
    table, base = torch.randn(2, 2, 10, 10, 10, generator=random, dtype=torch.float64)
    table = (table + 4 * made.edges[:, None].double()).requires_grad_()  # so that some walks are valid
    walks = sampled(made, table.detach())
    assert 0 < float(walks.solved.double().mean()) < 1
    total = torch.zeros((), dtype=torch.float64)
    for s in range(2):
        for b in range(40):
            for m in range(walks.going.shape[-1]):
                if walks.going[s, b, m]:
                    i, j, k = int(walks.target[s, b]), int(walks.nodes[s, b, m]), int(walks.nodes[s, b, m + 1])
                    logp = table[s, i, j].log_softmax(0)[k]
                    ratio = (logp - base[s, i, j].log_softmax(0)[k]).detach()
                    total = total - (float(walks.solved[s, b]) - penalty * ratio) * logp / 40
    (expected,) = torch.autograd.grad(total, table)
    torch.testing.assert_close(pg_gradient(table.detach(), base, walks, penalty), expected, **EXACT)


def test_the_tables_policy_gradient_is_supervised_learning_on_valid_walks() -> None:
    made = graphs()
    table = 4 * made.edges[:, None].double().expand(2, 10, 10, 10).clone()
    walks = sampled(made, table)
    counts = torch.zeros_like(table)
    for s, b in walks.solved.nonzero().tolist():
        path = walks.nodes[s, b].tolist()
        path = path[: path.index(int(walks.target[s, b])) + 1]
        for j, k in pairwise(path):
            counts[s, path[-1], j, k] += 1
    torch.testing.assert_close(pg_gradient(table, table, walks, 0.0) * 40, excess(table, counts), **EXACT)


# Supervised learning


@pytest.mark.slow
def test_the_supervised_minimum_is_the_empirical_frequency() -> None:
    made = graphs()
    share = made.counts / made.counts.sum(-1, keepdim=True).clamp(min=1)
    seen = made.counts.sum(-1) > 0
    at = excess(made.counts.clamp(min=1e-300).log(), made.counts)
    torch.testing.assert_close(at[seen], torch.zeros_like(at[seen]), **EXACT)
    learned = teach(made, torch.zeros_like(made.counts), 1500).softmax(-1)
    torch.testing.assert_close(learned[seen], share[seen], atol=5e-3, rtol=0)
    best = log_likelihood(made.counts.clamp(min=1e-300).log(), made.counts)
    assert bool((log_likelihood(learned.log(), made.counts) <= best).all())


# Q-learning


def every_step(made: Graphs) -> Walks:
    """A walk for each target i, node j and next node k, with a step to nowhere behind it so that it is not cut off."""
    n = made.nodes
    i, j, k = (x.flatten()[None] for x in torch.meshgrid(*[torch.arange(n)] * 3, indexing="ij"))
    legal = made.edges[0][j, k]
    going = torch.stack([torch.ones_like(legal), torch.zeros_like(legal)], -1)
    return Walks(i, torch.stack([j, k, k], -1), going, torch.stack([legal, legal], -1), (i == k) & legal, n)


@pytest.mark.parametrize("graph", ["dag", "directed"])
@pytest.mark.parametrize("seed", range(3))
def test_process_rewards_lead_to_one_for_right_steps_and_less_for_each_fault(graph: str, seed: int) -> None:
    """Value iteration from below: 1 where A[j, k] and R[i, k], 0 with one of them, -1 with neither; R[i, i] = 1.

    Without discount, values that start too high may stay so on a cycle of edges.
    """
    made = Graphs.of([data(Paths(graph=graph, nodes=12, density=0.25, demonstrations=2, seed=seed))])
    walks, n = every_step(made), 12
    table = -1 - 3 * torch.rand(1, n, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for _ in range(2 * n):
        table = q_target(table, walks, 0, True).view(1, n, n, n)
    reach = torch.from_numpy(made.sets[0].reaches.T | np.eye(n, dtype=bool))
    expected = made.edges[0].double()[None] + reach.double()[:, None] - 1
    off = ~torch.eye(n, dtype=torch.bool)  # nothing follows after the target
    torch.testing.assert_close(table[0][off], expected[off], **EXACT)


def test_process_q_learning_gets_there_by_gradient_steps() -> None:
    """With every step equally often."""
    made = Graphs.of([data(Paths(nodes=7, density=0.5, demonstrations=2))])
    table, walks = torch.zeros(1, 7, 7, 7, dtype=torch.float64), every_step(made)
    for _ in range(150):
        table -= 7**3 / 4 * q_gradient(table, walks, True)
    reach = torch.from_numpy(made.sets[0].reaches.T | np.eye(7, dtype=bool))
    expected = made.edges[0].double()[None] + reach.double()[:, None] - 1
    off = ~torch.eye(7, dtype=torch.bool)
    torch.testing.assert_close(table[0][off], expected[off], **EXACT)


def test_outcome_targets_do_not_depend_on_where_one_is() -> None:
    made = graphs(1)
    walks, n = every_step(made), 10
    table = torch.randn(1, n, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = q_target(table, walks, 0, False).view(n, n, n)
    best = table[0].amax(-1)  # [i, k]
    other = ~torch.eye(n, dtype=torch.bool)
    for j in range(n):
        torch.testing.assert_close(found[:, j][other], best[other], **EXACT)
    right = found.diagonal(dim1=0, dim2=2).T  # [i, j]: the step to the target is paid if it is an edge
    torch.testing.assert_close(right, made.edges[0].T.double(), **EXACT)


def test_outcome_q_learning_makes_rows_constant_in_the_current_node() -> None:
    made = Graphs.of([data(Paths(nodes=8, density=0.4, demonstrations=5))])
    base = teach(made, torch.zeros_like(made.counts), 200)
    table, walks, spread = base.clone(), every_step(made), []
    for _ in range(4):
        spread.append(float(table[0].var(1)[~torch.eye(8, dtype=torch.bool)].mean()))  # over j, for k != i
        for _ in range(10):
            table -= 8**3 / 4 * q_gradient(table, walks, False)
    assert all(after < 1e-3 * before for before, after in pairwise(spread))


def test_the_tables_q_gradient_is_that_of_the_squared_error() -> None:
    made = graphs()
    table = torch.randn(2, 10, 10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = (table + 3 * made.edges[:, None].double()).requires_grad_()
    walks = sampled(made, table.detach())
    for process in (True, False):
        total = torch.zeros((), dtype=torch.float64)
        for s in range(2):
            for b in range(40):
                path = walks.nodes[s, b].tolist()
                steps = int(walks.going[s, b].sum())
                i = int(walks.target[s, b])
                for m in range(steps):
                    j, k = path[m], path[m + 1]
                    fault = float(not made.edges[s, j, k])
                    r = (k == i) - fault if process else float(k == i and bool(walks.solved[s, b]))
                    ahead = 0.0 if k == i or m + 1 == walks.going.shape[-1] else float(table[s, i, k].detach().max())
                    total = total + (table[s, i, j, k] - r - ahead) ** 2 / 40
        (expected,) = torch.autograd.grad(total, table, retain_graph=True)
        torch.testing.assert_close(q_gradient(table.detach(), walks, process), expected, **EXACT)


# The parts of the language loop


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return LanguagePolicy.load("blank:1x32", device="cpu", dtype="float64")


TASK = Paths(nodes=8, density=0.4, demonstrations=2)


def a_problem() -> Problem:
    """The first one whose way has a stop."""
    return next(p for p in TASK.problems("train")[:1000] if len(p.info["demonstration"]) > 1)


def answered(policy: LanguagePolicy, texts: list[str]) -> TokenBatch:
    """The problem, answered in writing."""
    problem = a_problem()
    segments = [[Segment("user", str(problem.prompt)), Segment("assistant", text)] for text in texts]
    found = to_batch([written(problem, s, 0, policy) for s in segments], 0, 1.0, torch.device("cpu"))
    found.solved = torch.tensor([bool(TASK.score(problem, t)) for t in texts])
    return found


def rewards(policy: LanguagePolicy, part: PathSteps, texts: list[str]) -> list[list[float]]:
    """What is paid for the tokens of each answer, its end included."""
    batch = answered(policy, texts)
    shaped = part.shape_in(batch, Context(TASK, policy, Stream(0)))
    assert not shaped[~batch.action_mask].any()
    return [shaped[row][batch.action_mask[row]].tolist() for row in range(len(texts))]


def test_process_rewards_token_by_token(policy: LanguagePolicy) -> None:
    source, way = a_problem().info["source"], a_problem().info["demonstration"]
    texts = [way, way[:-1], source + way, "?" + way, way + source]
    right, early, back, junk, past = rewards(policy, PathSteps(kind="process"), texts)
    assert right == [0.0] * (len(right) - 2) + [1.0, 1.0]  # the target, and the end behind it
    assert early == [0.0] * (len(early) - 1) + [-1.0]  # ends where it must not
    assert back == [-1.0, *right]  # no edge leads from a node to itself
    assert junk == [-1.0, -1.0, *right[1:]]  # what is no node is reached by no edge and leads nowhere
    assert past == [*right[:-1], -1.0, -1.0]  # from the target back to the source, in a graph without cycles


def test_outcome_rewards_only_at_the_end_of_a_valid_path(policy: LanguagePolicy) -> None:
    source, way = a_problem().info["source"], a_problem().info["demonstration"]
    right, *wrong = rewards(policy, PathSteps(kind="outcome"), [way, way[:-1], source + way, way + source])
    assert right == [0.0] * (len(right) - 2) + [1.0, 1.0]
    assert all(not any(row) for row in wrong)


def test_values_are_bootstrapped_from_the_next_token_of_the_policy(make_batch: Callable[..., TokenBatch]) -> None:
    """Tokens of an observation between two turns are skipped; nothing follows a final token or the last one."""
    mask = [[0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 0, 0]]
    z = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = torch.randint(5, (2, 6), generator=torch.Generator().manual_seed(1))
    r = torch.randn(2, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    batch = make_batch(mask, tokens=tokens, rewards=r)
    batch.final = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]]).bool()
    policy = TokenLogProbs(torch.zeros(2, 6), logits=z.requires_grad_())
    targets, best = q_targets(batch, policy), z.detach().amax(-1)
    expected = r.clone()
    for row, at, ahead in ((0, 1, 2), (0, 2, 4), (0, 4, 5), (1, 1, 2)):
        expected[row, at] += best[row, ahead]
    on = batch.action_mask
    torch.testing.assert_close(targets[on], expected[on], **EXACT)
    loss = LogitsAsValues()(batch, policy)
    (slope,) = torch.autograd.grad(loss[on].sum(), z)
    value = z.detach().gather(-1, tokens[..., None])[..., 0]
    wanted = torch.zeros_like(z).scatter(-1, tokens[..., None], (2 * (value - expected) * on)[..., None])
    torch.testing.assert_close(slope, wanted, **EXACT)


def test_logits_are_those_of_the_model_and_carry_its_gradient(policy: LanguagePolicy) -> None:
    found = answered(policy, [a_problem().info["demonstration"], "0"])
    said = policy.evaluate(found, {"logits"})
    direct = policy.model(input_ids=found.tokens, attention_mask=found.attention_mask).logits[:, :-1]
    on = found.action_mask[:, 1:]
    torch.testing.assert_close(said.logits[:, 1:][on], direct[on], atol=1e-10, rtol=1e-8)
    chosen = said.logits.log_softmax(-1).gather(-1, found.tokens[..., None])[..., 0]
    torch.testing.assert_close(chosen[found.action_mask], said.logp[found.action_mask], atol=1e-10, rtol=0)
    assert said.logits.requires_grad


def test_the_loss_of_planning_q_learning_end_to_end() -> None:
    """All of the composition, on four answers of different length, against the equation written out token by token.

    The end of the graph's paths and the target are worth 1 and are followed by nothing; what is no edge costs 1.
    """
    policy, method = LanguagePolicy.load("blank:1x32", device="cpu", dtype="float64"), q_learning
    method = method.stages[-1].apply(method).replace(stages=(), optimizer=AdamW(lr=1e-3, clip_norm=None)).bind()
    source, way = a_problem().info["source"], a_problem().info["demonstration"]
    batch = answered(policy, [way, way[:-1], source + way, "?" + way])
    sampled = torch.zeros(4, dtype=torch.bool)
    batch = batch.replace(written=sampled, elsewhere=~sampled)  # as of another policy: nothing is compared
    begins = [int(mask.nonzero()[0, 0]) for mask in batch.action_mask]
    right = [0.0] * (len(way) - 1) + [1.0, 1.0]
    paid = [right, [0.0] * (len(way) - 1) + [-1.0], [-1.0, *right], [-1.0, -1.0, *right[1:]]]
    z = policy.model(input_ids=batch.tokens, attention_mask=batch.attention_mask).logits
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, (start, rewards_of) in enumerate(zip(begins, paid)):
        over = False
        for t, r in enumerate(rewards_of):
            over = over or r == 1.0  # at the target, nothing follows
            ahead = 0.0 if over or t + 1 == len(rewards_of) else float(z[row, start + t].detach().max())
            total = total + (z[row, start + t - 1, batch.tokens[row, start + t]] - r - ahead) ** 2
            count += 1
    wanted = torch.autograd.grad(total / count, list(policy.model.parameters()), materialize_grads=True)
    batch = score(batch, method.rewards, Context(TASK, policy, Stream(0)))
    updater = Updater(policy, method, 2, 40, 16)  # several micro-batches
    assert updater.run(method, batch, 1, Stream(0))["loss"] == pytest.approx(float((total / count).detach()), abs=1e-7)
    for parameter, gradient in zip(policy.model.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-7, rtol=0)


@pytest.mark.slow
def test_both_compositions_train_through_the_loop() -> None:
    for method in (METHOD, q_learning, q_learning.replace(rewards=(PathSteps(kind="outcome"),))):
        small = method.replace(problems=4)
        loop = LanguageLoop(small, TASK, LanguagePolicy.load("blank:1x32", device="cpu"), seed=0, steps=4)
        metrics = [loop.step().metrics for _ in range(4)]
        assert all(np.isfinite(list(m.values())).all() for m in metrics)
        assert ("accuracy" in metrics[-1]) and ("accuracy" not in metrics[0])


@pytest.mark.slow
def test_the_reference_is_the_policy_at_the_end_of_teaching() -> None:
    policy = LanguagePolicy.load("blank:1x32", device="cpu")
    loop = LanguageLoop(METHOD.replace(problems=4), TASK, policy, seed=0, steps=4)
    loop.step(), loop.step()
    taught = {k: v.clone() for k, v in policy.model.named_parameters()}
    loop.step(), loop.step()
    kept = dict(policy.reference.named_parameters())
    assert all(torch.equal(kept[k], v) for k, v in taught.items())
    assert Taught().bind().refresh(3) == 0.0
