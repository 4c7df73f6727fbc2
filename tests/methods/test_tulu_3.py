"""Tulu 3: decontamination, rated pairs, the three losses' identities, and the chain of runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid

import etude
from etude.core.batches import TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import DataError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experiments.preference import tulu_3 as experiment
from etude.loops.language import LanguageLoop
from etude.methods.preference.tulu_3 import ByTask, Decontaminated, RatedPairs, overlaps, pieces, rating, tulu_3
from etude.objectives.preference import DPO
from etude.rewards.judges import NoRepeats
from etude.rewards.scoring import score
from etude.tasks.language.lookups import TABLE, Lookups, lookups
from language_toys import random_policy

# Decontamination


def long(*words: str) -> str:
    return " ".join(words)


def test_more_than_half_of_a_test_prompt_in_8_grams_of_one_training_prompt_is_a_match() -> None:
    """By hand: sixteen words; eight in a row are a half of them, nine are more."""
    words = [f"w{i}" for i in range(16)]
    test = [pieces(long(*words), "word")]
    half, more = long("a", *words[:8], "b"), long("a", *words[:9], "b")
    parts, apart = long(*words[:8], "x", *words[8:]), [long(*words[:8]), long(*words[8:])]
    assert overlaps([pieces(half, "word")], test) == [{0: 8 / 16}]
    assert overlaps([pieces(more, "word")], test) == [{0: 9 / 16}]
    assert overlaps([pieces(parts, "word")], test) == [{0: 1.0}]  # two 8-grams of the same training prompt
    assert overlaps([pieces(p, "word") for p in apart], test) == [{0: 0.5, 1: 0.5}]  # two prompts are not added up
    tests, part = [Problem("t", long(*words))], Decontaminated(called="clean", most=1.0)
    pool = [Problem("1", half), Problem("2", more), Problem("3", parts)]
    assert [p.id for p in part.clean(pool, pool_of(pool, tests))] == ["1"]
    assert overlaps([pieces(long(*words[:7]), "word")], test) == [{}]
    assert overlaps([pieces(long(*words), "word")], [words[:7]]) == [{}]  # shorter than an n-gram


def asked(prompts: dict[str, str]) -> list[Problem]:
    return [Problem(name, prompt, level=name[0]) for name, prompt in prompts.items()]


def pool_of(train: list[Problem], test: list[Problem]) -> Any:
    splits = {"train": train, "test": test}
    return SimpleNamespace(problems=splits.get, demonstration=lambda p: None, id="pool")


def test_prompts_that_match_go_and_data_sets_that_match_too_much_go_whole() -> None:
    test = asked({f"t{i}": long(*(f"t{i}w{j}" for j in range(10))) for i in range(100)})
    clean = asked({"a1": "nothing like it", "a2": "nor this", "b1": "and another"})
    copies = [Problem(f"b{i}", test[i].prompt, level="b") for i in (5, 6)]
    part = Decontaminated(called="clean")
    kept = part.clean([*clean, *copies], pool_of(clean, test))
    assert [p.id for p in kept] == ["a1", "a2", "b1"]  # two of a hundred are not more than 2 %
    third = Problem("b9", test[7].prompt, level="b")
    kept = part.clean([*clean, *copies, third], pool_of(clean, test))
    assert [p.id for p in kept] == ["a1", "a2"]  # three are
    again = Problem("b9", test[6].prompt, level="b")
    assert len(part.clean([*clean, *copies, again], pool_of(clean, test))) == 3  # of the evaluation, not of the data
    with pytest.raises(DataError, match="clean leaves nothing of 2 problems of pool: 2 match a prompt of test"):
        part.clean(copies, pool_of(copies, test))


@pytest.mark.slow
def test_what_leaked_is_found_and_rows_keep_what_they_came_with() -> None:
    task, part = Lookups(leaked=0.05, size=500), Decontaminated(called="clean", size=4, unit="character", most=1.0)
    pool, tests = list(task.problems("train")), {p.prompt for p in task.problems("test")}
    leaked = {p.id for p in pool if p.prompt in tests}
    kept = part.clean(pool, task)
    assert leaked and not leaked & {p.id for p in kept} and len(kept) > 400
    (row, *_), first = part.rows(pool, task, 0), kept[0]
    assert row == {
        "prompt": first.prompt, "answer": first.answer, "completion": first.info["demonstration"], "level": first.level,
    }  # fmt: skip
    with pytest.raises(DataError, match=r"of the data sets follow, look matched more than 0\.02 of it"):
        replace(part, most=0.02).clean(pool, task)


# Pairs


def test_ratings_are_means_of_whole_numbers_from_1_to_5() -> None:
    assert [rating([s]) for s in (0.0, 0.124, 0.125, 0.5, 0.874, 0.875, 1.0)] == [1, 1, 2, 3, 4, 5, 5]
    assert rating([1.0, 0.0, 0.5, 0.25]) == (5 + 1 + 3 + 2) / 4


def test_the_best_is_chosen_and_any_lower_one_rejected() -> None:
    part, answers = RatedPairs(called="pairs"), ["a", "b", "c", "d"]
    drawn = [part.pair(answers, [2.0, 4.0, 4.0, 3.0], Stream(s)) for s in range(200)]
    assert {pair for pair in drawn} == {("b", "a"), ("b", "d")}
    assert abs(sum(pair == ("b", "a") for pair in drawn) - 100) < 4 * 50**0.5
    assert part.pair(answers, [3.0] * 4, Stream(0)) is None and part.pair([], [], Stream(0)) is None


def test_aspects_count_alike_and_the_task_is_one_of_them() -> None:
    problem = Problem("1", "!4kz>", "kabz")
    part = RatedPairs(called="pairs", panel=(ByTask(), NoRepeats(size=1, unit="character")))
    context = Context(lookups, None, Stream(0))
    assert part.ratings([problem], [["kabz", "kkkz", "kab", "kk"]], context) == [[5.0, 3.0, 3.0, 1.0]]


@pytest.mark.slow
def test_pairs_are_of_the_policy_and_of_the_writer() -> None:
    policy, problems = random_policy(seed=0), list(lookups.problems("train")[:20])
    rows = RatedPairs(called="pairs").rows_by(problems, lookups, policy, 3)
    by_prompt = {p.prompt: p for p in problems}
    assert rows and rows == RatedPairs(called="pairs").rows_by(problems, lookups, policy, 3)
    for row in rows:  # a random policy is never right, so the writer is, and somebody is not
        problem = by_prompt[row["prompt"]]
        assert row["chosen"] == problem.info["demonstration"] and row["rejected"] != row["chosen"]
        assert lookups.score(problem, row["chosen"]) == 1 and lookups.score(problem, row["rejected"]) == 0
    with_none = RatedPairs(called="pairs", worked=False).rows_by(problems, lookups, policy, 3)
    assert with_none == []


# Identities


def pair(lengths: tuple[int, int]) -> tuple[Any, torch.Tensor]:
    random = torch.Generator().manual_seed(sum(lengths))
    mask = torch.tensor([[t < n for t in range(max(lengths))] for n in lengths])
    logp, reference = (-3 * torch.rand(mask.shape, generator=random, dtype=torch.float64) * mask for _ in range(2))
    rows = SimpleNamespace(scores=torch.tensor([0.0, 1.0]), group=torch.zeros(2), action_mask=mask, once=lambda: None)
    rows.action_counts, rows.reference_logp, rows.episode = mask.sum(1), reference, None
    return rows, logp


@pytest.mark.slow
def test_at_equal_lengths_it_is_dpo_with_beta_by_the_length() -> None:
    objective: Any = get_method("tulu-3-dpo").slots()["objective"]
    rows, logp = pair((4, 4))
    torch.testing.assert_close(
        objective(rows, TokenLogProbs(logp)), DPO(beta=5 / 4)(rows, TokenLogProbs(logp)), rtol=1e-12, atol=1e-12
    )
    rows, logp = pair((2, 5))
    gain = (logp - rows.reference_logp).sum(1) / torch.tensor([2.0, 5.0])
    wanted = -logsigmoid(5 * (gain[1] - gain[0])).expand(2)
    torch.testing.assert_close(objective(rows, TokenLogProbs(logp)), wanted, rtol=1e-12, atol=1e-12)
    assert (wanted - DPO(beta=5 / 3.5)(rows, TokenLogProbs(logp))).abs().min() > 1e-3


class Worked(Lookups):
    """Lookups with answers of very different lengths."""

    def demonstration(self, problem: Problem) -> str:
        return "ab" * (1 + 3 * (int(problem.id.rpartition("/")[2]) % 2))


def _add(total: torch.Tensor, piece: torch.Tensor) -> None:
    total.add_(piece)


@pytest.mark.slow
def test_the_supervised_loss_does_not_depend_on_how_a_batch_was_accumulated() -> None:
    """One gradient in pieces of any size, that of all tokens alike; a mean of sequences' means is another."""

    def gradient(micro_tokens: int, aggregation: str = "token-mean") -> torch.Tensor:
        method: Any = get_method("sft").replace(problems=6, aggregation=aggregation)
        policy = random_policy(seed=1)
        found = [torch.zeros_like(p, dtype=torch.float64) for p in policy.parameters()]
        for p, total in zip(policy.parameters(), found, strict=True):
            p.register_hook(lambda piece, total=total: _add(total, piece))
        LanguageLoop(method, Worked(), policy, seed=0, steps=1, micro_tokens=micro_tokens).step()
        return torch.cat([total.flatten() for total in found])

    whole = gradient(10_000)
    for size in (16, 40):
        torch.testing.assert_close(gradient(size), whole, rtol=1e-4, atol=1e-6)
    other = gradient(10_000, "sequence-mean")
    assert (other - whole).norm() > 0.05 * whole.norm()


