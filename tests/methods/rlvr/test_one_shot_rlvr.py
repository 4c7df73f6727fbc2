"""1-shot RLVR: what is trained on, its loss once all is right and by its switches, and groups of one prompt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.curricula.epochs import EpochMeans, Recorded
from etude.loops.credit import credited
from etude.loops.enumerable import EnumerableLoop
from etude.loops.tally import Tally
from etude.loops.update import Updater
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.one_shot_rlvr import ByVariance, NamedProblems, Replicated, one_shot_rlvr
from etude.policies.fingerprint import fingerprint
from etude.runs.training import compose_method
from etude.runtime import checkpoints
from etude.tasks.tabular.enumerable import Enumerable
from language_toys import Toy, gradients, make_loop, random_policy

POOL = [Problem(f"p{i}", "?", str(i)) for i in range(6)]
ONE = one_shot_rlvr.replace(curriculum=Replicated(chosen=NamedProblems(ids=("train-1",))))
UNPAID = "rewards.task-reward.weight=0"


def switched(*changes: str) -> Any:
    return compose_method(ONE, changes)


# Which problems


def test_few_problems_come_in_turn_from_step_to_step() -> None:
    part = Replicated(chosen=NamedProblems(ids=("p4", "p1", "p2"))).bind()
    drawn = [[p.id for p in part.choose(POOL, 4, Stream(step))] for step in range(3)]
    assert drawn == [["p4", "p1", "p2", "p4"], ["p1", "p2", "p4", "p1"], ["p2", "p4", "p1", "p2"]]


def test_wrong_labels_take_the_place_of_the_answers_and_of_nothing_else() -> None:
    part = Replicated(chosen=NamedProblems(ids=("p4", "p1")), answers=("wrong", "as wrong")).bind()
    found = part.choose(POOL, 2, Stream(0))
    assert [(p.id, p.prompt, p.answer) for p in found] == [("p4", "?", "wrong"), ("p1", "?", "as wrong")]
    assert POOL[4].answer == "4"


def test_what_cannot_be_chosen_is_refused() -> None:
    for part, sentence in [
        (Replicated(chosen=NamedProblems(ids=("p9",))), "'p9' is not among the first 6"),
        (Replicated(chosen=NamedProblems(ids=("p5",)), size=3), "'p5' is not among the first 3"),
        (Replicated(chosen=NamedProblems(ids=("p1", "p2")), answers=("7",)), "has 1, and 2 problems were chosen"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            part.bind().choose(POOL, 2, Stream(0))
    with pytest.raises(ConfigError, match="at least one rank"):
        ByVariance(ranks=())
    with pytest.raises(ConfigError, match="has no run to rank problems by"):
        one_shot_rlvr.check()
    with pytest.raises(ConfigError, match="names no problem"):
        ONE.replace(curriculum=Replicated(chosen=NamedProblems())).check()


def pool_run(folder: Path, steps: int = 4) -> tuple[Path, EpochMeans]:
    """Some steps on the whole pool, as a run saves them, and the record."""
    loop = make_loop(grpo.replace(curriculum=Recorded(), problems=2), steps=steps)
    for _ in range(steps):
        loop.step()
    (folder / "checkpoints").mkdir(parents=True)
    checkpoints.write(folder / "checkpoints", steps, loop.save)
    record: EpochMeans = loop.method.curriculum.record  # type: ignore[attr-defined]
    return folder, record


@pytest.mark.slow
def test_a_run_on_the_pool_ranks_the_problems(tmp_path: Path) -> None:
    run, record = pool_run(tmp_path / "pool")
    order = record.ranked()
    assert len({record.variance(p) for p in order}) == 3
    method = compose_method("one-shot-rlvr", {"curriculum.chosen.run": str(run), "curriculum.chosen.ranks": (3, 1)})
    method.check()
    assert method.curriculum.chosen.run == str(run / "checkpoints/step-4/state.json")  # type: ignore[union-attr]
    assert method.curriculum.chosen.names() == [order[2], order[0]]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"ranks has 4, and the record .* has 3"):
        ByVariance(run=str(run), ranks=(4,)).names()


def test_problems_that_were_met_once_have_no_rank(tmp_path: Path) -> None:
    run, _ = pool_run(tmp_path / "pool", steps=1)
    with pytest.raises(ConfigError, match="never moved"):
        ByVariance(run=str(run)).names()


@pytest.mark.slow
def test_a_run_resumes_exactly_when_the_record_is_gone(tmp_path: Path) -> None:
    run, record = pool_run(tmp_path / "pool")
    method = one_shot_rlvr.replace(
        curriculum=Replicated(chosen=ByVariance(run=str(run), ranks=(1, 2))), problems=3
    )  # fmt: skip
    loop = make_loop(method, steps=3)
    loop.step()
    loop.save(tmp_path / "saved")
    ids = [[e["id"] for e in loop.step().episodes[::8]] for _ in range(2)]
    shutil.rmtree(run)
    again = make_loop(method, steps=3)
    again.load(tmp_path / "saved")
    first, second = record.ranked()[:2]
    assert [[e["id"] for e in again.step().episodes[::8]] for _ in range(2)] == ids
    assert ids == [[second, first, second], [first, second, first]]
    assert fingerprint(again.policy.parameters()) == fingerprint(loop.policy.parameters())


# The loss


def assessed(method: Any, task: Toy | None = None, seed: int = 0) -> tuple[Any, TokenBatch]:
    """A loop in double precision and the credited rows of its first step."""
    loop = make_loop(method, task or Toy(), random_policy(dtype=torch.float64, seed=seed))
    bound = loop.method
    return loop, credited(bound, loop._assess(bound, bound.problems, 0, Stream(5))["policy"])


def gradient(loop: Any, batch: TokenBatch) -> dict[str, Tensor]:
    loop.policy.model.zero_grad()
    Updater(loop.policy, loop.method, 10, 100_000, 8).accumulate(loop.method, batch, False, Tally())
    return gradients(loop.policy)


def written_out(loop: Any, batch: TokenBatch, kl: float, entropy: float) -> dict[str, Tensor]:
    """Autograd of kl * k3 - entropy * H, averaged over a completion's tokens and then over completions."""
    policy = loop.policy
    policy.model.zero_grad()
    logits = policy.model(input_ids=batch.tokens, attention_mask=batch.attention_mask.long()).logits[:, :-1] / 0.6
    logp, mask = logits.log_softmax(-1), batch.action_mask[:, 1:]
    chosen = logp.gather(-1, batch.tokens[:, 1:, None])[..., 0]
    d = batch.reference_logp[:, 1:] - chosen if kl else torch.zeros_like(chosen)
    terms = kl * (d.exp() - d - 1) + entropy * (logp.exp() * logp).sum(-1)
    ((terms * mask).sum(1) / mask.sum(1)).mean().backward()
    return gradients(policy)


