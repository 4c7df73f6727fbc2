"""DeepSearch: what is backed up, where a search goes on, and what its answers are learned with."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.advantages.group import GroupAdvantage
from etude.core.draws import Draw
from etude.core.edit import set_values
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.errors import ConfigError, InvariantError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.second_look import LookAgain
from etude.loops.credit import scored
from etude.loops.gather import Gatherer
from etude.methods.rlvr.deepsearch import SeldomSolved, TreeValueAdvantage
from etude.methods.rlvr.deepsearch.trees import FromTheRoot, GlobalFrontier, SearchedGroups, _Search
from etude.planners.trees import Node
from etude.tasks.agents.attr_20q import attr_20q
from language_toys import Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
DEEP: Any = get_method("deepsearch")


def vowel(problem: Problem, completion: str) -> float:
    return float(any(c in "aeiouAEIOU" for c in completion))


TASK = Toy(scoring=vowel, max_tokens=6)
SMALL: Any = set_values(DEEP, {"experience.size": 4, "experience.width": 3, "experience.depth": 3})


def found(method: Any = SMALL, task: Any = TASK, seed: int = 5, problems: Any = None) -> tuple[list[Episode], Any]:
    policy = random_policy()
    context = Context(task, policy, Stream(seed), max_tokens=task.max_tokens)
    part = method.experience if "_state" in vars(method.experience) else method.experience.bind()
    return part.collect(problems or task.problems("train"), context), context


def rows_of(method: Any, task: Any = TASK) -> Any:
    episodes, context = found(method, task)
    batch = to_batch(episodes, 0, 1.0, context.policy.device)
    batch.solved = torch.tensor([task.success(e) for e in episodes])
    return scored(method, batch, context)


def line(*values: float | None, stop: StopReason = StopReason.END_OF_TEXT) -> list[Node]:
    """A root and steps one after the other, the last of them an end."""
    nodes = [Node(0, Draw(0), 0)]
    for number, value in enumerate(values, 1):
        node = Node(0, Draw(number), number, nodes[-1], tokens=[7] * number, logp=[-1.0] * number, value=value)
        nodes[-1].children.append(node)
        nodes.append(node)
    nodes[-1].ended, nodes[-1].stop = True, stop
    return nodes


# What is backed up


def test_an_end_counts_by_its_place_and_what_is_right_is_never_lost() -> None:
    """Identity (1) of the row, and by hand: three places on the way to the end, with g = 1/3, 2/3 and 1."""
    part = SearchedGroups(least=0.5)
    nodes = line(None, 1.0)
    search = _Search(nodes[0], nodes[0])
    part._keep(search, [nodes[-1]])
    assert [n.total for n in nodes] == pytest.approx([0.5, 2 / 3, 1.0]) and [n.visits for n in nodes] == [1, 1, 1]
    wrong = Node(0, Draw(9), 9, nodes[1], tokens=[7, 8], logp=[-1.0] * 2, ended=True, value=-1.0)
    part._keep(search, [wrong])
    assert [n.total for n in (*nodes[:2], wrong)] == pytest.approx([0.5, 2 / 3, -1.0])
    assert [n.visits for n in (*nodes[:2], wrong)] == [2, 2, 1] and nodes[1].mean == pytest.approx(1 / 3)
    assert [part.backed(q, g) for q, g in ((0.5, -1.0), (-0.3, 0.5), (-0.3, -0.2), (0.0, -1.0))] == [0.5, 0.5, -0.5, -1]
    nothing = line(None, 0.0, stop=StopReason.MAX_TOKENS)
    SearchedGroups(incomplete=0.0)._keep(_Search(nothing[0], nothing[0]), [nothing[-1]])
    assert [(n.total, n.visits) for n in nothing] == [(0.0, 1)] * 3


def test_of_the_ends_of_an_expansion_one_is_kept_right_before_wrong_before_cut_then_the_likeliest() -> None:
    def end(value: float, logp: float, stop: StopReason = StopReason.END_OF_TEXT) -> Node:
        return Node(0, Draw(1), 1, root, tokens=[7], logp=[logp], ended=True, stop=stop, value=value)

    root = Node(0, Draw(0), 0)
    cut, wrong, unlikely, right = (
        end(-1.0, -0.1, StopReason.MAX_TOKENS), end(-1.0, -0.2), end(1.0, -3.0), end(1.0, -2.0)
    )  # fmt: skip
    search = _Search(root, root, spare=[cut, wrong, unlikely, right])
    for expected in (right, unlikely, wrong, cut):
        SearchedGroups()._keep(search, search.spare)
        assert search.kept[-1] is expected
    assert not search.spare


def test_the_likeliest_end_is_so_over_the_whole_answer_and_not_over_its_last_step() -> None:
    root = Node(0, Draw(0), 0)
    sure_at_last, sure = (
        Node(
            0,
            Draw(i),
            i,
            Node(0, Draw(i), i, root, [7], logp[:1]),
            [7, 8],
            logp,
            True,
            StopReason.END_OF_TEXT,
            value=1.0,
        )
        for i, logp in ((1, [-3.0, -0.1]), (2, [-1.0, -0.5]))
    )
    search = _Search(root, root)
    SearchedGroups()._keep(search, [sure_at_last, sure])
    assert search.kept == [sure]


# Where it goes on


def grown(parent: Node, key: int, *, visits: int = 0, total: float = 0.0, **more: Any) -> Node:
    """A step after another, with a token of its own."""
    tokens, logp = [*parent.tokens, 7], [*parent.logp, more.pop("own", -1.0)]
    parent.children.append(Node(0, Draw(key), key, parent, tokens, logp, visits=visits, total=total, **more))
    return parent.children[-1]


def ending(parent: Node, key: int, value: float, stop: StopReason = StopReason.END_OF_TEXT, own: float = -1.0) -> Node:
    return grown(parent, key, ended=True, value=value, stop=stop, own=own)


def test_where_no_step_ends_the_search_stays_among_the_new_ones() -> None:
    """Though a step elsewhere is deeper."""
    root = Node(0, Draw(0), 0)
    grown(grown(root, 1, visits=1), 2, visits=1)
    at = grown(root, 3, visits=1)
    made, search = [grown(at, key) for key in (4, 5)], _Search(root, at)
    assert SearchedGroups(onward=GlobalFrontier(depth=1.0))._after(search, made) in made
    assert [n.visits for n in made] == [1, 1] and not search.kept and not search.spare


def test_where_a_step_ends_the_search_goes_on_from_the_frontier() -> None:
    root = Node(0, Draw(0), 0)
    deep = grown(grown(grown(root, 1, visits=1), 2, visits=1), 8, visits=1)
    at = grown(root, 3, visits=1)
    wrong, end, begun = ending(at, 4, -1.0), ending(at, 5, 1.0), grown(at, 6)
    search = _Search(root, at)
    part = SearchedGroups(onward=GlobalFrontier(quality=0.0, depth=1.0))
    assert part._after(search, [wrong, end, begun]) is deep
    assert search.kept == [end] and search.spare == [wrong]
    assert [n.visits for n in (wrong, end, begun, at, root)] == [0, 1, 1, 2, 1]


def test_where_nothing_is_open_ends_that_were_passed_over_are_kept_in_order_until_there_are_enough() -> None:
    for size, count in ((3, 3), (9, 4)):
        root = Node(0, Draw(0), 0)
        cut = ending(root, 1, -1.0, StopReason.MAX_TOKENS, own=-0.1)
        wrong, unlikely, right = ending(root, 2, -1.0), ending(root, 3, 1.0, own=-2.0), ending(root, 4, 1.0)
        search, order = _Search(root, root), [right, unlikely, wrong, cut]
        assert SearchedGroups(size=size)._after(search, root.children) is None
        assert search.kept == order[:count] and search.spare == order[count:]
        assert root.visits == count


def test_from_the_root_each_step_has_the_highest_uct() -> None:
    """By hand, 2 sqrt(ln N_before / N) added to Q; an end that is worth more is passed by."""
    root = Node(0, Draw(0), 0, visits=6)
    a, b = grown(root, 1, visits=4, total=1.0), grown(root, 2, visits=2, total=0.4)
    c, d, _ = grown(b, 3, visits=1, total=-0.5), grown(b, 4, visits=1, total=0.1), ending(b, 5, 1.0)
    f, g = grown(d, 6, visits=1, total=0.2), grown(d, 7)
    part = SearchedGroups(greedy=True, exploration=2.0)
    by_hand = {a: 1.58857, b: 2.09302, c: 1.16511, d: 1.76511, f: 0.2, g: 0.0}
    assert [part.uct(n) for n in by_hand] == pytest.approx([*by_hand.values()], abs=1e-5)
    assert FromTheRoot().choose(root, part, 0) is f


def test_a_step_that_was_not_visited_has_no_bonus_and_steps_are_drawn_by_softmax() -> None:
    root = Node(0, Draw(0), 0, visits=3)
    seen, new = (Node(0, Draw(i), i, root) for i in (1, 2))
    seen.visits, seen.total = 2, 0.5
    part = SearchedGroups(exploration=2.0)
    assert part.uct(seen) == pytest.approx(0.25 + 2 * math.sqrt(math.log(3) / 2)) and part.uct(new) == 0
    chance = 1 / (1 + math.exp(-part.uct(seen)))
    counts = [part.drawn(root, [new, seen], turn) is seen for turn in range(400)]
    assert sum(counts) / 400 == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / 400))
    assert SearchedGroups(greedy=True).drawn(root, [new, seen], 0) is seen


def test_the_frontier_goes_on_from_the_deepest_by_depth_alone_and_never_from_the_root() -> None:
    """Identity (3) of the row."""
    root = Node(0, Draw(0), 0)
    level = [root]
    for depth in range(1, 5):
        level = [Node(0, Draw(10 * depth + i), 0, level[0], tokens=[7] * depth, logp=[-1.0] * depth) for i in (0, 1)]
        assert level[0].parent is not None
        level[0].parent.children += level
    part = GlobalFrontier(quality=0.0, entropy=0.0, depth=1.0)
    assert part.choose(root, SearchedGroups(), 0) is level[0]
    assert part.score(level[1], 64) == pytest.approx(math.sqrt(4 / 64))
    level[1].logp[-1] = -3.0  # its own token; those before are its parent's
    assert GlobalFrontier(quality=0.0, entropy=1.0, depth=0.0).choose(root, SearchedGroups(), 0) is level[1]
    for way in (GlobalFrontier(), FromTheRoot()):
        assert way.choose(Node(0, Draw(0), 0), SearchedGroups(), 0) is None
        assert way.choose(line(None, 1.0)[0], SearchedGroups(), 0) is None


def iterations(part: Any, right: tuple[int, ...]) -> int:
    """Expansions of a tree of which everything is known until its one right answer is said."""
    root = Node(0, Draw(0), 0)
    search, count = _Search(root, root), 0
    while search.at is not None:
        at, count = search.at, count + 1
        assert not at.children and not at.ended, "no step is gone on from twice"
        for k in range(part.width):
            step = Node(0, at.draw.child("step", k), 0, at, [*at.tokens, k], [*at.logp, -1.0])
            if len(step.tokens) == part.depth:
                step.ended, step.stop, step.value = True, StopReason.END_OF_TEXT, -1.0
            at.children.append(step)
        for end in at.children:
            if tuple(end.tokens) == right:
                return count
        search.at = part._after(search, at.children)
    raise AssertionError("the search ended before it had been everywhere")


@pytest.mark.slow
def test_the_frontier_takes_fewer_iterations_than_the_root_until_one_right_answer_is_found() -> None:
    """The row's ablation, exact: the mean over all places of the answer, of 27, 64 and 81."""
    for width, depth in ((3, 3), (4, 3), (3, 4)):
        means, most = list[float](), (width**depth - 1) // (width - 1)
        for way in (GlobalFrontier(), FromTheRoot()):
            part = SearchedGroups(size=width**depth, width=width, depth=depth, greedy=True, onward=way)
            counts = [iterations(part, place) for place in product(range(width), repeat=depth)]
            assert min(counts) == depth and max(counts) == most  # straight down, and every step that goes on
            means.append(sum(counts) / len(counts))
        assert means[0] < means[1]


