"""SWE-RL: what patches are worth, which cannot be rewarded, and that a small model learns which one is right."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.episodes import Episode, Problem, Segment
from etude.core.fit import objections
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.methods.agents.swe_rl import ExactPatch, PatchSimilarity
from etude.rewards.patches import Edit, applied, written
from etude.tasks.agents.mini_swe_patch import MiniSWEPatch, mini_swe_patch, right_edit, shown
from etude.tasks.language.sums import Sums
from sandboxes import needs_sandbox

SWE_RL: Any = get_method("swe-rl")
FILES = {"a.py": "x = 1\ny = 2\n", "b.py": "z = 1\n"}
FIXED = {"a.py": "x = 1\ny = 3\n", "b.py": "z = 2\n"}
RIGHT_A, RIGHT_B = Edit("a.py", "y = 2\n", "y = 3\n"), Edit("b.py", "z = 1\n", "z = 2\n")


def worth(said: str, fixed: dict[str, str] | None = None, part: Any = SWE_RL.rewards[0]) -> float:
    problem = Problem("1", "?", info={"files": FILES, "fixed": FIXED if fixed is None else fixed})
    return float(part.score([Episode(problem, [Segment("assistant", said)])], Context(None, None, Stream(0)))[0])


def test_the_oracle_s_edit_is_worth_one_in_any_order() -> None:
    assert worth(written([RIGHT_A, RIGHT_B], "so")) == worth(written([RIGHT_B, RIGHT_A], "so")) == 1.0
    whole = [Edit("a.py", "x = 1\ny = 2\n", "x = 1\ny = 3\n"), RIGHT_B]
    assert worth(written(whole, "so")) == 1.0, "what is left as it is does not matter"


def test_one_of_two_files_is_worth_half_and_another_one_nothing() -> None:
    assert worth(written([RIGHT_A], "so")) == 0.5
    only_a = {**FILES, "a.py": FIXED["a.py"]}
    assert worth(written([RIGHT_B], "so"), only_a) == 0.0
    assert worth(written([RIGHT_A, RIGHT_B], "so"), only_a) == 0.5


@pytest.mark.parametrize(
    "said",
    [
        "nothing", written([RIGHT_A], ""), written([RIGHT_A], "so").replace("</solution>", ""),
        written([], "so"), written([Edit("a.py", "y = 9\n", "y = 3\n")], "so"),
        written([RIGHT_A, Edit("b.py", "z = 1\n", "z = 1\n")], "so"),  # what changes nothing, never
        written([Edit("a.py", " y = 2\n", "y = 3\n")], "so"), written([Edit("c.py", "y\n", "z\n")], "so"),
    ],
)  # fmt: skip
def test_what_is_no_patch_costs_one(said: str) -> None:
    assert worth(said) == worth(said, part=ExactPatch()) == -1.0
    assert worth(said, part=PatchSimilarity(malformed=0.25)) == -0.25


def test_continuous_and_discrete_rewards_by_hand() -> None:
    """Of the 36 characters of each diff one is another."""
    only_a, near = {**FILES, "a.py": FIXED["a.py"]}, written([Edit("a.py", "y = 2\n", "y = 4\n")], "so")
    assert worth(near, only_a) == pytest.approx(35 / 36, abs=1e-12)
    assert worth(near, only_a, ExactPatch()) == 0.0
    assert worth(written([RIGHT_A], "so"), only_a, ExactPatch()) == 1.0


def test_tasks_without_files_are_refused() -> None:
    assert any("info['files']" in f"{sentence}" for sentence in objections(SWE_RL, Sums()))


@needs_sandbox
@pytest.mark.slow
def test_worked_patches_of_the_task_are_right_and_in_its_words() -> None:
    from etude.policies.word_tokenizer import build_word_tokenizer

    words = build_word_tokenizer("code", 512)
    assert not list(objections(SWE_RL, mini_swe_patch))
    for problem in mini_swe_patch.problems("train")[:12]:
        said = str(mini_swe_patch.demonstration(problem))
        assert applied(problem.info["files"], [right_edit(dict(problem.info))]) == problem.info["fixed"]
        assert mini_swe_patch.score(problem, said) == 1.0 and mini_swe_patch.score(problem, "") == 0.0
        part = SWE_RL.rewards[0]
        episode = Episode(problem, [Segment("assistant", said)])
        assert part.score([episode], Context(None, None, Stream(0))) == [1.0]
        tokens = words.encode(str(problem.prompt)), words.encode(said)
        assert not any(words.unk_token_id in t for t in tokens) and words.decode(tokens[1]) == said
        assert len(tokens[1]) < mini_swe_patch.max_tokens and sum(map(len, tokens)) < 512


@needs_sandbox
@pytest.mark.slow
def test_tests_decide_and_not_the_text() -> None:
    """A patch unlike the oracle's that does the same passes; one of another function's does not."""
    problem = next(p for p in mini_swe_patch.problems("train") if p.info["function"] == "largest")
    text = problem.info["files"][problem.info["file"]]
    start = text.index("def largest")
    old = text[start:].split("\n\ndef")[0].rstrip("\n") + "\n"
    head = old.splitlines()[0]
    argument = head[head.index("(") + 1 : head.index(")")]
    new = f"{head}\n    return max({argument})\n"
    said = written([Edit(problem.info["file"], old, new)], "so")
    assert mini_swe_patch.score(problem, said) == 1.0
    context = Context(None, None, Stream(0))
    (paid,) = SWE_RL.rewards[0].score([Episode(problem, [Segment("assistant", said)])], context)
    assert 0 < paid < 1
    mini_swe_patch.expect([(problem, said), (problem, "no patch")])
    wrong = written([Edit(problem.info["file"], old, new.replace("max", "min"))], "so")
    assert mini_swe_patch.score(problem, wrong) == 0.0


@needs_sandbox
@pytest.mark.slow
def test_splits_share_no_package() -> None:
    sides = [{str(p.info["files"]) for p in mini_swe_patch.problems(split)[:40]} for split in ("train", "test")]
    assert not sides[0] & sides[1]
    assert MiniSWEPatch(seed=2).problems("test")[3] == MiniSWEPatch(seed=2).problems("test")[3]


# What is learned


class Few(LanguageTask):
    """One line of one file, and the digit that it should have."""

    id, max_tokens = "few", 48

    def problems(self, split: str) -> list[Problem]:
        found = []
        for old, new, other in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
            files = {"sums.py": f"x = {old}\n"}
            for said, more in ((new, ""), (other, " + 1 + 1")) if split == "shown" else ((new, ""),):
                worked = written([Edit("sums.py", f"x = {old}\n", f"x = {said}{more}\n")], " x")
                info = {"files": files, "fixed": {"sums.py": f"x = {new}\n"}, "demonstration": worked, "issue": "x"}
                found.append(Problem(f"{old}/{said}", shown(info), info=info))
        return found

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion == str(problem.info["demonstration"]))


class Shown(Few):
    def problems(self, split: str) -> list[Problem]:
        return super().problems("shown")


@pytest.mark.slow
def test_a_small_model_learns_which_patch_is_right() -> None:
    from etude.experience.groups import Groups
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    policy = LanguagePolicy.load("blank:1x32@code", device="cpu")
    sft: Any = get_method("sft").replace(problems=6)
    warm = LanguageLoop(sft.replace(optimizer=sft.optimizer.replace(lr=1e-2)), Shown(), policy, seed=0, steps=100)
    for _ in range(100):
        warm.step()
    method = SWE_RL.replace(problems=3, experience=Groups(size=8), optimizer=SWE_RL.optimizer.replace(lr=3e-3))
    loop = LanguageLoop(method, Few(), policy, seed=0, steps=20)

    def right() -> float:
        context = Context(Few(), policy, Stream(7), max_tokens=48)
        episodes = Groups(size=32).collect(Few().problems("train"), context)
        return sum(e.reward for e in episodes) / len(episodes)

    before = right()
    for _ in range(20):
        loop.step()
    assert 0.2 < before < 0.8
    assert right() > before + 0.1
