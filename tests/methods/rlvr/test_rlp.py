"""RLP: thoughts inside of a text, and what they are worth."""

from __future__ import annotations

import copy
import dataclasses
import math
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from etude.advantages.group import LeaveOneOut
from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.fit import check as check_fit
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.foresight import Foresight, foresight
from etude.experience.groups import Groups
from etude.experience.thoughts import THOUGHT, Thoughts
from etude.experiments.rlvr import rlp as experiment
from etude.experiments.watched import Job, Run
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.rlp import GreedyPrediction, InformationGain, information_gain, rlp
from etude.policies.language import LanguagePolicy
from etude.policies.texts.likelihood import likeliest
from etude.policies.texts.models import CurrentPolicy, KeptReference, SavedModel
from etude.references.frozen import MovingAverage
from etude.rewards.scoring import score
from etude.tasks.language.streams import Streams, stream, streams
from language_toys import VOCABULARY, Toy, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


class Texts(Toy):
    """Short texts that go on with a letter; thoughts stand in brackets."""

    thought: ClassVar[tuple[str, str]] = ("(", ")")
    max_tokens: ClassVar[int] = 6

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{i}", text, letter) for i, (text, letter) in enumerate([("a1", "b"), ("cc", "d")])]


SMALL: Any = set_values(rlp, {"problems": 2, "experience.size": 4, "optimizer.lr": 2e-3})


def thought_about(policy: LanguagePolicy, part: Thoughts, task: Any = None, seed: int = 3) -> list[Any]:
    task = task or Texts()
    return part.collect(task.problems("train"), Context(task, policy, Stream(seed), max_tokens=task.max_tokens))


def next_logp(policy: LanguagePolicy, context: list[int], text: list[int]) -> float:
    """By a forward of this row alone."""
    with torch.no_grad():
        table = policy.model(torch.tensor([[*context, *text]])).logits[0].double().log_softmax(-1)
    return sum(float(table[len(context) + i - 1, t]) for i, t in enumerate(text))


# Thoughts


def test_only_the_thought_is_trained_and_its_beginning_is_said() -> None:
    policy = random_policy(dtype=torch.float64)
    opens, closes = policy.encode("("), policy.encode(")")
    seen = set()
    for e in thought_about(policy, Thoughts(size=240)):
        turn = e.turns[0]
        assert turn.tokens[: len(opens)] == opens and turn.action_mask[: len(opens)] == [0] * len(opens)
        said = turn.tokens[len(opens) :]
        closed = ")" in policy.decode(said)
        thought = e.info[THOUGHT]
        assert thought[: len(opens)] == opens and policy.decode(thought).count(")") >= 1
        if closed:
            place = next(n for n in range(1, len(said) + 1) if ")" in policy.decode(said[:n]))
            assert turn.action_mask == [0] * len(opens) + [1] * place + [0] * (len(said) - place)
            assert thought == turn.tokens[: len(opens) + place]
        else:  # ended for it: an end token is left out, but was said
            assert turn.action_mask == [0] * len(opens) + [1] * len(said)
            whole = turn.tokens[:-1] if turn.tokens[-1] in policy.end_ids else turn.tokens
            assert thought == [*whole, *closes]
        seen.add(closed)
    assert seen == {True, False}


@pytest.mark.slow
def test_what_a_task_stops_at_is_sampled_behind_a_thought_and_not_trained() -> None:
    """Without such a text the thought's own end stops it."""
    policy = random_policy(seed=1)
    ends = [e.turns[0].tokens for e in thought_about(policy, Thoughts(size=240))]
    closed = [t for t in ends if ")" in policy.decode(t[1:])]
    assert closed and all(")" not in policy.decode(t[1:-1]) for t in closed)

    class Stopping(Texts):
        stop: ClassVar[tuple[str, ...]] = (";",)

    longer = [
        e for e in thought_about(policy, Thoughts(size=480), Stopping())
        if ")" in policy.decode(e.turns[0].tokens[1:])
    ]  # fmt: skip
    assert any(len(e.info[THOUGHT]) < len(e.turns[0].tokens) for e in longer)
    assert all(sum(e.turns[0].action_mask) == len(e.info[THOUGHT]) - 1 for e in longer)