@pytest.mark.slow
@pytest.mark.parametrize("way", [GlobalFrontier(), FromTheRoot()])
def test_searches_end_and_their_answers_are_whole(way: Any) -> None:
    method = SMALL.replace(experience=SMALL.experience.replace(onward=way, size=6))
    episodes, context = found(method)
    assert 0 < context.policy.work["expansions"] <= 3 * 6 * 3
    solved = {e.group for e in episodes if vowel(e.problem, e.completion)}
    assert context.policy.work["solved_prompts"] == len(solved)
    for group in range(3):
        assert 0 < len([e for e in episodes if e.group == group]) <= 6
    for e in episodes:
        said, worth = e.segments[-1], e.info["worth"]
        assert sum(said.info["pieces"]) == len(said.tokens) == len(said.info["step"]) and all(said.action_mask)
        assert len(worth) == len(said.info["pieces"]) <= 3 and max(said.info["pieces"]) <= 2
        assert worth[-1] == (1.0 if vowel(e.problem, e.completion) else -1.0)
        assert said.version == context.policy.version and e.stop.cut == (context.policy.end_ids[0] not in said.tokens)


@pytest.mark.slow
def test_prompts_with_a_right_answer_are_counted() -> None:
    task = Toy(scoring=lambda problem, said: vowel(problem, said) * (problem.prompt != "x="), max_tokens=6)
    episodes, context = found(task=task)
    solved = {e.group for e in episodes if task.score(e.problem, e.completion)}
    assert context.policy.work["solved_prompts"] == len(solved) and 0 < len(solved) < 3


