"""Problems that a proposer poses: refused ones are counted by reason, accepted ones are solved, and pooled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import DataError
from etude.core.fit import objections
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.curricula.accepted import AcceptedProblems
from etude.curricula.rules import AnswerUntold, LongEnough, Rule
from etude.experience.proposing import PosedProblems, posed_in
from etude.experience.rollout import Start
from etude.tasks.agents.kb_search import KBSearch
from language_toys import letters_reward, make_loop, random_policy, resumed_exactly

pytestmark = pytest.mark.usefixtures("one_thread")

GIVEN = [Problem(f"{n}", "?", answer) for n, answer in enumerate("abcde")]
SAID = ["<question>one two</question>", "no tags", "<question>one</question>", "<question>is it d</question>", "lost"]


class Poses(LanguageTask):
    """Anything is a problem but 'held'."""

    id: ClassVar[str] = "poses"

    def problems(self, split: str) -> Sequence[Problem]:
        return GIVEN

    def proposal(self, problem: Problem) -> Problem:
        return Problem(f"{problem.id}/proposal", f"{problem.answer}>", problem.answer)

    def posed(self, proposal: Problem, text: str) -> Problem | None:
        return None if "held" in text else Problem(f"{proposal.id}/posed", text or "?", proposal.answer)

    def score(self, problem: Problem, completion: str) -> float:
        return letters_reward(problem, completion)


def played(starts: list[Start], *_: Any) -> list[Episode]:
    """Proposers say what stands in SAID; of the solvers of a problem the first is right."""
    found, tried = [], set[int]()
    for start in starts:
        proposes = start.player == "proposer"
        text = SAID[int(start.problem.id[0])] if proposes else "x"
        reward = float(not proposes and start.group not in tried)
        tried |= set() if proposes else {start.group}
        said = Segment("assistant", text, [9], [1], [-1.0], 0, reward)
        stop = StopReason.FAULT if text == "lost" else StopReason.TERMINATED
        found.append(Episode(start.problem, [said], start.group, start.player, draw=start.draw, stop=stop))
    return found


def test_each_proposal_is_asked_or_refused_for_one_reason(monkeypatch: Any) -> None:
    monkeypatch.setattr("etude.experience.proposing.rollout", played)
    part = PosedProblems(size=4, rules=(LongEnough(words=2), AnswerUntold()), pool=AcceptedProblems(emptied=2)).bind()
    for step, pooled in ((0, 0), (1, 1), (2, 0)):  # the pool is emptied at step 2
        context = Context(Poses(), random_policy(), Stream(0).split("step", step), step)
        episodes = part.collect(GIVEN, context)
        work = context.policy.work
        counts = {k: v for k, v in work.items() if k.startswith("proposals/") and v}
        refused = {"proposals/no_question": 1, "proposals/too_short": 1, "proposals/tells": 1}
        assert counts == {**refused, "proposals/valid": 1, **({"proposals/pooled": pooled} if pooled else {})}
        solvers = [e for e in episodes if e.player == "solver"]
        assert {e.problem.prompt for e in solvers} == {"one two"} and len(solvers) == 4 * (1 + pooled)
        assert len(part.pool) == 1 + pooled, "what is solved again is not kept twice"
        proposers = episodes[:5]
        assert [e.info["valid"] for e in proposers] == [True, False, False, False, False]
        assert proposers[0].info["solved"] == 0.25 and all(e.auxiliary for e in proposers)


def test_what_is_kept_for_a_test_is_no_problem(monkeypatch: Any) -> None:
    monkeypatch.setattr("etude.experience.proposing.rollout", played)
    monkeypatch.setitem(globals(), "SAID", ["<question>held</question>"] * 5)
    part, context = PosedProblems(patience=1).bind(), Context(Poses(), random_policy(), Stream(0))
    with pytest.raises(DataError, match="In 1 steps in a row no question held"):
        part.collect(GIVEN, context)
    assert context.policy.work["proposals/held_out"] == 5


def test_the_last_question_counts_and_what_was_looked_up_is_with_it() -> None:
    text = "<search> a </search><search>b</search><question>x</question><question> y </question>"
    segments = [Segment("tool", "d"), Segment("tool", ""), Segment("assistant", text)]
    posed = posed_in(Episode(Problem("1", "?", "z"), segments))
    assert (posed.prompt, posed.answer) == ("y", "z")
    assert posed.info == {"queries": ["a", "b"], "documents": ["d"]}


class Asked(Rule):
    """Every third one is refused."""

    def refuses(self, problem: Problem) -> str | None:
        return "third" if int(problem.id[0]) % 3 == 0 else None


class Untagged(PosedProblems):
    """Whatever a model of random weights says is a problem."""

    def doubted(self, proposals: Any, context: Context) -> dict[int, str]:
        asked = {n: Problem(p.id, "?", p.answer) for n, p in proposals.items()}
        return super().doubted(asked, context)


def loop() -> Any:
    part = Untagged(size=2, max_tokens=3, rules=(Asked(),), pool=AcceptedProblems(age=3))
    return make_loop(get_method("grpo").replace(problems=3, experience=part), Poses(), random_policy())


@pytest.mark.slow
def test_a_method_without_roles_learns_from_both_players_and_goes_on_exactly(tmp_path: Path) -> None:
    steps = resumed_exactly(loop, tmp_path)
    assert sum(s.get("proposals/third", 0) for s in steps) > 0
    assert sum(s["proposals/pooled"] for s in steps) > 0


def test_any_task_that_says_how_will_do() -> None:
    method: Any = get_method("grpo").replace(experience=PosedProblems())
    assert not list(objections(method, KBSearch())) and not list(objections(method, Poses()))
