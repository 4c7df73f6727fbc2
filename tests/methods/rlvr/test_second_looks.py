"""GHPO and Critique-GRPO: who is looked at again, what is in view then, and what of it is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenLogProbs
from etude.core.complete import complete_token
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.fit import check as check_fit
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.experience.said import SolutionSaid, WordsSaid
from etude.experience.second_look import AllProblems, BestJoins, LookAgain, UnsolvedProblems
from etude.experience.shown import (
    AttemptAndCritique,
    FirstWrongStep,
    OwnCritique,
    SolutionInPrompt,
    Verdict,
    continued,
    followed,
)
from etude.loops.credit import loss
from etude.methods.rlvr.critique_grpo import ByContext, ShapedProbability, critique_grpo
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.ghpo import ghpo
from etude.objectives.unified import ShapedDenominator, UnifiedGradient
from etude.policies.fingerprint import fingerprint
from etude.policies.sampling import Completion
from etude.tasks.agents.keys import keys
from language_toys import Scripted, make_loop, random_episodes, random_policy

SHORT = SolutionInPrompt(text="[{}]")


class Worked(LanguageTask):
    """Problems a, b, c, d with the worked answer 'wxyz'; right is what says 'z'."""

    id: ClassVar[str] = "worked"
    max_tokens: ClassVar[int] = 6

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{name}", f"{name}:", "z", info={"demonstration": "wxyz"}) for name in "abcd"]

    def score(self, problem: Problem, completion: str) -> float:
        return float("z" in completion)


class Partly(Worked):
    """b has no worked answer."""

    def problems(self, split: str) -> list[Problem]:
        return [replace(p, info={} if p.prompt == "b:" else p.info) for p in super().problems(split)]


class Hopeless(Worked):
    """Nothing is right."""

    def score(self, problem: Problem, completion: str) -> float:
        return 0.0


class Earning(Worked):
    """Everything is right, and paid by the characters that are small letters."""

    def score(self, problem: Problem, completion: str) -> float:
        return 1 + sum(c.islower() for c in completion) / 8


def speaking(answer: Callable[[str], str], context: int = 256) -> tuple[Any, list[str]]:
    """A policy that says what a function makes of the text before it, and what it was shown, in order."""
    policy, seen = random_policy(context=context), list[str]()

    def say(tokens: list[int]) -> Completion:
        seen.append(policy.decode(tokens))
        said = policy.encode(answer(seen[-1]))
        policy.emitted.add(hash(tuple(said)))
        return Completion(said, [-0.5] * len(said), stop=StopReason.END_OF_TEXT)

    policy.converse = lambda: Scripted(say)  # type: ignore[method-assign,assignment,return-value]
    return policy, seen


def looked(part: LookAgain, policy: Any, size: int = 2, task: LanguageTask | None = None) -> tuple[Any, list[Episode]]:
    """A bound second look, and the episodes after it."""
    task = task or Worked()
    bound, groups = part.bind(), Groups(size=size)
    context = Context(task, policy, Stream(3), max_tokens=task.max_tokens)
    first = groups.collect(task.problems("train"), context)
    return bound, bound.again(first, groups, context)


def prompts(episodes: list[Episode]) -> list[str]:
    return ["".join(s.text for s in e.segments if s.role == "user") for e in episodes]


def by_hint(shown: str) -> str:
    """a is always right, b with a quarter of the answer in view, c with a half, d never."""
    least = {"a": 0, "b": 1, "c": 2, "d": 9}[shown[0]]
    return "z" if shown.partition("[")[2].partition("]")[0] >= "wxyz"[:least] or not least else "no"


# GHPO


def test_only_what_is_still_unsolved_is_tried_again_with_more_in_view() -> None:
    policy, seen = speaking(by_hint)
    bound, after = looked(LookAgain(shows=SHORT), policy)
    assert prompts(after) == [p for p in ("a:", "b:[w]", "c:[wx]", "d:[wxy]") for _ in range(2)]
    assert [e.reward for e in after] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert [e.group for e in after] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert seen[8:] == [p for p in ("b:[w]", "c:[w]", "d:[w]", "c:[wx]", "d:[wx]", "d:[wxy]") for _ in range(2)]
    z, no = (len(policy.encode(text)) for text in ("z", "no"))
    assert bound.state == {
        "problems": 4, "looked": [3, 2, 1], "solved": [1, 1, 0], "no_room": [0, 0, 0],
        "tokens": [2 * (z + no + no), 2 * (z + no), 2 * no],
    }  # fmt: skip


def by_beginning(shown: str) -> str:
    """a is always right, b with a block of the answer said already, c with two, d never."""
    name, _, begun = shown.partition(":")
    return "z" if len(begun) >= {"a": 0, "b": 1, "c": 2, "d": 9}[name] else "no"


def test_blocks_of_the_answer_are_said_already_and_gone_on_from() -> None:
    """Under the plain prompt, of which the new attempts are answers; what is said is scored, and never learned."""
    policy, seen = speaking(by_beginning)
    bound, after = looked(LookAgain(shows=SolutionSaid()), policy)
    assert prompts(after) == [f"{name}:" for name in "abcd" for _ in range(2)]
    assert [e.completion for e in after] == [t for t in ("z", "wz", "wxz", "wxyno") for _ in range(2)]
    assert [e.reward for e in after] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert seen[8:] == [p for p in ("b:w", "c:w", "d:w", "c:wx", "d:wx", "d:wxy") for _ in range(2)]
    assert bound.state["looked"] == [3, 2, 1] and bound.state["solved"] == [1, 1, 0]
    batch = to_batch(after, 0, 1.0, torch.device("cpu"))
    learned = [policy.decode(batch.tokens[row][batch.action_mask[row]].tolist()) for row in range(len(after))]
    assert learned == [t for t in ("z", "z", "z", "no") for _ in range(2)]
    assert policy.work["shown_tokens"] == sum(len(policy.encode(t)) for t in ("w", "w", "w", "wx", "wx", "wxy"))


def test_words_are_said_for_the_policy() -> None:
    policy, seen = speaking(lambda shown: "z" if shown.endswith("hm,") else "no")
    _, after = looked(LookAgain(shows=WordsSaid(text="hm,")), policy)
    assert [e.completion for e in after] == ["hm,z"] * 8 and seen[8:] == [f"{n}:hm," for n in "abcd" for _ in range(2)]
    assert not any(e.elsewhere for e in after)


def test_what_is_said_leaves_room_in_a_completion_or_is_not() -> None:
    """Six tokens at most: six that are said already leave none, and the attempts stay."""
    policy, seen = speaking(lambda shown: "no")
    bound, after = looked(LookAgain(shows=WordsSaid(text="h" * len("hhhhhh"))), policy)
    assert len(policy.encode("hhhhhh")) >= 6
    assert [e.completion for e in after] == ["no"] * 8 and len(seen) == 8 and bound.state["looked"] == [0]
    _, some = looked(LookAgain(shows=SolutionSaid(shown=(2,))), policy, task=Partly())
    assert [e.completion for e in some] == [t for t in ("wxno", "no", "wxno", "wxno") for _ in range(2)]


@pytest.mark.parametrize("shown", [(1, 5), ()])
def test_blocks_that_there_are_not_are_refused(shown: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="must say how many of 4 blocks"):
        SolutionSaid(shown=shown)


def test_no_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="be what a new attempt begins with"):
        WordsSaid(text="")


def test_what_is_shown_is_read_and_not_learned() -> None:
    policy, _ = speaking(by_hint)
    _, after = looked(LookAgain(shows=SHORT), policy)
    batch = to_batch(after, 0, 1.0, torch.device("cpu"))
    for row, e in enumerate(after):
        said = e.completion
        assert policy.decode(batch.tokens[row][batch.action_mask[row]].tolist()) == said
        assert policy.decode(batch.tokens[row][batch.attention_mask[row]].tolist()) == prompts([e])[0] + said
    assert not bool(batch.elsewhere.any()) if batch.elsewhere is not None else True


def test_where_nothing_is_hard_the_update_is_that_without_a_second_look() -> None:
    marks = []
    for method in (ghpo, ghpo.replace(second_look=None)):
        loop = make_loop(method.replace(problems=3), Earning(), steps=2)
        metrics = loop.step().metrics
        marks.append(fingerprint(loop.policy.parameters()))
    assert metrics["gradient_norm"] > 0 and marks[0] == marks[1]


def test_a_share_of_nothing_changes_no_prompt_and_only_tries_again() -> None:
    policy = random_policy()
    plain, again = (
        looked(LookAgain(shows=SolutionInPrompt(shares=shares)), policy)[1] for shares in ((0.0,), (0.0, 0.0))
    )
    assert prompts(plain) == prompts(again) == [f"{p}:" for p in "aabbccdd"]
    assert [e.tokens for e in plain] != [e.tokens for e in again], "a stage of its own draws of its own"


def test_a_group_that_stays_wrong_moves_nothing() -> None:
    loop = make_loop(ghpo.replace(problems=4), Hopeless(), steps=2)
    before = fingerprint(loop.policy.parameters())
    metrics = loop.step().metrics
    assert metrics["accuracy"] == 0 and metrics["second_look/2"] == 1
    assert fingerprint(loop.policy.parameters()) == before


def test_a_prompt_that_leaves_no_room_keeps_its_attempts() -> None:
    policy, _ = speaking(lambda shown: "no", context=12)
    bound, after = looked(LookAgain(shows=SolutionInPrompt(shares=(0.5,), text="[{}.........]")), policy)
    assert prompts(after) == [f"{p}:" for p in "aabbccdd"]
    assert bound.state["no_room"] == [4] and bound.state["solved"] == [0]


def test_a_problem_without_a_worked_answer_is_not_tried_again() -> None:
    """Its attempts stay as they were, at every stage; the others are looked at as ever."""
    policy, seen = speaking(by_hint)
    bound, after = looked(LookAgain(shows=SHORT), policy, task=Partly())
    assert prompts(after) == [p for p in ("a:", "b:", "c:[wx]", "d:[wxy]") for _ in range(2)]
    assert [e.completion for e in after[2:4]] == ["no", "no"] and "look" not in after[2].info
    assert not any(shown.startswith("b:[") for shown in seen)
    assert bound.state["looked"] == [2, 2, 1] and bound.state["no_room"] == [0, 0, 0]
    assert bound.state["problems"] == 4


def test_a_critic_has_nothing_to_say_where_there_is_no_worked_answer() -> None:
    policy, seen = speaking(lambda shown: "no")
    shows = AttemptAndCritique(critic=FirstWrongStep(), text="({})")
    bound, after = looked(LookAgain(which=AllProblems(), shows=shows, keeps=BestJoins(), plain=True), policy,
                          task=Partly())  # fmt: skip
    assert sorted({s for s in seen if "(" in s}) == [f"{p}:no(wrong at step 1)" for p in "acd"]
    assert [e.group for e in after[8:]] == [0, 2, 3] and bound.state["looked"] == [3]
    context = Context(Partly(), policy, Stream(3), max_tokens=6)
    first = Groups(size=1).collect(Partly().problems("train"), context)
    assert [start is None for start in shows.starts(first, 0, context)] == [False, True, False, False]
    said = "wrong at step 1"
    policy.work["shown_tokens"] = 0
    assert FirstWrongStep().say(first, context) == [said, None, said, said]
    assert policy.work["shown_tokens"] == 3 * len(policy.encode(said))


def test_a_task_of_which_some_problems_have_worked_answers_is_not_refused() -> None:
    first = type("First", (Worked,), {"demonstration": lambda self, p: None if p.prompt == "a:" else "wxyz"})()
    assert first.demonstration(first.problems("train")[0]) is None
    check_fit(ghpo, first)


def test_it_begins_when_it_is_told_to() -> None:
    policy, seen = speaking(by_hint)
    looked(LookAgain(shows=SHORT, after=1), policy)
    assert len(seen) == 8


def test_a_filter_that_resamples_sees_what_came_of_it() -> None:
    """With b to d solved in half of their hinted completions, no second round is drawn."""
    policy, seen = speaking(lambda shown: "z" if "[" in shown and len(seen) % 2 else "no")
    method = dapo.replace(second_look=LookAgain(shows=SHORT), experience=Groups(size=2), problems=4, minibatches=1)
    loop = make_loop(method, Worked(), policy, steps=2)
    scorer: Any = loop.party.scorer("policy")
    scorer.score, count = _counted(scorer.score)
    with pytest.raises(Exception, match="log-probabilities"):  # what was scripted is not what the policy would say
        loop.step()
    assert count == [1]


def _counted(function: Any) -> tuple[Any, list[int]]:
    count = [0]

    def counted(*given: Any) -> Any:
        count[0] += 1
        return function(*given)

    return counted, count


def test_worked_answers_beside_the_samples_stay_where_they_are() -> None:
    policy, _ = speaking(by_hint)
    task, bound = Worked(), LookAgain(shows=SHORT).bind()
    context = Context(task, policy, Stream(3), max_tokens=6)
    shown = Demonstrations().collect(task.problems("train"), context)
    after = bound.again([*Groups(size=2).collect(task.problems("train"), context), *shown], Groups(size=2), context)
    assert after[8:] == shown and bound.state["problems"] == 4


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (keys, "writes what it shows into the prompt"),
        (type("Bare", (Worked,), {"demonstration": lambda self, problem: None})(), "no worked answer"),
        (type("Judged", (Worked,), {"judged_by_reward": True})(), "only rewards can tell"),
    ],
)
def test_tasks_that_it_cannot_look_at_are_refused(task: LanguageTask, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_fit(ghpo, task)


def test_fields_that_contradict_themselves_are_refused() -> None:
    for make, sentence in [
        (lambda: SolutionInPrompt(shares=()), "at least one share"),
        (lambda: SolutionInPrompt(text="hint"), "where the beginning of the answer stands"),
        (lambda: AttemptAndCritique(text="again"), "where the critique stands"),
        (lambda: FirstWrongStep(separator=""), "what stands between steps"),
        (lambda: ByContext(own=UnifiedGradient(), elsewhere=GroupLoss()), "depends on its row alone"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            make()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError, match="tries again what an experience has sampled"):
        check_fit(ghpo.replace(experience=Demonstrations()), Worked())


class GroupLoss(UnifiedGradient):
    """An objective that compares rows."""

    couples = "group"


# Critique-GRPO


def mending(shown: str) -> str:
    """Wrong at first; a is mended by its second attempt, b by none."""
    if "it is" not in shown:
        return "no"
    return "z" if shown.startswith("a") else "nono"


CRITIQUE = LookAgain(which=AllProblems(), shows=AttemptAndCritique(text="({})"), keeps=BestJoins(), plain=True)


def test_one_mended_attempt_joins_the_group_under_the_plain_prompt() -> None:
    policy, seen = speaking(mending)
    bound, after = looked(CRITIQUE, policy, size=7)
    assert seen[28] == "a:no(wrong, it is z)"
    assert len(after) == 4 * 8 and [e.group for e in after[28:]] == [0, 1, 2, 3]
    mended = after[28]
    assert mended.elsewhere and mended.reward == 1 and mended.problem.prompt == "a:"
    assert policy.decode(mended.tokens) == "a:z", "neither attempt nor critique is in the row"
    assert [e.elsewhere for e in after[:28]] == [False] * 28
    assert bound.state["solved"] == [1] and bound.state["looked"] == [4]


def test_seven_wrong_attempts_and_a_right_one_that_was_mended() -> None:
    policy, _ = speaking(mending)
    _, after = looked(CRITIQUE, policy, size=7)
    batch = to_batch([e for e in after if e.group == 0], 0, 1.0, torch.device("cpu"))
    batch = batch.replace(scores=torch.tensor([e.reward for e in batch.episodes]))
    advantages = GroupAdvantage(centre=GroupMean(), scale=None)(batch)
    assert advantages[batch.action_mask].unique().tolist() == [-0.125, 0.875]
    assert advantages[7][batch.action_mask[7]].tolist() == [0.875]


def test_the_first_right_one_joins_else_one_that_is_paid_best() -> None:
    task = Worked()

    def paid(reward: float, right: bool) -> Episode:
        said = Segment("assistant", "x", [1], [1], [0.0], reward=reward)
        return Episode(Problem("p", "?"), [said], info={"success": right})

    some = [paid(0.2, False), paid(1.5, False), paid(1.0, True), paid(1.2, True)]
    assert BestJoins().merged([], some, task)[1] == [some[2]]
    assert BestJoins().merged([], some[:2], task)[1] == [some[1]]


def test_a_real_run_learns_mended_rows_without_comparing_their_log_probabilities() -> None:
    class Easy(Worked):
        def score(self, problem: Problem, completion: str) -> float:
            return float(any(c.islower() for c in completion))

    loop = make_loop(critique_grpo.replace(problems=4), Easy(), steps=2)
    metrics = loop.step().metrics
    assert metrics["second_look/0"] == pytest.approx(4 / 32) and metrics["gradient_norm"] > 0
    assert metrics["logp_gap"] < 1e-5


@pytest.mark.slow
def test_mended_rows_are_learned_behind_the_plain_prompt_alone() -> None:
    """Row critique-grpo, identity 4: what the policy reads of them, and log-probabilities by a pass of their own."""
    policy = random_policy()
    loop = make_loop(critique_grpo.replace(problems=4, minibatches=1), Vowels(), policy, steps=2)
    forward, mended = policy.evaluate_together, list[str]()

    def spied(batch: Any, needs: Any) -> Any:
        out = forward(batch, needs)
        for row in batch.elsewhere.nonzero()[:, 0].tolist():
            read, said = batch.tokens[row][batch.attention_mask[row]], batch.action_mask[row]
            prompt = policy.encode(batch.episodes[row].problem.prompt)
            assert read.tolist() == [*prompt, *batch.tokens[row][said].tolist()]
            assert len(prompt) == 2 and "right answer" not in policy.decode(read.tolist())
            logp = policy.model(read[None]).logits[0].log_softmax(-1)[:-1].gather(1, read[1:, None])[1:, 0]
            torch.testing.assert_close(out.logp[row][said], logp, atol=1e-5, rtol=0)
            mended.append(policy.decode(read.tolist()))
        return out

    policy.evaluate_together = spied  # type: ignore[method-assign]
    loop.step()
    assert sorted(text[:2] for text in mended) == ["a:", "b:", "c:", "d:"]


class Vowels(Worked):
    """Right is what has a small letter in it."""

    def score(self, problem: Problem, completion: str) -> float:
        return float(any(c.islower() for c in completion))


def test_without_mended_rows_its_loss_is_the_centred_ratio_over_limit_and_rows() -> None:
    """Row critique-grpo, identity 1: -1 / (B L) sum_b sum_t rho A, A = r - mean r, by hand, with its gradient."""
    batch = to_batch(random_episodes((3, 4)), 0, 1.0, torch.device("cpu"))
    scores = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    batch = batch.replace(scores=torch.tensor(scores))
    method = complete_token(critique_grpo.replace(second_look=None, regularizers=())).bind()
    batch = batch.replace(advantages=method.advantages(batch))
    moved = torch.randn(batch.behaviour_logp.shape, generator=torch.Generator().manual_seed(1)) / 4
    logp = (batch.behaviour_logp + moved).requires_grad_(True)
    found = loss(method, batch, TokenLogProbs(logp), 20)
    by_hand, slope = 0.0, torch.zeros_like(logp)
    for row in range(7):
        mean = 1 / 3 if row < 3 else 3 / 4
        for t in batch.action_mask[row].nonzero()[:, 0].tolist():
            part = -math.exp(float(moved[row, t])) * (scores[row] - mean) / (7 * 20)
            by_hand, slope[row, t] = by_hand + part, part
    assert float(found.detach()) == pytest.approx(by_hand, rel=1e-5)
    torch.testing.assert_close(torch.autograd.grad(found, logp)[0], slope, atol=1e-7, rtol=1e-5)


def shaped(logp: Tensor, gamma: float) -> Tensor:
    rows: Any = type("Rows", (), {"advantages": torch.ones_like(logp)})()
    return -ShapedProbability(gamma=gamma)(rows, TokenLogProbs(logp)).sum()


@pytest.mark.parametrize("gamma", [0.1, 0.4])
def test_the_slope_of_the_shaping_is_largest_where_the_chance_is_gamma(gamma: float) -> None:
    p = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    logp = p.log().requires_grad_(True)
    (slope,) = torch.autograd.grad(shaped(logp, gamma), logp)
    torch.testing.assert_close(slope, gamma * p / (p + gamma) ** 2)
    assert float(slope.max()) == pytest.approx(0.25) and float(p[slope.argmax()]) == pytest.approx(gamma)


def test_a_large_gamma_leaves_the_chance_over_gamma() -> None:
    logp = torch.tensor([-0.1, -2.0], dtype=torch.float64)
    torch.testing.assert_close(shaped(logp, 1e6) * 1e6, logp.exp().sum(), rtol=1e-5, atol=0)


def test_its_gradient_is_a_case_of_the_unified_estimator() -> None:
    logp = torch.tensor([[-0.3, -2.5]], dtype=torch.float64, requires_grad=True)
    rows: Any = type("Rows", (), {"advantages": torch.tensor([[0.7, -0.2]])})()
    unified = UnifiedGradient(denominator=ShapedDenominator(shape=0.1))
    found = [
        torch.autograd.grad(objective(rows, TokenLogProbs(logp)).sum(), logp)[0]
        for objective in (ShapedProbability(gamma=0.1), unified)
    ]
    torch.testing.assert_close(*found)


def test_without_mended_rows_it_is_the_centred_ratio_without_a_clip() -> None:
    old, new = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-0.2, -4.0]])
    rows: Any = type("Rows", (), {"advantages": torch.ones(1, 2), "behaviour_logp": old, "elsewhere": None})()
    torch.testing.assert_close(ByContext()(rows, TokenLogProbs(new)), -(new - old).exp())


def test_critics_say_what_they_see() -> None:
    assert Verdict(answer="").sentence(False, 3) == "wrong" and Verdict().sentence(True, None) == "right"
    assert FirstWrongStep().sentence("9,17", "8,17,19") == "wrong at step 1"
    assert FirstWrongStep().sentence("8,17", "8,17,19") == "wrong at step 3", "the step that is missing"
    assert FirstWrongStep().sentence("8,17,19,20", "8,17,19") == "wrong at step 4", "the step that is too many"


def test_a_policy_may_be_its_own_critic() -> None:
    policy, seen = speaking(lambda shown: "bad\nxx" if shown.endswith("?") else "no")
    shows = AttemptAndCritique(critic=OwnCritique(request=" ?"), text="({})")
    _, after = looked(LookAgain(shows=shows, which=UnsolvedProblems(), keeps=BestJoins(), plain=True), policy)
    assert seen[8] == "a:no ?" and seen[16] == "a:no(bad)"
    assert all("bad" not in policy.decode(e.tokens) for e in after)


def test_conversations_are_shown_messages() -> None:
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "1+1"}]}]
    assert followed(asked, " hint")[1]["content"][-1] == {"type": "text", "text": " hint"}
    assert followed(asked, "") == asked
    assert continued(asked, "3", "\nwrong\n")[2:] == [
        {"role": "assistant", "content": "3"}, {"role": "user", "content": "wrong"},
    ]  # fmt: skip