def paid(*said: tuple[str, StopReason]) -> list[float]:
    """What the last stage pays, at the reference."""
    policy = random_policy(seed=0)
    prompt = "!4kz>"
    episodes = []
    for i, (text, stop) in enumerate(said):
        tokens = policy.encode(text) + [policy.tokenizer.eos_token_id] * (stop is StopReason.TERMINATED)
        shown = policy.encode(prompt)
        reward = lookups.score(Problem("1", prompt), text)
        segments = [
            Segment("user", prompt, shown, [0] * len(shown), [0.0] * len(shown)),
            Segment("assistant", text, tokens, [1] * len(tokens), [-1.0] * len(tokens), reward=reward),
        ]
        episodes.append(Episode(Problem("1", prompt), segments, group=i, stop=stop))
    batch = to_batch(episodes, 0, 1.0, policy.device)
    batch = batch.replace(reference_logp=batch.behaviour_logp)
    method: Any = get_method("tulu-3-rlvr").bind()
    found: list[float] = score(batch, method.rewards, Context(lookups, policy, Stream(0), max_tokens=8)).scores.tolist()
    return found


@pytest.mark.slow
def test_what_is_paid_depends_on_the_verdict_and_on_the_end_alone() -> None:
    end, cut = StopReason.TERMINATED, StopReason.MAX_TOKENS
    assert paid(("kabz", end), ("akcz", end), ("kkkz", end)) == [10.0] * 3
    assert paid(("kabc", end), ("k", end), ("99999999", end)) == [0.0] * 3
    assert paid(("kabz", cut), ("kabcdxyz", cut)) == [-10.0] * 2


