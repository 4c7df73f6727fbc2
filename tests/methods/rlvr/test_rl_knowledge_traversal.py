"""The traversal probe: what its model reads, and how consistent answers are (arXiv:2511.05933)."""

from __future__ import annotations

import numpy as np
import pytest

from etude.core.registry import get_method
from etude.experiments.rlvr.rl_knowledge_traversal import STYLES, careless, consistency, forms, reading
from etude.tasks.language.hierarchy import Hierarchy, worked

SMALL = Hierarchy(depth=3, branching=2, withheld=0.25)


def test_consistency_counts_all_most_few_and_none() -> None:
    correct = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    assert consistency(correct) == {"all": 0.4, "most": 0.2, "few": 0.2, "none": 0.2}


def test_it_is_grpo_held_by_a_little_kl() -> None:
    changed = get_method("rl-knowledge-traversal").diff(get_method("grpo"))
    assert {k.split(".")[0] for k in changed} == {"regularizers", "reference"}


@pytest.mark.slow
def test_codes_that_are_held_out_are_read_in_facts_only() -> None:
    held = SMALL.leaves(held=True)
    texts = [("".join(s.text for s in example), example[0].text) for example in reading(SMALL, 0)]
    asked = [text for text, prompt in texts if set(prompt) & set("?/^")]
    assert len(asked) == len(STYLES) * 1000
    assert all(code not in text for text in asked for code in held)
    told = {text.partition("=")[0] for text, prompt in texts if prompt.endswith("=") and "?" not in prompt}
    assert set(held) <= told


@pytest.mark.parametrize("style", STYLES)
def test_careless_people_are_right_now_and_then_and_never_in_another_form(style) -> None:
    task, random = SMALL.replace(style=style), np.random.default_rng(0)
    problems = task.problems("train")[:300]
    said = [careless(task, p, random) for p in problems]
    rate = np.mean([task.score(p, text) for p, text in zip(problems, said)])
    assert 0.3 < rate < 0.95
    whole = [text == worked(p, style) for p, text in zip(problems, said)]
    assert 0.1 < np.mean(whole) < 0.8
    if style == "structured":
        assert all(">" in text for text in said)


def test_questions_and_statements_are_about_the_same_leaves() -> None:
    questions, statements = forms(SMALL)
    held = SMALL.leaves(held=True)
    for question, statement in zip(questions, statements):
        code, _, name = statement.partition("=")
        assert code in held
        assert question.startswith(f"{code}?")
        assert question.endswith(">")
        assert SMALL.names[code] == name