def test_a_thought_is_the_same_whoever_thinks_beside_it() -> None:
    policy = random_policy()
    few, more = (thought_about(policy, Thoughts(size=n)) for n in (2, 5))
    assert [e.tokens for e in few] == [e.tokens for e in [*more[:2], *more[5:7]]]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="text that ends a thought"):
        Thoughts(thought=("(", ""))
    with pytest.raises(ConfigError, match="no room for a thought"):
        thought_about(random_policy(), Thoughts(max_tokens=1))
    with pytest.raises(ConfigError, match="set experience=thoughts"):
        check_fit(rlp.replace(experience=Groups()), streams)
    with pytest.raises(ConfigError, match="names no model"):
        check_fit(rlp.replace(rewards=(InformationGain(baseline=SavedModel()),)), streams)
    for answer in (None, ""):
        task = Texts()
        problems = [dataclasses.replace(p, answer=answer) for p in task.problems("train")]
        context = Context(task, random_policy(), Stream(0), max_tokens=6)
        episodes = Thoughts(size=2).collect(problems, context)
        with pytest.raises(DataError, match="must be text"):
            InformationGain(baseline=CurrentPolicy()).bind().score(episodes, context)


# What they are worth


def test_the_gain_is_the_difference_of_two_forwards() -> None:
    policy = random_policy(dtype=torch.float64)
    policy.keep_reference()
    first = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    episodes = thought_about(policy, Thoughts(size=3))
    found = InformationGain().bind().score(episodes, Context(Texts(), policy, Stream(0)))
    for e, gain in zip(episodes, found):
        asked, text = policy.encode(e.problem.prompt), policy.encode(e.problem.answer)
        expected = next_logp(policy, [*asked, *e.info[THOUGHT]], text) - next_logp(first, asked, text)
        assert gain == pytest.approx(expected, abs=1e-9)
    assert len(set(found)) == 6


def forced(policy: LanguagePolicy, context: list[int], text: list[int]) -> tuple[float, bool]:
    """log p(text | context) and whether greedy decoding says it: token by token, each by a forward of its own."""
    total, greedy = 0.0, True
    for place, token in enumerate(text):
        with torch.no_grad():
            z = policy.model(torch.tensor([[*context, *text[:place]]])).logits[0, -1].double().numpy()
        total += float(z[token] - z.max() - np.log(np.exp(z - z.max()).sum()))
        greedy &= int(z.argmax()) == token
    return total, greedy


class Longer(Texts):
    """What comes next has two letters."""

    def problems(self, split: str) -> list[Problem]:
        return [dataclasses.replace(p, answer=f"{p.answer}c") for p in super().problems(split)]


def test_foresight_is_that_of_a_loop_that_forces_token_by_token() -> None:
    """With a thought, without one and the difference, of texts of two tokens."""
    policy, task = random_policy(dtype=torch.float64), Longer()
    found = foresight(policy, task, problems=2, samples=3, seed=4)
    episodes = thought_about(policy, Thoughts(size=3), Asked(), seed=4)
    rows = [(policy.encode(e.problem.prompt), e.info[THOUGHT], policy.encode(e.problem.answer)) for e in episodes]
    thought = [forced(policy, [*context, *said], text)[0] for context, said, text in rows]
    plain = [forced(policy, context, text)[0] for context, _, text in rows[::3]]
    assert all(len(text) == 2 for *_, text in rows) and len({e.problem.id for e in episodes}) == 2
    assert found.thought.ravel() == pytest.approx(thought, abs=1e-9) and found.plain == pytest.approx(plain, abs=1e-9)
    assert found.gain == pytest.approx(np.mean(thought) - np.mean(plain), abs=1e-9) and abs(found.gain) > 1e-3


class Asked(Longer):
    """The problems that foresight is measured on."""

    def problems(self, split: str) -> list[Problem]:
        return super().problems("test")


def test_the_binary_reward_pays_what_greedy_decoding_would_say() -> None:
    """RPT's: texts of two tokens, some of them what the policy says after the thought, some only at their beginning."""
    policy = random_policy(dtype=torch.float64)
    policy.model.get_output_embeddings().weight.data[policy.encode("abcdwxyz")] *= 9.0  # letters are what it says
    episodes = thought_about(policy, Thoughts(size=3))
    before = [[*policy.encode(e.problem.prompt), *e.info[THOUGHT]] for e in episodes]
    contexts, texts = list[list[int]](), list[list[int]]()
    for row in before:
        with torch.no_grad():
            first = int(policy.model(torch.tensor([row])).logits[0, -1].argmax())
            second = int(policy.model(torch.tensor([[*row, first]])).logits[0, -1].argmax())
        contexts += [row] * 3
        texts += [[first, second], [first, (second + 1) % VOCABULARY], [(first + 1) % VOCABULARY, second]]
    found = likeliest(contexts, texts, policy, budget=60).tolist()
    assert found == [forced(policy, *pair)[1] for pair in zip(contexts, texts)] == [True, False, False] * 6
    for e, row in zip(episodes, before):
        e.problem = dataclasses.replace(e.problem, answer=policy.decode(texts[3 * before.index(row)]))
    scores = GreedyPrediction().bind().score(episodes, Context(Texts(), policy, Stream(0)))
    wanted = [forced(policy, row, policy.encode(e.problem.answer))[1] for row, e in zip(before, episodes)]
    assert scores == [float(x) for x in wanted] and True in wanted


