"""SPO by trees: who goes on from whom, what nodes are worth, and the gradient that they estimate, by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.advantages.segments import SegmentAdvantage
from etude.core.batches import TokenBatch
from etude.core.edit import set_values
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.exact import gradient
from etude.experience.groups import Groups
from etude.experience.second_look import LookAgain
from etude.filters.informative import InformativeGroups
from etude.learners.token import TokenCritic
from etude.loops.credit import scored
from etude.methods.rlvr.max_at_k import BestOfGroup
from etude.methods.rlvr.spo.tree import NodesWithCredit, Tree
from etude.policies.tabular import SoftmaxTree
from etude.rewards.outcome import TaskReward
from etude.rewards.probes import backed_up
from etude.tasks.agents.attr_20q import attr_20q
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[..., TokenBatch]
SPO_TREE: Any = get_method("spo-tree")
SMALL: Any = set_values(SPO_TREE, {"experience.size": 3, "experience.deeper": "[2,2]", "experience.cap": 3})


def rows_of(method: Any, task: Any = None) -> tuple[TokenBatch, list[Episode]]:
    policy, task = random_policy(), task or Toy(max_tokens=8)
    context = Context(task, policy, Stream(5), max_tokens=task.max_tokens)
    episodes = method.experience.collect(task.problems("train")[:2], context)
    return scored(method, to_batch(episodes, 0, 0.6, policy.device), context), episodes


def test_nodes_go_on_from_others_and_only_leaves_are_paid() -> None:
    batch, episodes = rows_of(SMALL)
    assert len(batch) == len(episodes) == 40  # all of 2 * (3 + 6 + 12) but two, below a node that ended by itself
    depths = set()
    for number, e in enumerate(episodes):
        assert e.info["node"] == number
        turn, above = e.segments[-1], e.info["above"]
        begun = 0 if above < 0 else len(episodes[above].segments[-1].tokens)
        depths.add(begun)
        assert turn.action_mask == [0] * begun + [1] * (len(turn.tokens) - begun)
        assert len(turn.tokens) == min(begun + 3, 8) or e.stop is StopReason.TERMINATED
        if above >= 0:
            assert e.group == episodes[above].group and e.parent == above
            assert turn.tokens[:begun] == episodes[above].segments[-1].tokens
        below = [other for other in episodes if other.info["above"] == number]
        assert len(below) == (2 if e.stop is StopReason.PAUSED else 0)
        assert turn.reward == 0 or not below
    assert depths == {0, 3, 6} and len({e.draw.key for e in episodes if e.draw}) == len(episodes)
    assert batch.unfinished is not None and int(batch.unfinished.sum()) == 2 * 9 - 1


def test_the_last_level_has_all_the_room_that_is_left_and_short_limits_end_a_tree_early() -> None:
    long = rows_of(SMALL, Toy(max_tokens=20))[1]
    assert max(len(e.segments[-1].tokens) for e in long) == 20
    short = rows_of(SMALL, Toy(max_tokens=3))[1]
    assert len(short) == 6 and not any(e.unfinished for e in short)


def advantages(batch: TokenBatch) -> Tensor:
    """[B] of rows, all tokens of which have the same."""
    found = SegmentAdvantage()(batch)
    each = torch.stack([row[mask][0] for row, mask in zip(found, batch.action_mask)])
    assert torch.equal(found, each[:, None] * batch.action_mask)
    return each


def test_siblings_have_advantages_of_sum_0_and_a_node_the_mean_of_those_below() -> None:
    """Identity (2) of the row."""
    batch, episodes = rows_of(SMALL)
    found = advantages(batch)
    assert found.abs().max() > 0.01
    for above in {(e.group, e.info["above"]) for e in episodes}:
        rows = [i for i, e in enumerate(episodes) if (e.group, e.info["above"]) == above]
        assert float(found[rows].sum()) == pytest.approx(0, abs=1e-5)
        if above[1] >= 0:
            assert float(batch.scores[above[1]]) == pytest.approx(float(batch.scores[rows].mean()), abs=1e-6)
    for row, e in enumerate(episodes):
        if not e.unfinished:
            path, above = [row], e.info["above"]
            while above >= 0:
                path.append(above)
                above = episodes[above].info["above"]
            prompt = [i for i, other in enumerate(episodes) if other.group == e.group and other.info["above"] < 0]
            total = e.reward - float(batch.scores[prompt].mean())
            assert float(found[path].sum()) == pytest.approx(total, abs=1e-5)  # it telescopes along a path


def test_a_tree_of_one_level_compares_completions_as_groups_do() -> None:
    one = set_values(SPO_TREE, {"experience.size": 4, "experience.deeper": "[]", "experience.cap": 3})
    batch, episodes = rows_of(one)
    plain = Groups(size=4, temperature=0.6)
    policy, task = random_policy(), Toy(max_tokens=8)
    same = plain.collect(task.problems("train")[:2], Context(task, policy, Stream(5), max_tokens=8))
    assert [e.tokens for e in episodes] == [e.tokens for e in same]
    torch.testing.assert_close(advantages(batch), GroupAdvantage(scale=None).of_scores(batch, batch.scores))


def nodes_of(make_batch: Make, above: list[int], rewards: list[float], **changes: Any) -> TokenBatch:
    """Rows of one token each."""
    going = [number in above for number in range(len(above))]
    paid = torch.tensor(rewards, dtype=torch.float64)
    episodes = [Episode(Problem("p", "?"), info={"node": n, "above": a}) for n, a in enumerate(above)]
    return make_batch(
        [[1]] * len(above), rewards=paid[:, None], scores=paid, unfinished=going, episodes=episodes, **changes
    )  # fmt: skip


def test_payments_of_tokens_on_the_way_count_above_and_below(make_batch: Make) -> None:
    """Worth of a node: what it is paid itself, 0.5, and the mean of 1 and 0 below; of the other leaf, 0.2."""
    batch = backed_up(nodes_of(make_batch, [-1, -1, 0, 0], [0.5, 0.2, 1.0, 0.0]))
    assert batch.scores.tolist() == [1.0, 0.2, 1.0, 0.0]
    assert batch.sampled_values is not None
    assert batch.sampled_values[:, 0].tolist() == pytest.approx([0.6, 0.6, 0.5, 0.5])
    assert SegmentAdvantage()(batch)[:, 0].tolist() == pytest.approx([0.4, -0.4, 0.5, -0.5])


def test_what_was_lost_counts_nowhere(make_batch: Make) -> None:
    """The first node's children are gone: nobody knows what it is worth."""
    batch = nodes_of(make_batch, [-1, -1, -1, 0, 0], [0.0, 1.0, 0.0, 1.0, 1.0])
    left = backed_up(batch.rows(torch.tensor([0, 1, 2])))
    assert left.sampled_values is not None and bool(left.sampled_values[0, 0].isnan())
    assert SegmentAdvantage()(left)[:, 0].tolist() == [0.0, 0.5, -0.5]
    assert NodesWithCredit().weigh(left).tolist() == [0.0, 1.0, 1.0]
    one = backed_up(batch.rows(torch.tensor([0, 1, 2, 4])))
    assert SegmentAdvantage()(one)[:, 0].tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3, 0.0])