def moved(loop: Any) -> None:
    """Away from the reference, so that its term has a gradient."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in loop.policy.model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=random, dtype=p.dtype)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Up to rounding of log-probabilities, which loops have in single precision."""
    assert set(one) == set(other)
    for name, g in other.items():
        assert float(g.abs().max()) > 0
        assert float((one[name] - g).abs().max()) < 1e-5 * float(g.abs().max()), name


@pytest.mark.slow
@pytest.mark.parametrize("right", [1.0, 0.0])
def test_where_all_completions_are_alike_the_gradient_is_that_of_entropy_and_kl(right: float) -> None:
    loop, batch = assessed(ONE, Toy(scoring=lambda problem, said: right))
    assert not bool(batch.advantages.any())  # type: ignore[union-attr]
    moved(loop)
    same(gradient(loop, batch), written_out(loop, batch, 0.001, 0.001))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regularizer", "kl", "entropy"), [("entropy-bonus", 0.0, 0.001), ("kl-to-reference", 0.001, 0.0)]
)
def test_without_a_reward_one_term_is_left(regularizer: str, kl: float, entropy: float) -> None:
    """The toy pays every completion something else, and nobody hears of it."""
    changes = [f"regularizers={regularizer}", "regularizers.0.coefficient=0.001", UNPAID]
    loop, batch = assessed(switched(*changes))
    assert not bool(batch.scores.any())
    moved(loop)
    same(gradient(loop, batch), written_out(loop, batch, kl, entropy))