@pytest.mark.slow
def test_no_search_depends_on_which_others_there_are() -> None:
    alone = found(problems=TASK.problems("train")[1:2])[0]
    assert [e.tokens for e in alone] == [e.tokens for e in found()[0] if e.group == 1]


# What is learned


@pytest.mark.slow
def test_of_one_step_it_is_a_group_with_its_mean_taken_off() -> None:
    """Identity (2) of the row: all ends are kept, and only their outcomes count."""
    one = set_values(SMALL, {"experience.depth": 1, "experience.size": 3, "rewards": "graded-reward"})
    batch = rows_of(one)
    assert len(batch) == 9 and set(batch.scores.tolist()) == {1.0, -1.0}
    plain = GroupAdvantage(scale=None).of_scores(batch, batch.scores)
    torch.testing.assert_close(
        TreeValueAdvantage()(batch) * batch.action_mask, plain[:, None] * batch.action_mask, rtol=0, atol=0
    )


def test_steps_before_the_last_are_worth_what_the_search_says_bounded() -> None:
    """Identity (4) of the row, on what a search found."""
    batch = rows_of(SMALL)
    advantages, several = TreeValueAdvantage()(batch), 0
    centred = GroupAdvantage(scale=None).of_scores(batch, batch.scores)
    for row, e in enumerate(batch.episodes):
        q = e.info["worth"]
        for k, worth in enumerate(q):
            own = advantages[row][batch.step[row] == k]
            expected = float(centred[row]) + (math.tanh(worth) - q[-1] if k + 1 < len(q) else 0.0)
            assert own.tolist() == pytest.approx([expected] * len(own), abs=1e-6)
        several += len(q) > 1
    assert several > 3


