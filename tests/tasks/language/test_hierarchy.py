"""The tree, its facts, its questions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from etude.core.errors import ConfigError, UnknownNameError
from etude.tasks.language.hierarchy import Hierarchy, common, hierarchy, named, worked

DEEP = Hierarchy(depth=4, branching=3)


def inner(task: Hierarchy, kind: str, split: str = "train", count: int = 150):
    return task.replace(kinds=(kind,)).problems(split)[:count]


def test_every_node_has_a_name_of_its_own_and_every_fact_is_told_once() -> None:
    names = DEEP.names
    assert len(names) == 3 + 9 + 27 + 81
    assert len(set(names.values())) == len(names)
    facts = {str(f.prompt): f.answer for f in DEEP.problems("facts")}
    assert len(facts) == 120 + 117
    assert all(facts[f"{code}="] == name for code, name in names.items())
    assert all(facts[f"{names[code]}<"] == names[code[:-1]] for code in names if len(code) > 1)


def test_held_out_leaves_are_asked_about_in_their_split_only() -> None:
    held, others = set(DEEP.leaves(True)), set(DEEP.leaves(False))
    assert not held & others
    assert len(held) == 20
    assert len(held | others) == 81
    for split, own in (("train", others), ("test", others), ("heldout", held)):
        for problem in DEEP.problems(split)[:100]:
            code, _, rest = str(problem.info["question"]).partition("^")
            assert code[:4] in own
            assert not rest or rest in held | others
            assert split == "heldout" or not rest or rest in others


@pytest.mark.slow
def test_train_and_test_share_no_question() -> None:
    train, test = ({p.prompt for p in DEEP.problems(s)[:400]} for s in ("train", "test"))
    assert not train & test


def test_pick_offers_the_name_a_sibling_a_cousin_and_another() -> None:
    codes = {name: code for code, name in DEEP.names.items()}
    for problem in inner(DEEP, "pick"):
        code, _, options = str(problem.prompt).rstrip(">").partition("?")
        shared = sorted(common(code, codes[name]) for name in options.split(","))
        assert shared == [0, 2, 3, 4]
        assert problem.answer == DEEP.names[code]


def test_chain_asks_for_the_nearest_ancestors() -> None:
    for problem in inner(DEEP, "chain"):
        code, _, count = str(problem.prompt).rstrip(">").partition("/")
        expected = [DEEP.names[code[: 4 - k]] for k in range(1, int(count) + 1)]
        assert problem.answer.split(",") == expected == list(problem.info["path"])
        assert problem.info["steps"] == int(count)


def test_lca_is_the_lowest_node_above_both_and_its_way_goes_up_and_down() -> None:
    levels = set()
    for problem in inner(DEEP, "lca"):
        one, other = str(problem.prompt).rstrip(">").split("^")
        shared = max(k for k in range(5) if one[:k] == other[:k])
        assert problem.answer == DEEP.names[one[:shared]]
        way = [one, *problem.info["codes"], other]
        assert all(abs(len(a) - len(b)) == 1 and (a.startswith(b) or b.startswith(a)) for a, b in pairwise(way))
        assert problem.info["steps"] == len(way) - 1 == 2 * (4 - shared)
        assert problem.level == {2: "light", 4: "middle", 6: "heavy"}[problem.info["steps"]]
        levels.add(problem.level)
    assert levels == {"light", "middle", "heavy"}


@pytest.mark.parametrize("style", ["plain", "thought", "structured"])
def test_the_worked_way_is_right_in_every_style(style) -> None:
    task = DEEP.replace(style=style)
    for problem in task.problems("train")[:60]:
        assert task.score(problem, worked(problem, style)) == 1.0
        assert task.score(problem, str(task.demonstration(problem))) == 1.0
        begun = str(problem.prompt).rpartition("|")[2] if style == "structured" else ""
        pairs = [p.split("=") for p in (begun + worked(problem, style)).rpartition(">")[0].split(";")]
        assert [p[0] for p in pairs] == list(problem.info["codes"])
        assert [p[1] for p in pairs] == list(problem.info["path"])


def test_styles_change_the_end_of_the_prompt_only() -> None:
    ends = {}
    for style in ("plain", "thought", "structured"):
        problem = DEEP.replace(style=style).problems("heldout")[3]
        assert str(problem.prompt).startswith(problem.info["question"])
        ends[style] = str(problem.prompt)[len(problem.info["question"]) :]
    assert ends == {"plain": ">", "thought": "!", "structured": f"|{problem.info['codes'][0]}="}


def test_answers_are_what_follows_the_last_mark() -> None:
    assert hierarchy.answer("2=ma;21=po>ti>kq") == "kq"
    assert hierarchy.answer(" kq ") == "kq"
    assert named("2=ma;21=po>po") == ["ma", "po", "po"]


def test_another_seed_is_another_tree() -> None:
    assert Hierarchy(seed=1).names != Hierarchy(seed=2).names


def test_trees_without_names_enough_and_unknown_splits_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are names for 676"):
        Hierarchy(depth=6, branching=4)
    with pytest.raises(ConfigError, match="at least one kind"):
        Hierarchy(kinds=())
    with pytest.raises(UnknownNameError, match="split of hierarchy"):
        DEEP.problems("validation")


def test_the_smallest_tree_with_most_withheld_still_has_every_question() -> None:
    for seed in range(5):
        for share in (0.1, 0.5):
            task = Hierarchy(depth=3, branching=2, withheld=share, kinds=("lca",), seed=seed)
            assert all("^" in p.prompt for split in ("train", "heldout") for p in task.problems(split)[:20])


def test_it_is_found_by_its_name() -> None:
    from etude.tasks import resolve_task

    assert resolve_task("hierarchy") is hierarchy
