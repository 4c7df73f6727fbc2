"""QwenLong-L1.5: what a memory agent sees and learns, what a merge comes to, and its chain as it is trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import etude
from etude.advantages.group import LevelStd, scaled
from etude.core.batches import TokenBatch
from etude.core.edit import stack
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.recipe import Recipe
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.loops.credit import credited, kept, loss, scored
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.qwenlong_l1_5 import MemoryAndChunk, qwenlong_l1_5, qwenlong_l1_5_phase
from etude.policies.fingerprint import fingerprint
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.runs.train import resume
from etude.runs.training import compose_method
from etude.stages.chain import Train
from etude.stages.merging import SCE
from etude.tasks.language.facts import Facts, facts
from etude.tasks.language.facts_in_chunks import ASKED, FactsInChunks
from language_toys import Toy, gradients, make_loop, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = FactsInChunks(facts=(8, 12), chunk=4, level="kind")


def read(policy: Any, size: int = 3) -> list[Episode]:
    """Episodes of three lists, in pieces of four facts."""
    context = Context(TASK, policy, Stream(1), max_tokens=4)
    problems = [TASK.problems("train")[i] for i in range(3)]
    return rollout(fresh(problems, size, context.stream), context, Sampling(max_tokens=4), MemoryAndChunk())


def credit(found: list[Episode], policy: Any) -> TokenBatch:
    method = qwenlong_l1_5_phase.replace(rewards=grpo.rewards, token_weights=())
    batch = to_batch(found, 0, 1.0, policy.device)
    return credited(method, kept(method, scored(method, batch, Context(Toy(), policy, Stream(0)))))


def ended(policy: Any, tokens: list[int]) -> list[int]:
    """A memory as it is seen: a line break in the place of the token that ended it."""
    return [*(tokens[:-1] if tokens[-1] in policy.end_ids else tokens), *policy.encode("\n")]


# The memory agent


@pytest.mark.slow
def test_of_each_piece_it_sees_the_question_its_last_memory_and_that_piece() -> None:
    policy = random_policy()
    for episode in read(policy):
        rows, opening = episode.rows, episode.segments[:2]
        assert len(rows) == len(episode.problem.info["facts"]) // TASK.chunk + 1
        said = [s for s in episode.segments if any(s.action_mask)]
        shown = [opening[1], *(s for s in episode.segments[2:] if not any(s.action_mask))]
        assert shown[-1].text == ASKED
        for turn, row in enumerate(rows):
            before = ended(policy, said[turn - 1].tokens) if turn else []
            assert row.tokens == [*opening[0].tokens, *before, *shown[turn].tokens, *said[turn].tokens]
            assert sum(m for s in row.segments for m in s.action_mask) == len(said[turn].tokens)


@pytest.mark.slow
def test_the_last_reward_reaches_every_memory_as_one_advantage() -> None:
    """Its gradient is that of A log pi of all that was said, each in its own view; the kind's deviation divides."""
    policy = random_policy(dtype=torch.float64)
    found = read(policy)
    for number, episode in enumerate(found):
        episode.segments[-1].reward = float(number % 3 == 0) + number / 10
    batch = credit(found, policy)
    batch = batch.replace(rewards=batch.rewards.double())
    assert len(batch) > 2 * len(found)
    rewards = torch.tensor([e.segments[-1].reward for e in found])
    groups = torch.tensor([e.group for e in found])
    kinds = [e.problem.level for e in found]
    wanted = torch.zeros(len(found))
    for n, kind in enumerate(kinds):
        same = torch.tensor([k == kind for k in kinds])
        spread = rewards[same].std(correction=0) + LevelStd().epsilon
        wanted[n] = (rewards[n] - rewards[groups == groups[n]].mean()) / spread
    assert batch.advantages is not None
    for row in range(len(batch)):
        own = batch.advantages[row][batch.action_mask[row]]
        torch.testing.assert_close(own, wanted[batch.episode[row]].expand_as(own).to(own), atol=1e-5, rtol=1e-5)
    method = qwenlong_l1_5_phase.replace(token_weights=())
    policy.model.zero_grad()
    loss(method, batch, policy.evaluate(batch), 4).backward()
    ours = gradients(policy)
    policy.model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for n, row in zip(batch.episode.tolist(), batch.episodes):
        tokens, size = row.tokens, len(row.segments[-1].tokens)
        logp = policy.model(torch.tensor([tokens])).logits[0].log_softmax(-1)[-size - 1 : -1]
        total = total - wanted[n] * logp.gather(1, torch.tensor(tokens[-size:])[:, None]).sum()
    (total / batch.action_mask.sum()).backward()
    for name, value in gradients(policy).items():
        torch.testing.assert_close(ours[name], value, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_what_a_script_shows_is_what_the_agent_sees_when_it_takes_those_notes() -> None:
    policy, views = LanguagePolicy.load("tiny", device="cpu"), MemoryAndChunk()
    texts: Any = type("Written", (), {"line": staticmethod(lambda said: Segment("assistant", said.text + "\n"))})
    for number in range(12):
        problem = TASK.problems("train")[number]
        scripts = {tuple(s.text for s in TASK.script(problem, Stream(k))) for k in range(40)}
        game, met = TASK.environment(), set()
        episode = Episode(problem, game.reset(problem, 0))
        while True:
            seen = [s.text for s in views.look(episode, 4, texts).segments]
            (said,) = {script[-1] for script in scripts if list(script[:-1]) == seen}
            assert len(policy.encode(said)) < TASK.max_tokens
            met.add((*seen, said))
            result = game.step(Segment("assistant", said))
            if result.terminated:
                break
            episode.segments += [Segment("assistant", said, action_mask=[1]), *result.segments]
        assert result.reward == 1.0 and met == scripts


def test_it_is_refused_where_there_is_one_turn() -> None:
    with pytest.raises(ConfigError, match="has one turn"):
        check(grpo.replace(experience=Groups(view=MemoryAndChunk())), facts)


# Advantages


def test_kinds_of_any_scale_have_the_same_advantages_and_one_kind_is_grpo() -> None:
    """Identity 1: rewards r and 10 r of two kinds; and one kind with one group."""
    once, group = torch.tensor([1.0, 0.0, 0.0, 0.4]), torch.zeros(4)
    part: Any = qwenlong_l1_5_phase.advantages
    scale = part.scale.replace(epsilon=0.0)
    both, kinds = torch.cat([once, 10 * once]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    found = scaled(both, kinds, part.centre, scale, kinds)
    torch.testing.assert_close(found[:4], found[4:])
    alone: Any = grpo.advantages
    torch.testing.assert_close(found[:4], scaled(once, group, alone.centre, alone.scale.replace(epsilon=0.0)))


# Each of its three parts on another method


class Paid(Facts):
    """Paid by the share of digits, so that no two completions are likely to tie."""

    def score(self, problem: Problem, completion: str) -> float:
        return sum(c.isdigit() for c in completion) / max(1, len(completion))


class PaidInChunks(FactsInChunks):
    """The same at the end of a list that is read piece by piece."""

    score = Paid.score


STACKED: dict[str, tuple[LanguageTask, tuple[str, ...], dict[str, Any]]] = {
    "balanced": (Paid(facts=(8,), level="kind"), ("balanced-levels", "level-std"), {"problems": 4}),
    "band": (Paid(facts=(8,)), ("aepo",), {"token_weights.aepo.low": 0.5, "token_weights.aepo.high": 1.0}),
    "agent": (PaidInChunks(facts=(8,), chunk=4), ("memory-and-chunk",), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("base", ["grpo", "rloo"])
@pytest.mark.parametrize("name", STACKED)
def test_each_part_is_stacked_alone_and_trains(name: str, base: str) -> None:
    task, parts, fields = STACKED[name]
    small = {"problems": 2, "experience.size": 3, "experience.max_tokens": 5, "optimizer.lr": 1e-3}
    method = compose_method(base, [f"{k}={v}" for k, v in (small | fields).items()], parts)
    check(method, task)
    loop = make_loop(method, task)
    for _ in range(3):
        before, report = fingerprint(loop.policy.parameters()), loop.step()
        assert report.metrics["gradient_norm"] > 0 and fingerprint(loop.policy.parameters()) != before
        episodes = 3 * method.problems
        assert report.metrics["rows"] == episodes * (3 if name == "agent" else 1)  # of two pieces and an answer
        kept = report.metrics.get("tokens_kept/aepo")
        assert (kept is None) == (name != "band") and (kept is None or 0 < kept < 1)
        kinds = Counter(e["level"] for e in report.episodes)
        assert name != "balanced" or [*kinds.values()] == [3] * 4


def test_a_part_that_is_held_has_one_place_whatever_is_stacked_first() -> None:
    for names in (["memory-and-chunk", "groups"], ["groups", "memory-and-chunk"]):
        assert isinstance(stack(grpo, names).parts()["experience.view"], MemoryAndChunk)
    for names, sentence in (
        (["level-std", "batch-std"], "both set advantages.scale, which holds one part"),
        (["same-answer"], "no part of it holds such a part"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            stack(grpo, names)
    with pytest.raises(ConfigError, match=r"has several places in .* say which, as in --set"):
        stack(get_method("ppo", "control"), "mlp")


# Merging


def test_equal_task_vectors_are_merged_to_themselves() -> None:
    """Identity 4; and what nobody moved stays."""
    base, moved = {"w": torch.tensor([[1.0, 2.0], [3.0, -4.0]])}, {"w": torch.tensor([[1.5, 1.0], [3.0, -4.5]])}
    for share in (0.25, 1.0):  # all entries vary alike, so none is left behind
        torch.testing.assert_close(SCE(share=share).combined(base, [moved, moved])["w"], moved["w"])
    assert torch.equal(SCE().combined(base, [base, base])["w"], base["w"])


def test_entries_are_selected_weighed_and_erased() -> None:
    """By hand: variances 4, 1, 0, 0.01 and 1, of which three of five stay; eta 17/27 and 10/27; minority signs go."""
    one, other = torch.tensor([1.0, 0.0, 5.0, 0.2, 4.0]), torch.tensor([-3.0, -1.0, 5.0, 0.0, 0.0])
    spread = torch.stack([one, other]).var(0, correction=0)
    assert spread.tolist() == pytest.approx([4.0, 0.25, 0.0, 0.01, 4.0])
    found = SCE(share=0.6).combined({"w": torch.zeros(5)}, [{"w": one}, {"w": other}])["w"]
    assert found.tolist() == pytest.approx([10 / 27 * -3, 10 / 27 * -1, 0.0, 0.0, 17 / 27 * 4])


# The chain


def small(**changes: Any) -> Recipe:
    """A phase, notes, a memory agent, the merge and a last phase, of a small step each."""
    few = ("experience.size=4", "experience.max_tokens=3", "problems=4")
    lists = ("task.facts=[8]", "curriculum.of.size=40")
    runs = {run.called: run for run in qwenlong_l1_5.runs}

    def made(name: str, *own: str) -> Train:
        run = runs[name]
        assert isinstance(run, Train)
        kept = tuple(f for f in run.set if not f.startswith("curriculum."))
        return run.replace(steps=1, set=(*kept, *own))

    chain = (
        made("long", *few, *lists), made("notes", "task.facts=[8]", "task.chunk=4", "problems=4"),
        made("memory", *few, *lists, "task.chunk=4"), runs["merged"], made("full", *few, *lists),
    )  # fmt: skip
    return qwenlong_l1_5.replace(id="small", runs=chain, **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> etude.Result:
    out = tmp_path_factory.mktemp("chain") / "whole"
    return etude.train(small(), "facts", seed=3, out=out, evaluate=0, quiet=True)


def weights(run: Path) -> dict[str, torch.Tensor]:
    (found,) = sorted(run.rglob("model.safetensors"))[-1:]
    return load_file(found)


@pytest.mark.slow
def test_the_last_phase_begins_from_the_merge_of_two_runs(whole: etude.Result) -> None:
    places = {path.name[3:]: path for path in whole.folder.iterdir() if path.name[:2].isdigit()}
    assert list(sorted(places, key=lambda n: places[n].name)) == ["long", "notes", "memory", "merged", "full"]
    base = {k: v.detach() for k, v in LanguagePolicy.load("tiny", device="cpu").model.named_parameters()}
    others = [weights(places[name]) for name in ("long", "memory")]
    part = next(run for run in qwenlong_l1_5.runs if isinstance(run, SCE))
    found = weights(places["merged"])
    for name, value in part.combined(base, others).items():
        torch.testing.assert_close(found[name], value)
    assert any(not torch.equal(found[k], base[k]) for k in base)
    assert json.loads((places["full"] / "config.json").read_text())["model"] == str(places["merged"])
    assert str(places["long"]) in json.loads((places["notes"] / "config.json").read_text())["model"]
    memory = [json.loads(line) for line in (places["memory"] / "metrics.jsonl").read_text().splitlines()]
    assert all(line["rows"] == 3 * 16 for line in memory)  # two pieces and an answer


@pytest.mark.slow
def test_killed_in_the_merge_it_goes_on_to_the_same_numbers(tmp_path: Path, whole: etude.Result) -> None:
    cut = etude.train(small(), "facts", seed=3, out=tmp_path / "cut", evaluate=0, quiet=True, until=3)
    (merged,) = cut.folder.glob("*-merged")
    merged.rename(merged.with_name(f".{merged.name}"))  # not whole yet
    (merged.with_name(f".{merged.name}") / "model.safetensors").write_bytes(b"half")
    again = resume(cut.folder, quiet=True)
    ours, theirs = weights(whole.checkpoint), weights(again.checkpoint)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_chains_with_a_merge_that_cannot_be_are_refused() -> None:
    *begin, merged, full = qwenlong_l1_5.runs
    assert isinstance(full, Train)
    kept = qwenlong_l1_5.replace(runs=(*begin, merged, full.replace(optimizer="keep")))
    for recipe, sentence in (
        (qwenlong_l1_5.replace(runs=(*begin, merged)), "nothing takes what its last run, merged, makes"),
        (qwenlong_l1_5.replace(runs=(merged, full)), "is handed long, which no run before it makes"),
        (kept, "only puts policies together"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            etude.train(recipe, "facts", steps=60, quiet=True, out=Path("never"))
    with pytest.raises(ConfigError, match="at least two runs"):
        SCE(of=("long",))
    assert not Path("never").exists()


@pytest.mark.slow
def test_a_toy_policy_learns_by_a_phase() -> None:
    method = qwenlong_l1_5_phase.replace(
        problems=3, rewards=grpo.rewards, optimizer=qwenlong_l1_5_phase.optimizer.replace(lr=1e-2)
    )
    loop = make_loop(method, Toy(), steps=10)
    rewards = [loop.step().metrics["reward/task-reward"] for _ in range(10)]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.1, rewards
