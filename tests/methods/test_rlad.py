"""RLAD: the four identities, hints that are worth learning from, what is paid, and the chain of runs."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import etude
from etude.core.batches import TokenLogProbs
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experiments.rlvr import rlad as experiment
from etude.loops.language import LanguageLoop
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.rlad import (
    HelpedBy,
    HintedGroups,
    HintGroups,
    OnlyWithHint,
    SolvedWith,
    WorthwhileHints,
    asking,
    hinted,
    rlad,
    rlad_solver,
    rlad_writer,
    spend,
)
from etude.policies.texts.models import CurrentPolicy
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.tasks.language.operations import operations
from language_toys import letters_reward, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
HINTS = "etude.methods.rlvr.rlad.hints.hints_of"


class Letters(LanguageTask):
    """What is paid is the share of letters; some problems stand with a hint."""

    id: ClassVar[str] = "letters"
    max_tokens: ClassVar[int] = 6
    prompts: tuple[str, ...] = ("a>", "b>", "c>")

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(f"letters/{i}", prompt) for i, prompt in enumerate(self.prompts)]

    def score(self, problem: Problem, completion: str) -> float:
        return letters_reward(problem, completion)


LETTERS = Letters()


def loop_of(method: Any, task: Any = LETTERS, seed: int = 3) -> LanguageLoop:
    policy = random_policy(seed=1)
    faster = method.replace(problems=3, optimizer=method.optimizer.replace(lr=1e-2))
    return LanguageLoop(faster, task, policy, seed=seed, steps=3)


def solver(**fields: Any) -> Any:
    return rlad_solver.replace(experience=HintedGroups(size=4, writer=CurrentPolicy(), **fields))


def _add(total: torch.Tensor, piece: torch.Tensor) -> None:
    total.add_(piece)


def gradient_of(loop: LanguageLoop) -> tuple[torch.Tensor, dict[str, float]]:
    """Of one step, before it is clipped."""
    found = {p: torch.zeros_like(p) for p in loop.policy.parameters()}

    for p, total in found.items():
        p.register_hook(lambda piece, total=total: _add(total, piece))
    metrics = loop.step().metrics
    return torch.cat([g.flatten() for g in found.values()]), metrics


# Identity 1: without hints only the distance from the reference moves the policy


@pytest.mark.slow
def test_without_any_hint_nothing_is_paid_and_at_the_reference_nothing_moves() -> None:
    loop = loop_of(solver(bare=1.0, hints=2))
    before = {k: v.clone() for k, v in loop.policy.tensors().items()}
    gradient, metrics = gradient_of(loop)
    assert metrics["rows"] == 24 and metrics["zero_advantage"] == 1.0 and metrics["loss"] == 0.0
    assert not gradient.any()
    assert all(torch.equal(v, before[k]) for k, v in loop.policy.tensors().items())


@pytest.mark.slow
def test_away_from_the_reference_the_gradient_is_that_of_the_distance_alone() -> None:
    def gradient(method: Any) -> torch.Tensor:
        loop = loop_of(method)
        with torch.no_grad():
            for i, p in enumerate(loop.policy.parameters()):
                p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
        return gradient_of(loop)[0]

    bare = gradient(solver(bare=1.0, hints=2))
    alone = solver(bare=1.0, hints=2).replace(rewards=(OnlyWithHint(),))
    assert bare.norm() > 1e-4
    torch.testing.assert_close(bare, gradient(alone), rtol=0, atol=0)
    twice = solver(bare=1.0, hints=2).replace(regularizers=(KLToReference(coefficient=0.02),))
    torch.testing.assert_close(gradient(twice), 2 * bare, rtol=1e-4, atol=1e-7)


# Identity 2: r(x, z) is unbiased


def first_letter(policy: Any, problem: Problem) -> float:
    """By enumeration: the chance that the first token is a lower-case letter."""
    tokens = torch.tensor([policy.encode(problem.prompt)])
    with torch.no_grad():
        chances = policy.model(tokens).logits[0, -1].double().softmax(-1)
    return float(sum(p for i, p in enumerate(chances.tolist()) if policy.decode([i]).islower()))


class OneToken(Letters):
    """Right or wrong by one token."""

    id: ClassVar[str] = "one-token"
    max_tokens: ClassVar[int] = 1

    def score(self, problem: Problem, completion: str) -> float:
        return float(completion.islower())


@pytest.mark.slow
def test_the_share_of_k_solutions_is_unbiased() -> None:
    policy, task, part = random_policy(seed=1), OneToken(), SolvedWith(solver=CurrentPolicy(), samples=4)
    problem = Problem("p", "a>")
    context = Context(task, policy, Stream(5), max_tokens=1)
    with_hint = hinted(problem, "k")
    truth = first_letter(policy, with_hint)
    episodes = [SimpleNamespace(completion="k", problem=asking(problem), draw=Stream(s).draw("e"), group=0)
                for s in range(800)]  # fmt: skip
    found = np.array(part.score(episodes, context))  # type: ignore[arg-type]
    assert set(found) <= {0.0, 0.25, 0.5, 0.75, 1.0} and 0.02 < truth < 0.98
    assert abs(found.mean() - truth) < 4 * (truth * (1 - truth) / 3200) ** 0.5
    each = [math.comb(4, n) * truth**n * (1 - truth) ** (4 - n) for n in range(5)]  # the estimator, outcome by outcome
    for n, chance in enumerate(each):
        assert abs((found == n / 4).mean() - chance) < 4.5 * (chance * (1 - chance) / 800) ** 0.5 + 1e-9
    assert sum(c * n / 4 for n, c in enumerate(each)) == pytest.approx(truth, abs=1e-12)


# Identity 3: a solver that ignores hints


def test_where_hints_are_ignored_the_margin_is_zero_in_expectation() -> None:
    """Enumerated: two hints whose k = 3 solutions are right by the same chance, whatever the policy says of them."""
    loss: Any = rlad_writer.slots()["objective"]
    logp = torch.tensor([[-1.0, -0.5], [-0.25, -3.0]], dtype=torch.float64)
    p, k, total, sizes = 0.3, 3, 0.0, 0.0
    for a, b in itertools.product(range(k + 1), repeat=2):
        chance = math.prod(math.comb(k, n) * p**n * (1 - p) ** (k - n) for n in (a, b))
        rows: Any = SimpleNamespace(
            scores=torch.tensor([a / k, b / k]), group=torch.zeros(2), action_mask=torch.ones(2, 2, dtype=torch.bool),
            reference_logp=torch.zeros(2, 2, dtype=torch.float64), episode=None, once=lambda: None,
            action_counts=torch.tensor([2, 2]),
        )  # fmt: skip
        margin = float(loss.metrics(rows, TokenLogProbs(logp))["margin"][0])
        total, sizes = total + chance * margin, sizes + chance * abs(margin)
        if a == b:
            assert loss(rows, TokenLogProbs(logp)).tolist() == [0.0, 0.0]  # equals say nothing
    assert sizes > 0.5 and total == pytest.approx(0.0, abs=1e-12)


# Identity 4: one hint that never changes is DAPO


@pytest.mark.slow
def test_with_one_fixed_hint_the_solver_is_dapo_with_the_hint_in_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HINTS, lambda writer, places, *_: ["+*"] * len(places))
    mine = loop_of(solver(hints=1, bare=0.0))
    shown = Letters(prompts=tuple(f"{prompt}+*:" for prompt in LETTERS.prompts))
    held: Any = dapo.replace(
        experience=dapo.experience.replace(size=4), regularizers=(KLToReference(coefficient=0.01),), reference=Frozen()
    )
    theirs = loop_of(held, shown)
    for _ in range(2):
        one, other = mine.step().metrics, theirs.step().metrics
        same = {k for k in one if k in other and not k.startswith(("seconds", "tokens_per"))}
        assert "loss" in same and {k: one[k] for k in same} == {k: other[k] for k in same}
    after = theirs.policy.tensors()
    assert all(torch.equal(v, after[k]) for k, v in mine.policy.tensors().items())


# What is shown, and to whom


@pytest.mark.slow
def test_groups_are_of_one_hint_and_some_stand_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(range(1000))
    monkeypatch.setattr(HINTS, lambda writer, places, *_: [f"h{next(said)}" for _ in places])
    policy = random_policy(seed=1)
    part = HintedGroups(size=2, hints=3, bare=0.4, writer=CurrentPolicy())
    problems = list(LETTERS.problems("train")) * 10
    rows = part.collect(problems, Context(LETTERS, policy, Stream(2), max_tokens=2))
    assert len(rows) == part.rows_per_problem * 30 and [e.group for e in rows] == [i // 2 for i in range(180)]
    shown = [e.problem.info["hint_in_view"] for e in rows]
    assert shown[::2] == shown[1::2]
    bare = [i for i, hint in enumerate(shown[::2]) if not hint]
    assert abs(len(bare) - 36) < 4 * (90 * 0.24) ** 0.5
    told = [hint for hint in shown[::2] if hint]
    assert told == [f"h{i}" for i in range(len(told))]
    for i, e in enumerate(rows):
        plain = problems[i // 6].prompt
        assert e.problem.prompt == (f"{plain}{shown[i]}:" if shown[i] else plain)
        assert policy.decode(e.segments[0].tokens) == e.problem.prompt


@pytest.mark.slow
def test_writers_are_asked_and_solvers_shown_what_they_said() -> None:
    policy, seen = random_policy(seed=1), []
    rows = HintGroups(size=2, max_tokens=3).collect(LETTERS.problems("train"), Context(LETTERS, policy, Stream(2)))
    assert [e.problem.prompt for e in rows] == ["a>?", "a>?", "b>?", "b>?", "c>?", "c>?"]
    context = Context(LETTERS, policy, Stream(4), max_tokens=6)

    class Noted(Letters):
        def score(self, problem: Problem, completion: str) -> float:
            seen.append(problem.prompt)
            return 1.0

    context.task = Noted()
    worth = SolvedWith(solver=CurrentPolicy(), samples=3).score(rows, context)
    wanted = [f"{e.problem.info['asked_about']}{e.completion.strip()}:" for e in rows if e.completion.strip()]
    assert seen == [p for p in wanted for _ in range(3)] or len(seen) == 18
    assert worth == [float(bool(e.completion.strip())) for e in rows]
    helped = HelpedBy(solver=CurrentPolicy(), samples=3).score(rows, context)
    assert helped == [w - 1.0 for w in worth]


def test_texts_without_a_place_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"HintedGroups.show must have \{prompt\} and \{hint\} in it, got 'x\{hint\}'"
    ):
        HintedGroups(show="x{hint}")
    with pytest.raises(ConfigError, match=r"HintGroups.ask must have \{prompt\} in it"):
        HintGroups(ask="?")
    with pytest.raises(ConfigError, match="experience=hinted-groups"):
        dapo.replace(rewards=(*dapo.rewards, OnlyWithHint())).check()


# Data


def shares(monkeypatch: pytest.MonkeyPatch, of: Any) -> None:
    """What solutions come to, in place of sampling."""

    def found(policy: Any, problems: Sequence[Problem], draws: Any, samples: int, context: Any) -> Any:
        return np.array([[of(p)] * samples for p in problems])

    monkeypatch.setattr("etude.methods.rlvr.rlad.data.accuracies", found)


def test_hints_are_kept_that_help_and_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    helped = {"a>": 1.0, "b>": 0.5, "c>": 1.0}
    bare = {"a>": 0.5, "b>": 0.5, "c>": 0.0}

    def share(problem: Problem) -> float:
        if problem.prompt in bare:
            return bare[str(problem.prompt)]
        before = str(problem.prompt)[:2]
        return helped[before] if before in helped else float(problem.prompt == "hc:")  # the hint alone

    shares(monkeypatch, share)
    problems = [replace(p, info={"hint": f"h{p.prompt[0]}"}) for p in LETTERS.problems("train")]
    part = WorthwhileHints(called="hints", problems=3)
    assert part.rows_by(problems, LETTERS, None, 0) == [{"prompt": "a>?", "completion": "ha"}]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'letters/0' has no hint to be tried"):
        part.rows_by(LETTERS.problems("train"), LETTERS, None, 0)  # type: ignore[arg-type]


# The chain and the budget


@pytest.mark.slow
def test_the_chain_hands_writers_and_solvers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(problem: Problem) -> float:
        asked, _, behind = str(problem.prompt).partition(">")
        return float(bool(behind)) if asked[0].isdigit() else 0.0

    shares(monkeypatch, lambda p: share(p) if ">" in str(p.prompt) and not str(p.prompt).endswith(">") else 0.0)
    steps = [f"runs.{run}.steps=1" for run in ("writer-0", "solver-1", "solver-2", "solver-3")]
    fields = ["runs.hints.problems=6", "runs.rates.problems=6", "problems=2", "experience.size=2", *steps]
    bands = [f'runs.solver-{n}.set=["experience.writer.model={{writer-{n - 1}}}"]' for n in (1, 2, 3)]
    run = etude.train("rlad", "operations", model="blank:1x16x2", set=[*bands, *fields], out=tmp_path / "r", quiet=True,
                      evaluate=0, preset=False, threads=1)  # fmt: skip
    names = sorted(p.name for p in run.folder.iterdir() if p.name[0].isdigit())
    assert names == ["01-hints", "02-rates", "03-writer-0", "04-solver-1", "05-writer-1", "06-solver-2", "07-writer-2",
                     "08-solver-3"]  # fmt: skip
    methods = {n: json.loads((run.folder / n / "method.json").read_text()) for n in names[2:]}
    assert "03-writer-0" in methods["04-solver-1"]["experience"]["writer"]["model"]
    assert "04-solver-1" in methods["05-writer-1"]["rewards"][0]["solver"]["model"]
    assert "07-writer-2" in methods["08-solver-3"]["experience"]["writer"]["model"]
    begun = {n: json.loads((run.folder / n / "config.json").read_text())["model"] for n in names[2:]}
    assert "03-writer-0" in begun["05-writer-1"] and "04-solver-1" in begun["06-solver-2"]


@pytest.mark.slow
def test_a_budget_is_hints_by_solutions() -> None:
    policy = random_policy(seed=1)
    problems, context = LETTERS.problems("train"), Context(LETTERS, policy, Stream(1), max_tokens=4)
    paid = spend(policy, policy, problems, context, hints=3, samples=2, tokens=2)
    assert paid.shape == (3, 3, 2)
    apart = spend(policy, policy, problems[1:], context, hints=2, samples=2, tokens=2)
    np.testing.assert_array_equal(paid[1:, :2], apart)  # whatever else is looked at


@pytest.mark.slow
def test_a_writer_learns_which_hints_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that is right exactly as often as there are letters in the hint."""
    monkeypatch.setattr(SolvedWith, "shares", lambda part, problems, episodes, context: [
        letters_reward(p, str(p.info["hint_in_view"])) for p in problems])  # fmt: skip
    for name in ("rlad-writer", "rlad-writer-rft"):
        method: Any = get_method(name)
        loop = loop_of(method.replace(minibatches=1, epochs=2))
        worth = [loop.step().metrics["reward"] for _ in range(3)]
        assert worth[-1] > worth[0] + 0.05, (name, worth)


# The claim's experiment


def test_measures_are_those_of_the_claim() -> None:
    paid = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])
    found = experiment.figures(paid, np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert found == {"pass@1": 3 / 8, "pass@16": 1.0, "best hint": 0.75, "without hints": 0.25}
    assert rlad.claim is not None and {m.name for m in rlad.claim.measures} == {*found, "more hints"}
    assert operations.max_tokens * 0.8 > 10  # a right line, with its end, costs nothing as overlong