@pytest.mark.slow
def test_the_binary_control_differs_from_rlp_in_its_reward_alone() -> None:
    method: Any = set_values(SMALL, {"rewards": "greedy-prediction"})
    assert {path.split(".")[0] for path in method.diff(SMALL)} == {"rewards"}
    check_fit(method)
    loop = make_loop(method, Texts(), policy=random_policy(dtype=torch.float64))
    metrics = loop.step().metrics
    assert metrics["reward"] == metrics["reward/greedy-prediction"] and metrics["reward"] in [n / 8 for n in range(9)]
    with pytest.raises(ConfigError, match=r"GreedyPrediction scores what thoughts .*set experience=thoughts"):
        check_fit(method.replace(experience=Groups()))


def test_a_thought_that_leaves_no_room_has_no_reward() -> None:
    """It is left out and counted; where the prompt alone fills the window nothing can be measured."""
    policy, closes = random_policy(context=9), 1
    episodes = thought_about(policy, Thoughts(size=40, max_tokens=20))
    found = InformationGain(baseline=CurrentPolicy()).bind().score(episodes, Context(Texts(), policy, Stream(0)))
    size = [len(policy.encode(e.problem.prompt)) + len(e.info[THOUGHT]) + closes for e in episodes]
    assert [x is None for x in found] == [n > 9 for n in size] and {x is None for x in found} == {True, False}
    loop = make_loop(SMALL.replace(experience=Thoughts(size=20)), Texts(), policy=random_policy(context=9))
    metrics = loop.step().metrics
    assert metrics["no_reward"] > 0 and metrics["rows"] + metrics["no_reward"] == 40
    with pytest.raises(DataError, match="fills the model's window"):
        foresight(random_policy(context=2), Texts(), problems=1)


def test_an_empty_thought_of_an_average_that_has_not_moved_is_worth_nothing() -> None:
    policy = random_policy(dtype=torch.float64)
    policy.keep_reference()
    contexts, texts = [[5, 6, 7], [8, 9]], [[10], [11, 12]]
    found = information_gain(contexts, [[], []], texts, policy, KeptReference())
    assert found.abs().max() < 1e-12
    policy.model.get_output_embeddings().weight.data.mul_(1.2)
    assert information_gain(contexts, [[], []], texts, policy, KeptReference()).abs().min() > 1e-3
    policy.move_reference(1.0)
    assert information_gain(contexts, [[], []], texts, policy, KeptReference()).abs().max() < 1e-12


def test_expected_gain_is_the_difference_of_two_cross_entropies() -> None:
    """Identity 2, by enumeration of what comes next under any distribution p* of it."""
    policy, n = random_policy(dtype=torch.float64), VOCABULARY
    policy.keep_reference()
    policy.model.get_output_embeddings().weight.data.mul_(1.3)
    truth = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(0)
    context, thought = [5, 6, 7], [40, 41]
    gain = information_gain([context] * n, [thought] * n, [[v] for v in range(n)], policy, KeptReference())
    with torch.no_grad():
        theta = policy.model(torch.tensor([[*context, *thought]])).logits[0, -1].log_softmax(-1)
        phi = policy.reference(torch.tensor([context])).logits[0, -1].log_softmax(-1)
    expected = -(truth * phi).sum() + (truth * theta).sum()
    torch.testing.assert_close((truth * gain).sum(), expected, atol=1e-9, rtol=0)


def test_thoughts_are_worth_at_most_what_their_mixture_is() -> None:
    """Identity 3 (Jensen), with equality where p does not depend on the thought."""
    policy = random_policy(dtype=torch.float64)
    for thought in (None, ("", "x")):
        found = foresight(policy, Texts(), problems=2, samples=6, experience=Thoughts(thought=thought, max_tokens=4))
        assert found.with_thought < found.mixture - 1e-6
        assert found.thought.shape == (2, 6) and found.plain.shape == (2,)
    same = Foresight(np.log([[0.3, 0.3], [0.7, 0.7]]), np.log([0.3, 0.7]))
    assert same.mixture == pytest.approx(same.with_thought, abs=1e-12) and same.gain == pytest.approx(0, abs=1e-12)