def test_the_entropy_of_a_uniform_policy_has_no_gradient() -> None:
    loop, batch = assessed(switched("regularizers=entropy-bonus", "regularizers.0.coefficient=0.001", UNPAID))
    with torch.no_grad():
        loop.policy.model.lm_head.weight.zero_()
    found = gradient(loop, batch)
    assert found and all(float(g.abs().max()) < 1e-15 for g in found.values())


def test_copies_of_a_prompt_have_groups_of_their_own_whose_gradients_are_averaged() -> None:
    loop, batch = assessed(ONE.replace(problems=4))
    groups = [(batch.group == g).nonzero()[:, 0] for g in range(4)]
    said = [{tuple(batch.episodes[i].segments[-1].tokens) for i in rows.tolist()} for rows in groups]
    assert [len(rows) for rows in groups] == [8] * 4 and len({e.problem.id for e in batch.episodes}) == 1
    assert all(one != other for k, one in enumerate(said) for other in said[:k]), "groups drew the same numbers"
    moved(loop)
    each = [gradient(loop, batch.rows(rows)) for rows in groups]
    same({k: torch.stack([g[k] for g in each]).mean(0) for k in each[0]}, gradient(loop, batch))


@pytest.mark.slow
def test_eight_groups_have_an_eighth_of_the_variance_and_the_same_mean() -> None:
    """The gradient in the log-probability of each response, of 600 members before their first step."""
    task, found = Enumerable(prompts=8, vocabulary=3, length=2), []
    chosen = Replicated(chosen=NamedProblems(ids=("enumerable/3",)))
    for copies in (1, 8):
        loop = EnumerableLoop(
            one_shot_rlvr.replace(curriculum=chosen, problems=copies), task, seeds=range(600), steps=1
        )
        rows = []
        for batch in loop._collect():
            assert batch.response is not None and batch.advantages is not None
            credit = torch.zeros(int(loop.rewards.shape[-1]), dtype=torch.float64)
            rows.append(credit.index_add(0, batch.response, batch.advantages[:, 0].double()) / len(batch))
        found.append(torch.stack(rows))
    one, eight = found
    ratio = float(eight.var(0).sum() / one.var(0).sum())
    assert ratio == pytest.approx(1 / 8, rel=0.2)
    error = (one.var(0) / len(one) + eight.var(0) / len(eight)).sqrt()
    assert bool(((one.mean(0) - eight.mean(0)).abs() <= 4 * error + 1e-12).all())


# The paper's switches


@pytest.mark.parametrize(
    ("changes", "parts", "decay"),
    [
        (["regularizers=none", "optimizer.weight_decay=0"], (), 0.0),
        (["regularizers=none"], (), 0.01),
        (["regularizers=kl-to-reference", "regularizers.0.coefficient=0.001"], (("kl-to-reference", 0.001),), 0.01),
        ([], (("kl-to-reference", 0.001), ("entropy-bonus", 0.001)), 0.01),
    ],
)
def test_the_loss_is_built_up_switch_by_switch(changes: list[str], parts: tuple, decay: float) -> None:
    method = switched(*changes)
    method.check()
    assert tuple((p.name, p.coefficient) for p in method.regularizers) == parts
    assert method.optimizer.weight_decay == decay
    assert make_loop(method).step().metrics["gradient_norm"] > 0


def test_weight_decay_alone_shrinks_every_weight_and_does_nothing_else() -> None:
    zero = [f"regularizers.{name}.coefficient=0" for name in ("kl-to-reference", "entropy-bonus")]
    loop = make_loop(switched(*zero, UNPAID, "optimizer.lr=0.1"))
    before = [p.detach().clone() for p in loop.policy.parameters()]
    loop.step()
    for p, was in zip(loop.policy.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), was * (1 - 0.1 * 0.01), atol=1e-7, rtol=1e-6)


@pytest.mark.slow
def test_a_wrong_label_is_what_is_paid() -> None:
    task = Toy(scoring=lambda problem, said: float(problem.answer == "wrong"))
    assert make_loop(ONE, task).step().metrics["reward"] == 0
    assert make_loop(switched("curriculum.answers=wrong"), task).step().metrics["reward"] == 1
