"""SPO by trees: who goes on from whom, what nodes are worth, and the gradient that they estimate, by enumeration."""

from __future__ import annotations

from collections import Counter
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
from etude.loops.credit import scored, shown
from etude.methods.rlvr.max_at_k import BestOfGroup
from etude.methods.rlvr.spo.tree import NodesWithCredit, OverSiblings, Tree
from etude.objectives.policy_gradient import PolicyGradient
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
    episodes = method.experience.bind().collect(task.problems("train")[:2], context)
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


def test_a_tree_of_one_level_over_its_deviation_is_the_advantage_of_grpo() -> None:
    """Identity (2) of the row: the population deviation."""
    one = set_values(SPO_TREE, {"experience.size": 4, "experience.deeper": "[]", "experience.cap": 3})
    batch, _ = rows_of(one.replace(advantages=OverSiblings()))
    found = OverSiblings()(batch)
    torch.testing.assert_close(found, GroupAdvantage()(batch))
    assert found.abs().max() > 0.5


def test_siblings_of_a_node_are_divided_by_their_own_deviation(make_batch: Make) -> None:
    """1 and 0 below the first node: 0.5 and a deviation of 0.5; the node itself and 0.2 beside it: 0.35 and 0.15."""
    batch = backed_up(nodes_of(make_batch, [-1, -1, 0, 0], [0.0, 0.2, 1.0, 0.0]))
    assert OverSiblings(epsilon=0.0)(batch)[:, 0].tolist() == pytest.approx([1, -1, 1, -1])
    equal = backed_up(nodes_of(make_batch, [-1, -1], [0.2, 0.2]))
    assert OverSiblings(epsilon=0.0)(equal).tolist() == [[0.0], [0.0]]
    without = batch.rows(torch.tensor([0, 3]))  # as filters leave them
    assert OverSiblings(epsilon=0.0)(without)[:, 0].tolist() == pytest.approx([1, -1])


def steps_of(method: Any, count: int, problems: int = 2) -> list[TokenBatch]:
    """Scored rows of so many steps, each of other problems, with the weights that the filters give them."""
    policy, task = random_policy(), Toy(max_tokens=8)
    method, found = method.bind(), list[TokenBatch]()
    for step in range(count):
        context = Context(task, policy, Stream(5).split("step", step), max_tokens=task.max_tokens)
        pool = task.problems("train")
        asked = [pool[(step * problems + i) % len(pool)] for i in range(problems)]
        episodes = method.experience.collect(asked, context)
        batch = scored(method, to_batch(episodes, 0, 0.6, policy.device), context)
        shown(method, batch)
        found.append(batch.replace(weights=method.filters[0].weigh(batch)))
    return found


def says(episode: Episode) -> tuple[str, list[int], list[int], list[float]]:
    turn = episode.segments[-1]
    return episode.problem.id, turn.tokens, turn.action_mask, turn.behaviour_logp


def test_what_is_too_much_for_a_step_is_learned_from_in_one_of_the_next() -> None:
    """Every node once, with the log-probabilities, the worth and the advantage of when it was sampled."""
    few = set_values(SMALL, {"experience.at_most": 5})
    found, wanted = list[Any](), list[Any]()
    batches = steps_of(few, 4, problems=1)
    asked = [batch.episodes[0].problem.id for batch in batches]
    assert asked[3] == asked[0]  # beside what waits of it
    for step, batch in enumerate(batches):
        own = advantages(batch)
        new = [i for i, e in enumerate(batch.episodes) if "node" in e.info]
        if step == 0:
            wanted += [(says(batch.episodes[i]), own[i].item()) for i in new if abs(float(own[i])) > 1e-6]
        own_rows = [i for i, e in enumerate(batch.episodes) if e.problem.id == asked[0] and batch.weights[i]]
        found += [(says(batch.episodes[i]), own[i].item()) for i in own_rows if step == 0 or i not in new]
        learned = Counter(e.problem.id for e, w in zip(batch.episodes, batch.weights) if w)
        assert max(learned.values()) <= 5
        assert all(e.group >= 1 and e.unfinished for e in batch.episodes if "node" not in e.info)
    assert 15 < len(wanted) <= 20
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_what_waits_longer_than_allowed_is_lost() -> None:
    short = set_values(SMALL, {"experience.at_most": 2, "experience.steps": 2})
    batches = steps_of(short, 5, problems=1)
    first = batches[0].episodes[0].problem.id
    waited = [sum(e.problem.id == first and "node" not in e.info for e in b.episodes) for b in batches]
    assert waited == [0, 2, 2, 0, 2]  # the last two are of when it was asked again
    every = steps_of(set_values(SMALL, {"experience.at_most": "none"}), 2, problems=1)
    assert all("node" in e.info for e in every[1].episodes)
    assert every[0].weights.tolist() == NodesWithCredit().weigh(every[0]).tolist() and float(every[0].weights.sum()) > 4


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
@pytest.mark.parametrize("at_most", [32, 3])
def test_the_loop_trains_and_resumes(tmp_path: Path, at_most: int) -> None:
    """Also while nodes wait, which a checkpoint holds."""

    def numbers(loop: Any) -> dict[str, float]:
        return {k: v for k, v in loop.step().metrics.items() if not k.startswith(("seconds", "tokens_per"))}

    method = set_values(SMALL, {"experience.at_most": at_most}).replace(problems=3)
    loop, again = make_loop(method), make_loop(method)
    first = numbers(loop)
    assert first["rows"] == 3 * 21 and first["unfinished"] == pytest.approx(9 / 21)
    assert first["logp_gap"] < 1e-4 and first["weights_moved"] > 0
    loop.save(tmp_path)
    expected = numbers(loop)
    assert (expected["rows"] > 3 * 21) == (at_most == 3)
    again.load(tmp_path)
    assert numbers(again) == expected


def test_what_cannot_work_is_refused() -> None:
    for changes, sentence in (
        ({"advantages": GroupAdvantage()}, "set advantages=segment-advantage"),
        ({"rewards": (TaskReward(), BestOfGroup())}, "compares completions"),
        ({"second_look": LookAgain()}, "second_look knows nothing"),
        ({"critic": TokenCritic()}, "critic knows nothing"),
        ({"filters": (InformativeGroups(),)}, "compares whole ones"),
        ({"filters": ()}, "set filters=nodes-with-credit"),
        ({"objective": PolicyGradient()}, "experience.at_most=none"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            SPO_TREE.replace(**changes).check()
    with pytest.raises(ConfigError, match="choose experience=forks"):
        check(SPO_TREE, attr_20q)
    SPO_TREE.replace(filters=(), experience=SPO_TREE.experience.replace(at_most=None)).check()
    with pytest.raises(ConfigError, match="choose experience=tree"):
        get_method("spo").replace(advantages=OverSiblings()).check()
    with pytest.raises(ConfigError, match="have values"):
        get_method("grpo").replace(filters=(NodesWithCredit(),)).check()
    assert Tree(size=2, deeper=()).rows_per_problem == 2
