"""SSP: what one player earns the other loses, pooled questions earn nothing, and a proposer learns by its reward."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import DataError
from etude.core.fit import objections
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.curricula.rules import Rule, refusal
from etude.experience.proposing import posed_in
from etude.experience.rollout import Start
from etude.experience.tag_search import TagSearch
from etude.loops.language import LanguageLoop
from etude.methods.agents.ssp import HalfSolved, SelfPlay, Unsolved
from etude.optimizers.adam import AdamW
from etude.tasks.agents.kb_search import KBSearch, posing
from language_toys import make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")

SSP: Any = get_method("ssp")
TASK = KBSearch(tools=TagSearch())
PROBLEMS = [TASK.problems("train")[i] for i in range(4)]


def episode(start: Start, text: str, found: tuple[str, ...] = (), reward: float = 0.0) -> Episode:
    """What somebody said, in tokens of no meaning: letters, and what a search answered before."""
    segments = [Segment("user", "?", [7], [0], [0.0]), *(Segment("tool", d, [8], [0], [0.0]) for d in found)]
    said = Segment("assistant", text, [9, 10], [1, 1], [-1.0, -2.0], 0, reward)
    return Episode(
        start.problem, [*segments, said], start.group, start.player, draw=start.draw, stop=StopReason.TERMINATED
    )


def example(problem: Problem, careful: bool = True, seed: int = 5) -> tuple[str, tuple[str, ...]]:
    """A worked proposal, and what its searches found."""
    task = KBSearch(tools=TagSearch(), careful=float(careful))
    text = posing(task, str(problem.answer), Stream(seed).numpy)
    parts = text.split("<information>")
    return text, tuple(part.split("</information>")[0] for part in parts[1:])


class Played:
    """What rollouts come to: proposals of `holding` answers hold, and solvers are right as `right` says."""

    def __init__(self, holding: int, right: tuple[int, ...] = (2, 0, 5, 1)) -> None:
        self.holding, self.right, self.asked = holding, right, list[list[Start]]()

    def __call__(self, starts: list[Start], *_: Any) -> list[Episode]:
        self.asked.append(list(starts))
        if starts[0].player == "proposer":
            return [self._proposed(i, start) for i, start in enumerate(starts)]
        tried: dict[int, int] = {}
        episodes = []
        for start in starts:
            number = tried[start.group] = tried.get(start.group, -1) + 1
            episodes.append(episode(start, "<answer>x</answer>", reward=float(number < self.right[start.group])))
        return episodes

    def _proposed(self, number: int, start: Start) -> Episode:
        if number >= self.holding:
            return episode(start, "<question></question>")
        return episode(start, *example(start.problem))


def collected(part: SelfPlay, played: Played, monkeypatch: Any, step: int = 1) -> tuple[list[Episode], Any]:
    monkeypatch.setattr("etude.experience.proposing.rollout", played)
    context = Context(TASK, random_policy(), Stream(3), step, 20, 8)
    return part.collect(PROBLEMS, context), context.policy.work


def bound(**changes: Any) -> SelfPlay:
    return SelfPlay(**{"rules": rules(words=1), "pool": SSP.experience.pool, "patience": 2, **changes}).bind()


def rules(words: int, characters: int = 1000) -> tuple[Rule, ...]:
    """Those of the method, with other lengths."""
    long_enough, short_enough, *others = SSP.experience.rules
    return long_enough.replace(words=words), short_enough.replace(characters=characters), *others


def of(episodes: list[Episode], player: str) -> list[Episode]:
    return [e for e in episodes if e.player == player]


# The identities


def test_of_each_question_that_is_asked_the_players_earn_one(monkeypatch: Any) -> None:
    episodes, work = collected(bound(), Played(4), monkeypatch)
    proposers, solvers = of(episodes, "proposer"), of(episodes, "solver")
    assert len(proposers) == 4 and len(solvers) == 20 and work["proposals/valid"] == 4
    earned = Unsolved().score(proposers, Context(None, None, None))
    for place, r in enumerate(earned):
        mean = sum(e.reward for e in solvers if e.group == place) / 5
        assert r is not None and r + mean == pytest.approx(1.0, abs=1e-12)
    assert earned == pytest.approx([0.6, 1.0, 0.0, 0.8])
    assert HalfSolved().score(proposers, Context(None, None, None)) == pytest.approx([0.96, 0.0, 0.0, 0.64])


def test_pooled_questions_are_solved_and_earn_their_place_nothing(monkeypatch: Any) -> None:
    part = bound()
    first, _ = collected(part, Played(3), monkeypatch)
    assert len(of(first, "solver")) == 15 and len(part.pool) == 3
    played = Played(1)
    second, work = collected(part, played, monkeypatch, step=2)
    assert work["proposals/pooled"] == 3 and len(of(second, "solver")) == 20
    earlier = {e.problem.prompt for e in of(first, "solver")}
    assert {e.problem.prompt for e in of(second, "solver") if e.group} <= earlier
    proposers = of(second, "proposer")
    assert [e.info["valid"] for e in proposers] == [True, False, False, False]
    assert Unsolved().score(proposers, Context(None, None, None))[1:] == [0.0] * 3
    assert all("solved" not in e.info for e in proposers[1:])
    collected(part, Played(1), monkeypatch, step=10)  # the pool is emptied
    assert len(part.pool) == 1


@pytest.mark.slow
def test_a_lone_proposer_has_its_reward_for_an_advantage_and_reinforce_for_a_gradient() -> None:
    """Identity (b), and two steps of one policy, the proposers' first."""
    made = loop_of_random()
    stream = made.stream.split("step", 0)
    rows = made.party.gathered(made.method, 3, lambda count, n: made._assess(made.method, count, n, stream)).rows
    worth = torch.tensor([0.5, 0.25, 1.0])
    rows["proposer"].scores = worth
    rows = {name: batch for name, batch in rows.items() if name == "proposer"}
    batch = rows["proposer"]
    batch.behaviour_logp = batch.reference_logp = made.policy.evaluate(batch).logp.detach()  # recorded in float32
    want = reinforce(made, batch, worth)
    taught, _ = made.trainer.learn(made.party.players(made.method), rows, 0, Stream(0))
    advantages = taught["proposer"].advantages
    assert advantages is not None and torch.equal(advantages.amax(1), worth)
    grads = [p.grad for p in made.policy.parameters() if p.grad is not None]
    torch.testing.assert_close(
        torch.cat([g.flatten() for g in grads]), want, rtol=1e-6, atol=1e-7
    )  # shares are float32