def test_the_bound_is_none_near_nothing_and_else_a_rising_curve_below_its_largest() -> None:
    """Identity (4) of the row: on steps of known worth, before an end that was right or wrong."""
    worth = [-3.0, -0.4, 0.0, 0.01, 0.7, 2.0, 5.0]
    step = torch.arange(len(worth) + 1)[None].repeat(2, 1)
    ends = (1.0, -1.0)
    batch: Any = SimpleNamespace(scores=torch.zeros(2, dtype=torch.float64))
    batch.episodes = [SimpleNamespace(info={"worth": [*worth, v]}) for v in ends]
    wide = TreeValueAdvantage(temperature=1e4, largest=1e4).shift(batch, step)
    bounded = TreeValueAdvantage(temperature=2.0, largest=0.5).shift(batch, step)
    for row, v in enumerate(ends):
        assert wide[row].tolist() == pytest.approx([*(q - v for q in worth), 0.0], abs=1e-6)
        assert bounded[row].tolist() == pytest.approx([*(0.5 * math.tanh(q / 2) - v for q in worth), 0.0], abs=1e-12)
        above = (bounded[row][:-1] + v).tolist()
        assert above == sorted(set(above)) and max(map(abs, above)) < 0.5


def told(part: Any, episodes: list[Episode], right: list[bool]) -> None:
    batch = to_batch(episodes, 0, 1.0, torch.device("cpu"))
    batch.solved = torch.tensor(right)
    part.before_update(batch)
    part.after_update(batch)