def test_nodes_without_credit_are_left_out_and_change_no_other_value(make_batch: Make) -> None:
    batch = backed_up(nodes_of(make_batch, [-1, -1, 0, 0, 0], [0.0, 1.0, 1 / 3, 1 / 3, 1 / 3]))
    kept = NodesWithCredit().weigh(batch)
    assert kept.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    found = SegmentAdvantage()(batch)
    torch.testing.assert_close(SegmentAdvantage()(batch.rows(kept.nonzero()[:, 0])), found[:2])


def test_each_level_estimates_its_part_of_the_gradient_times_a_known_factor(make_batch: Make) -> None:
    """E[A grad log pi] of a node is (n - 1) / n of the gradient by its token: the mean above holds the node itself."""
    policy = SoftmaxTree(1, 2, 2, spread=1.0, seed=4)
    paid = torch.tensor([0.3, 1.0, 0.0, 0.6], dtype=torch.float64)  # of 00, 01, 10, 11
    exact = gradient((policy.probs()[0, 0] * paid).sum(), policy)[0]
    table = policy.table().detach()[0, 0].exp()
    nodes = {(): int(policy.nodes[0, 0]), 0: int(policy.nodes[0, 1]), 1: int(policy.nodes[2, 1])}
    total = torch.zeros_like(exact)
    above = [-1, -1, 0, 0, 1, 1]
    for first in product(range(2), repeat=2):
        for second in product(range(2), repeat=4):
            owners = [nodes[()]] * 2 + [nodes[first[k // 2]] for k in range(4)]
            said = [*first, *second]
            chance = torch.stack([table[n, v] for n, v in zip(owners, said)]).prod()
            rewards = [0.0, 0.0, *(float(paid[2 * first[k // 2] + second[k]]) for k in range(4))]
            found = SegmentAdvantage()(backed_up(nodes_of(make_batch, above, rewards)))[:, 0]
            for row, (owner, token) in enumerate(zip(owners, said)):
                slope = -table[owner].clone()
                slope[token] += 1
                total[owner] += chance * found[row] * slope / (2 if row < 2 else 4)
    torch.testing.assert_close(total, exact / 2, atol=1e-12, rtol=0)
    assert exact.abs().max() > 0.05


@pytest.mark.slow
def test_the_loop_trains_and_resumes(tmp_path: Path) -> None:
    def numbers(loop: Any) -> dict[str, float]:
        return {k: v for k, v in loop.step().metrics.items() if not k.startswith(("seconds", "tokens_per"))}

    method = SMALL.replace(problems=3)
    loop, again = make_loop(method), make_loop(method)
    first = numbers(loop)
    assert first["rows"] == 3 * 21 and first["unfinished"] == pytest.approx(9 / 21)
    assert first["logp_gap"] < 1e-4 and first["weights_moved"] > 0
    loop.save(tmp_path)
    expected = numbers(loop)
    again.load(tmp_path)
    assert numbers(again) == expected


def test_what_cannot_work_is_refused() -> None:
    for changes, sentence in (
        ({"advantages": GroupAdvantage()}, "set advantages=segment-advantage"),
        ({"rewards": (TaskReward(), BestOfGroup())}, "compares completions"),
        ({"second_look": LookAgain()}, "second_look knows nothing"),
        ({"critic": TokenCritic()}, "critic knows nothing"),
        ({"filters": (InformativeGroups(),)}, "compares whole ones"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            SPO_TREE.replace(**changes).check()
    with pytest.raises(ConfigError, match="choose experience=forks"):
        check(SPO_TREE, attr_20q)
    with pytest.raises(ConfigError, match="have values"):
        get_method("grpo").replace(filters=(NodesWithCredit(),)).check()
    assert Tree(size=2, deeper=()).rows_per_problem == 2