def reinforce(made: LanguageLoop, batch: Any, worth: torch.Tensor) -> torch.Tensor:
    """grad of -mean_i r_i mean_t log pi(y_it): the clip and the KL do nothing at the policy that sampled."""
    logp = made.policy.evaluate(batch).logp
    mask = batch.action_mask
    loss = -(worth.double() * (logp * mask).sum(1) / mask.sum(1)).mean()
    parameters = [p for p in made.policy.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


class Asks(SelfPlay):
    """Whatever is proposed is asked: of models that were never taught how."""

    def _posed(self, proposed: Any, context: Context) -> dict[int, Problem]:
        return {n: dataclasses.replace(e.problem, id=f"{n}", info={}) for n, e in enumerate(proposed)}


def loop_of_random() -> LanguageLoop:
    method = SSP.replace(
        experience=Asks(size=2, max_tokens=6), problems=3, optimizer=AdamW(lr=1e-3, clip_norm=None), aggregation=
        "sequence-mean",
    )  # fmt: skip
    return make_loop(method, KBSearch(tools=TagSearch(turns=2)), random_policy(dtype=torch.float64))


@pytest.mark.slow
def test_two_updates_of_the_same_weights() -> None:
    made = loop_of_random()
    stream = made.stream.split("step", 0)
    rows = made.party.gathered(made.method, 3, lambda count, n: made._assess(made.method, count, n, stream)).rows
    assert [len(b) for b in rows.values()] == [3, 6] and list(rows) == ["proposer", "solver"]
    rows["proposer"].scores = torch.tensor([0.5, 0.25, 1.0])
    rows["solver"].scores = torch.tensor([1.0, 0.0] * 3)
    _, metrics = made.trainer.learn(made.party.players(made.method), rows, 0, Stream(0))
    assert made.policy.version == 2
    assert {"proposer/loss", "solver/loss", "gradient_norm", "solver/gradient_norm"} <= metrics.keys()


# Which questions are asked


@pytest.mark.parametrize(
    ("question", "queries", "documents", "why"),
    [
        ("a b", ["a", "b"], ["d"], "too_short"),
        ("a b " * 20, ["a", "b"], ["d"], "too_long"),
        ("who is kesath", ["a", "b"], ["d"], "tells"),
        ("who is it", ["a", "b"], [], "uninformed"),
        ("who is it", ["a"], ["d"], "few_queries"),
        ("who is it", ["a", "b", "a"], ["d"], "repeated_query"),
        ("who is it", ["a", "b"], ["d"], None),
    ],
)
def test_rules_refuse(question: str, queries: list[str], documents: list[str], why: str | None) -> None:
    posed = Problem("1", question, "kesath", info={"queries": queries, "documents": documents})
    assert refusal(rules(words=3, characters=50), posed) == why


def test_a_question_is_read_by_its_documents_alone(monkeypatch: Any) -> None:
    [problem] = PROBLEMS[:1]
    text, found = example(problem)
    said = episode(Start(problem, 0, Stream(0).draw("x"), player="proposer"), text, found)
    proposal = posed_in(said)
    assert len(proposal.info["queries"]) == 2 and proposal.info["documents"] == list(found)
    assert TASK.read(proposal.prompt, found) == problem.answer and not TASK.read(proposal.prompt, found[:1])
    played = Played(4)
    monkeypatch.setattr(Played, "_proposed", lambda self, n, start: episode(start, example(start.problem)[0], ("no",)))
    _, work = collected(bound(), played, monkeypatch)
    assert work["proposals/wrong"] == 4 and not work["proposals/valid"]
    _, work = collected(bound(verified=False), played, monkeypatch)
    assert work["proposals/valid"] == 4


def test_who_mixes_up_what_was_found_poses_another_question() -> None:
    read = []
    for problem in PROBLEMS:
        text, found = example(problem, careful=False, seed=9)
        read.append(TASK.read(text.split("<question>")[1].split("</question>")[0], found) == problem.answer)
    assert not all(read)


def test_questions_of_the_test_are_not_posed() -> None:
    proposal = TASK.proposal(PROBLEMS[0])
    test = TASK.problems("test")[0]
    assert TASK.posed(proposal, str(test.prompt)) is None
    assert TASK.posed(proposal, str(PROBLEMS[0].prompt)) is not None
    assert (
        proposal.prompt == f"{PROBLEMS[0].answer}\n"
        and TASK.score(proposal, f"<answer>{proposal.answer}</answer>") == 0
    )


# Faults


def test_without_a_question_it_stops_with_a_sentence(monkeypatch: Any) -> None:
    part = bound(patience=2)
    episodes, _ = collected(part, Played(0), monkeypatch)
    assert len(episodes) == 4 and part.state["without"] == 1
    with pytest.raises(DataError, match="In 2 steps in a row no question held, and the pool is empty"):
        collected(part, Played(0), monkeypatch)


def test_it_needs_a_task_that_says_how() -> None:
    from etude.tasks import resolve_task

    assert "does not say how" in " ".join(map(str, objections(SSP, resolve_task("compose"))))
    assert "has no tools: set task.tools=tag-search" in " ".join(map(str, objections(SSP, KBSearch())))
    assert not list(objections(SSP, TASK))