def test_foresight_without_a_thought_is_the_text_s_likelihood() -> None:
    policy = random_policy(dtype=torch.float64)
    found = foresight(policy, Texts(), problems=2, samples=2)
    rows = [(policy.encode(p.prompt), policy.encode(p.answer)) for p in Texts().problems("test")]
    assert found.plain == pytest.approx([next_logp(policy, c, t) for c, t in rows], abs=1e-9)


# What is learned


def test_advantages_are_the_gain_against_the_mean_of_the_others() -> None:
    """Identity 1: G / (G - 1) (r - mean r) = r - mean of the others, whatever phi says."""
    loop = make_loop(SMALL, Texts(), policy=random_policy(dtype=torch.float64))
    context = loop.context(loop.method, Stream(5))
    batch = score(loop.gatherer.gather(loop.method, 2, context), loop.method.rewards, context)
    advantages = loop.method.advantages(batch)
    r = batch.scores.double().view(2, 4)
    for g, i in product(range(2), range(4)):
        others = (r[g].sum() - r[g, i]) / 3
        row = advantages[4 * g + i][batch.action_mask[4 * g + i]]
        assert row.tolist() == pytest.approx([float(r[g, i] - others)] * len(row), abs=1e-5)
        assert float(r[g, i] - others) == pytest.approx(float(4 / 3 * (r[g, i] - r[g].mean())), abs=1e-9)


def test_leaving_one_out_is_unbiased_by_enumeration() -> None:
    """Identity 1: over all groups of three of four thoughts, the mean of sum_i A_i grad log p(c_i) is the gradient."""
    logits = torch.tensor([0.3, -0.2, 0.8, 0.0], dtype=torch.float64, requires_grad=True)
    gains = torch.tensor([1.5, -0.7, 0.2, 3.0], dtype=torch.float64)
    (logits.softmax(0) * gains).sum().backward()
    p, found = logits.detach().softmax(0), torch.zeros(4, dtype=torch.float64)
    for drawn in product(range(4), repeat=3):
        chance = math.prod(float(p[c]) for c in drawn)
        credit = LeaveOneOut().centred(gains[list(drawn)], torch.zeros(3))
        for c, a in zip(drawn, credit):
            found += chance * a * (torch.nn.functional.one_hot(torch.tensor(c), 4) - p) / 3
    torch.testing.assert_close(found, logits.grad, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_the_share_of_the_baseline_cancels(tmp_path: Any) -> None:
    """Identity 4: with a wrong phi rewards are others, and the update is the same."""
    random_policy(seed=9, dtype=torch.float64).save(tmp_path / "wrong")
    wrong = SavedModel(model=str(tmp_path / "wrong"))
    loops = []
    for baseline in (KeptReference(), wrong):
        method = SMALL.replace(rewards=(InformationGain(baseline=baseline),))
        loops.append(make_loop(method, Texts(), policy=random_policy(dtype=torch.float64), steps=2))
    found = [loop.step().metrics for loop in loops]
    assert abs(found[0]["reward"] - found[1]["reward"]) > 0.1
    assert found[0]["gradient_norm"] == pytest.approx(found[1]["gradient_norm"], rel=1e-4)
    assert found[0]["gradient_norm"] > 1e-3
    for one, other in zip(loops[0].policy.model.parameters(), loops[1].policy.model.parameters()):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)


def test_the_average_begins_as_the_policy_and_follows_it() -> None:
    assert rlp.reference == MovingAverage(rate=0.001)
    loop = make_loop(SMALL.replace(reference=MovingAverage(rate=0.25)), Texts(), policy=random_policy(seed=2))
    kept = [p.detach().clone() for p in loop.policy.model.parameters()]
    for _ in range(2):
        before = [p.detach().clone() for p in loop.policy.reference.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(before, kept)) or loop.finished
        loop.step()
        for old, now, mine in zip(before, loop.policy.model.parameters(), loop.policy.reference.parameters()):
            torch.testing.assert_close(mine, old + 0.25 * (now - old))