@pytest.mark.slow
def test_right_answers_to_seldom_solved_problems_come_again_as_they_were_sampled() -> None:
    method = SMALL.replace(experience=SMALL.experience.replace(replayed=0.25).bind())
    part = method.experience
    first, _ = found(method)
    assert [len([e for e in first if e.group == g]) for g in range(3)] == [4, 4, 4]
    right = [False] * len(first)
    right[1], right[4], right[5] = True, True, True  # a quarter, a half, none
    told(part, first, right)
    assert [len(part.kept.of(f"train-{g}")) for g in range(3)] == [1, 0, 0]
    again, context = found(method, seed=6)
    own = [e for e in again if e.group == 0]
    assert [bool(e.info.get("replayed")) for e in own] == [False] * 3 + [True] and "worth" not in own[0].info
    old = own[-1].segments[-1]
    assert old.tokens == first[1].segments[-1].tokens and old.behaviour_logp == first[1].segments[-1].behaviour_logp
    assert all(old.action_mask) and own[-1].reward == first[1].reward
    assert all("worth" in e.info for e in again if e.group)
    found_right = {e.group for e in again if e.group and vowel(e.problem, e.completion)}
    assert context.policy.work["solved_prompts"] == 1 + len(found_right), "what comes again is right"
    told(part, again, [False] * len(again))
    assert part.kept.of("train-0")  # what it was is forgotten once fresh ones are right more often
    told(part, again, [True] * len(again))
    assert not part.kept.of("train-0")


def test_problems_that_were_solved_are_not_drawn_again_and_what_is_replayed_says_nothing() -> None:
    part = SeldomSolved(below=0.25).bind()
    episodes = [Episode(Problem(f"train-{g}", "?"), group=g, info=info) for g in (0, 1) for info in ({}, {}, {}, {})]
    batch = to_batch([e for e, _ in zip(found()[0], range(8))], 0, 1.0, torch.device("cpu"))
    batch.episodes, batch.solved = episodes, torch.tensor([True] * 1 + [False] * 7)
    part.before_update(batch)
    assert part.state["rates"] == {"train-0": 0.25, "train-1": 0.0}
    drawn = {p.id for number in range(4) for p in part.choose(TASK.problems("train"), 2, Stream(number))}
    assert drawn == {"train-1", "train-2"}
    assert len(part.choose(TASK.problems("train"), 3, Stream(0))) == 3  # the others where there are too few
    for e in episodes[:4]:
        e.info["replayed"] = True
    part.before_update(batch)
    assert part.state["rates"]["train-0"] == 0.25


@pytest.mark.slow
def test_the_loop_trains_on_what_was_sampled_and_resumes(tmp_path: Path) -> None:
    def numbers(loop: Any) -> dict[str, float]:
        return {k: v for k, v in loop.step().metrics.items() if not k.startswith(("seconds", "tokens_per"))}

    def rare(problem: Problem, completion: str) -> float:
        return float("e" in completion or "o" in completion)

    method = set_values(SMALL, {"problems": 3, "experience.size": 8, "experience.width": 8, "experience.replayed": 0.5})
    task = Toy(prompts=tuple(f"{n}:" for n in range(9)), scoring=rare, max_tokens=6)
    loop, again = make_loop(method, task), make_loop(method, task)
    for _ in range(5):
        first = numbers(loop)
        assert first["logp_gap"] < 1e-4 and first["rows"] > 0
    assert loop.method.experience.state["items"]  # some came to be kept
    loop.save(tmp_path)
    expected = [numbers(loop) for _ in range(3)]
    again.load(tmp_path)
    assert [numbers(again) for _ in range(3)] == expected


@pytest.mark.slow
def test_pieces_that_were_never_sampled_are_noticed() -> None:
    episodes, context = found()
    gatherer = Gatherer(TASK, context.policy, TASK.problems("train"), 6, {})  # type: ignore[arg-type]
    gatherer._check_tokens(episodes, context.policy.emitted, {context.policy.version})
    several = next(e for e in episodes if len(e.segments[-1].info["pieces"]) > 1)
    several.segments[-1].tokens[0] += 1  # of the first piece
    with pytest.raises(InvariantError, match="never emitted"):
        gatherer._check_tokens(episodes, context.policy.emitted, {context.policy.version})


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave it out"):
        DEEP.replace(second_look=LookAgain()).check()
    with pytest.raises(ConfigError, match="nothing searches"):
        get_method("grpo").replace(advantages=TreeValueAdvantage()).check()
    with pytest.raises(ConfigError, match="replayed=0"):
        get_method("reinforce").replace(experience=SearchedGroups()).check()
    get_method("reinforce").replace(experience=SearchedGroups(replayed=0.0)).check()
    with pytest.raises(ConfigError, match="has several"):
        check(DEEP, attr_20q)
    with pytest.raises(ConfigError, match="incomplete"):
        SearchedGroups(incomplete=0.5)