# The chain

SMALL: Any = {"quiet": True, "evaluate": 0, "preset": False, "threads": 1}


@pytest.mark.slow
@pytest.mark.parametrize("last", ["tulu-3-rlvr", "rebel"])
def test_the_chain_hands_data_policies_and_the_critics_start_on(tmp_path: Path, last: str) -> None:
    """To a last stage of PPO, whose critic begins as the reward model; or of REBEL, which has no critic."""
    fields = [
        "runs.clean.problems=60", "runs.clean.size=4", "runs.clean.unit=character", "runs.clean.most=1.0",
        "runs.pairs.problems=30", "problems=2", "experience.max_tokens=6", "runs.sft.steps=1", "runs.dpo.steps=1",
        "runs.rm.steps=1", "runs.rlvr.steps=1",
    ]  # fmt: skip
    if last == "rebel":
        fields += ["runs.rlvr.method=rebel", "runs.rlvr.set=rewards.missing-end.value=-2.0"]
    run = etude.train(
        "tulu-3", "lookups", model="blank:1x16x2", set=[*fields, "task.leaked=0.1"], out=tmp_path / "r", **SMALL
    )
    names = sorted(p.name for p in run.folder.iterdir() if p.name[0].isdigit())
    assert names == ["01-clean", "02-sft", "03-pairs", "04-dpo", "05-rm", "06-rlvr"]
    clean = [json.loads(line) for line in (run.folder / "01-clean" / "data.jsonl").read_text().splitlines()]
    assert 40 < len(clean) < 60 and all(r["completion"] for r in clean)
    assert json.loads((run.folder / "03-pairs" / "data.jsonl").read_text().splitlines()[0]).keys() == {
        "prompt", "chosen", "rejected",
    }  # fmt: skip
    made = json.loads((run.folder / "06-rlvr" / "method.json").read_text())
    assert made["id"] == last
    if last == "rebel":
        assert made["critic"] is None and [r["value"] for r in made["rewards"] if "value" in r] == [-2.0]
    else:
        assert "05-rm" in made["critic"]["model"]
    begun = json.loads((run.folder / "06-rlvr" / "config.json").read_text())["model"]
    assert "04-dpo" in begun and [line["run"] for line in run.metrics] == [2, 4, 5, 6]
    trained, before = (load_file(next(folder.rglob("model.safetensors"))) for folder in (
        run.checkpoint, run.folder / "04-dpo"))  # fmt: skip
    assert not all(torch.equal(value, before[name]) for name, value in trained.items())


def test_another_last_stage_takes_the_place_of_ppo() -> None:
    other = tulu_3.replace(id="mine", runs=(*tulu_3.runs[:-1], tulu_3.runs[-1].replace(method="rebel", set=())))
    assert other.made_of()[-1].id == "rebel" and not list(other.contradictions())
    assert tulu_3.runs[-1].takes() == ["rm"] and tulu_3.runs[-1].begins == "dpo"


# The claim's experiment


@pytest.mark.slow
def test_measures_are_those_of_the_claim_and_what_leaked_is_left_out() -> None:
    assert tulu_3.claim is not None and {m.name for m in tulu_3.claim.measures} == set(experiment.COMPARED)
    tests = {p.prompt for p in experiment.TASK.problems("test")}
    pool = experiment.TASK.problems("train")[:400]
    assert any(p.prompt in tests for p in pool)
    assert not tests & {p.prompt for p in experiment.clean()}
    assert {TABLE[x] for x in "abc"} <= set(range(10))