@pytest.mark.slow
def test_thoughts_learn_to_foretell() -> None:
    """The gain of thoughts at the same policy's own baseline rises, and a flipped sign makes it fall."""

    def gain(sign: float) -> float:
        method: Any = set_values(SMALL, {"optimizer.lr": 1e-2, "experience.size": 16, "experience.temperature": 1.0})
        if sign < 0:
            method = method.replace(rewards=(Flipped(),))
        loop = make_loop(method, Texts(), policy=random_policy(seed=4))
        measured = [foresight(loop.policy, Texts(), problems=2, samples=64).with_thought]
        for _ in range(10):
            loop.step()
        measured.append(foresight(loop.policy, Texts(), problems=2, samples=64).with_thought)
        return measured[1] - measured[0]

    assert gain(1.0) > 0.3 > -0.3 > gain(-1.0)


class Flipped(InformationGain):
    """A thought that tells nothing is worth most."""

    def score(self, episodes: Any, context: Context) -> list[float]:
        return [-x for x in super().score(episodes, context)]


# The task


def test_streams_are_right_and_their_splits_apart() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        text, values = stream(4, rng)
        known: dict[str, int] = {}
        for line in text.split(";")[:-1]:
            name, said = line.split("=")
            known[name] = eval(said, {}, known) % 10  # of our own text
        assert list(known.values()) == values and text.endswith(";d?")
    shown = {s: {p.prompt for p in streams.problems(s)[:500]} for s in ("train", "test")}
    assert not shown["train"] & shown["test"]


def test_every_place_of_a_text_can_be_asked_about() -> None:
    task = Streams(where="anywhere", scratch=1.0, lines=(3,))
    problems = task.problems("train")[:600]
    for p in problems:
        rest = task.demonstration(p)
        thought, _, after = rest.rpartition(")")
        assert after.startswith(p.answer) and task.score(p, rest[: len(thought) + 2 * bool(thought)] or rest) == 1.0
        assert bool(thought) == p.prompt.endswith("?")
    assert len({len(p.prompt) for p in problems}) > 15 and {p.answer for p in problems} > set("=;?bc+-*")
    with pytest.raises(ConfigError, match="at least one number of variables"):
        Streams(lines=())


@pytest.mark.parametrize(
    ("said", "right"),
    [("(9,7,1)1;", 1.0), ("1;", 1.0), ("1", 1.0), ("(9,7,1)", 0.0), ("(1)2;", 0.0), ("", 0.0), ("(9,7,1", 0.0)],
)
def test_an_answer_comes_after_the_last_thought(said: str, right: float) -> None:
    problem = Streams(lines=(3,)).problems("train")[0]
    assert problem.prompt == "a=9;b=a-2;c=b*3;c?" and streams.score(problem, said) == right


# The claim


def test_the_claim_compares_the_arms_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    level = {"start": -1.5, "rlp": -0.4, "equal tokens": -0.9, "equal compute": -0.6}
    jobs: list[Job] = []

    def fake(job: Job) -> Run:
        jobs.append(job)
        value = level[job.label]
        rows = job.method.problems * (1 if job.label != "rlp" else job.method.experience.size)
        scores = {"log-likelihood": value, "gain": -value, "accuracy after GRPO": 1 + value / 2, "pass@1": 0.2}
        return Run(job.label, job.seed, [{"rows": float(rows)}] * job.steps, [], scores)

    class Begun:
        def __init__(self, *args: object, **options: object) -> None:
            self.folder = "start"

        def __enter__(self) -> Begun:
            return self

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(experiment, "started", Begun)
    monkeypatch.setattr(experiment, "run", fake)
    monkeypatch.setattr(experiment, "_both", fake)
    monkeypatch.setattr(experiment, "spread", lambda function, work: [function(w) for w in work])
    found = experiment.experiment([0, 1])
    assert rlp.claim is not None and {m.name for m in rlp.claim.measures} == set(found[0].arm)
    first = found[0]
    assert first.arm["log-likelihood at equal tokens"] - first.baseline["log-likelihood at equal tokens"] == 0.5
    assert first.baseline["log-likelihood at equal compute"] == -0.6
    assert first.start["accuracy after GRPO at equal tokens"] == 0.2
    assert first.budgets["texts"] == (960.0, 960.0)
    assert {j.label: j.task.scratch for j in jobs} == {
        "start": 0.1, "rlp": 0.1, "equal tokens": 0.0, "equal compute": 0.0
    }  # fmt: skip
    costly = next(j for j in jobs if j.label == "equal compute")
    assert costly.method.problems == 16 * experiment.MORE == 16 * (1 + 8 * 16 // 20)


def test_it_differs_from_grpo_in_what_its_docstring_says() -> None:
    changed = {path.split(".")[0] for path in rlp.diff(grpo)}
    assert changed == {"experience", "rewards", "advantages", "reference"}
