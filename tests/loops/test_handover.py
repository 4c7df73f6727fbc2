"""From logs to the environment in one run: what is kept of them, resuming on both sides and at it, members alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import CheckpointError, ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.beside_logs import LogsAndReplay, Symmetric, TwoStores, share_of
from etude.experience.logged import Logged
from etude.experience.replay import Replay
from etude.experience.sampling import NStep
from etude.loops.off_policy import OffPolicyLoop
from etude.runs.kinds.replay import ReplayRun, given
from etude.runs.training import Options
from etude.runs.worlds.members import members
from etude.stages.handover import Handover
from etude.stages.phases import Phase
from etude.tasks.control.logged import LoggedTask
from etude.tasks.control.pendulum import pendulum
from log_toys import logged_task, pendulum_columns, small_logged, written
from replay_toys import small
from solo_runs import alike

torch.set_num_threads(1)
SEEDS, STEPS, BLOCK = (3, 4), 8, 7
"""Half of the steps are on logs."""
ONLINE = ("critic.penalties=none", "policy.learning.every=2", "learners.temperature.learning.every=2")


ON_LOGS = Phase(end=0.5)


def handed(**fields: Any) -> Any:
    """CQL on logs, then SAC on what is acted, which learns after 10 steps."""
    changes = {"keep": 0.25, "warmup": 10, "capacity": 60, "set": ONLINE, **fields}
    return small_logged("cql").replace(stages=(ON_LOGS, Handover(**changes)))


def loop_of(method: Any, task: LoggedTask, seeds: tuple[int, ...] = SEEDS) -> OffPolicyLoop:
    return OffPolicyLoop(method, task, [Member(s) for s in seeds], STEPS, BLOCK)


def tensors(loop: OffPolicyLoop) -> dict[str, Tensor]:
    found = {**loop.policy_tensors(), **loop.updater.tensors(), "rewards": loop.collector.store.own.rewards}
    return {k: v.clone() for k, v in found.items() if v.dim()}


def numbers(report: Any) -> dict[str, list[float]]:
    return {k: v for k, v in report.members.items() if "second" not in k}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LoggedTask:
    return logged_task(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def whole(task: LoggedTask, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run to its end: the folder of each of its checkpoints, its tensors then, and what each step reported."""
    folder, loop = tmp_path_factory.mktemp("run"), loop_of(handed(share=0.5), task)
    states, reports = [tensors(loop)], []
    for number in range(STEPS):
        reports.append(loop.step())
        states.append(tensors(loop))
        (folder / str(number + 1)).mkdir()
        loop.save(folder / str(number + 1))
    return folder, states, reports, loop


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 4, 5, 7])
def test_it_resumes_before_the_handover_at_it_and_after(whole: Any, task: LoggedTask, at: int) -> None:
    folder, states, reports, _ = whole
    again = loop_of(handed(share=0.5), task)
    again.load(folder / str(at))
    assert [numbers(again.step()) for _ in range(STEPS - at)] == [numbers(r) for r in reports[at:]]
    own = tensors(again)
    assert own.keys() == states[-1].keys() and all(torch.equal(v, own[k]) for k, v in states[-1].items())


@pytest.mark.slow
def test_a_member_is_the_run_of_its_seed_on_both_sides(whole: Any, task: LoggedTask) -> None:
    alone = loop_of(handed(share=0.5), task, SEEDS[1:])
    for state in whole[1][1:]:
        alone.step()
        for key, value in tensors(alone).items():
            rows = len(state[key]) // 2
            assert alike(state[key][rows:], value), key


@pytest.mark.slow
def test_nothing_moves_while_it_warms_up_and_what_learned_goes_on(whole: Any) -> None:
    _, states, reports, loop = whole
    learned = {k for k in states[4] if k != "rewards"}
    assert all(torch.equal(states[4][k], states[5][k]) for k in learned)  # 7 of 10 steps
    assert states[5]["rewards"].shape == (2, BLOCK) and states[4]["rewards"].shape == (2, 0)
    assert any(not torch.equal(states[5][k], states[6][k]) for k in learned)
    updates, steps = ([r.metrics.get(name) for r in reports] for name in ("updates", "environment_steps"))
    assert updates == [7.0, 14.0, 21.0, 28.0, 28.0, 32.0, 39.0, 46.0]
    assert steps == [None] * 4 + [7.0, 14.0, 21.0, 28.0]
    assert "policy_loss" in reports[0].metrics and loop.headline == "return"


@pytest.mark.slow
def test_of_logs_there_may_be_nothing_left(task: LoggedTask) -> None:
    loop = loop_of(handed(keep=0.0), task, (3,))
    for _ in range(5):
        loop.step()
    assert loop.collector.store.size == BLOCK  # its own steps and no others


@pytest.mark.slow
def test_without_logs_it_is_the_replay(task: LoggedTask) -> None:
    """What WSRL is without pre-training and warm-up, and RLPD without logs."""
    method = small(get_method("sac"), warmup=10)
    experience: Any = method.experience
    fields = {k: v for k, v in experience.fields().items()}
    loops = [
        loop_of(method.replace(experience=part), one, (3,))
        for part, one in ((Replay(**fields), pendulum), (LogsAndReplay(**fields, keep=0.0), task))
    ]  # fmt: skip
    for _ in range(3):
        assert len({repr(numbers(loop.step())) for loop in loops}) == 1
    one, other = map(tensors, loops)
    assert all(torch.equal(v, other[k]) for k, v in one.items())


def test_other_logs_are_refused_after_the_handover_too(whole: Any, tmp_path: Path) -> None:
    other = LoggedTask(data=str(written(tmp_path / "o.npz", pendulum_columns(seed=9))), environment=pendulum)
    with pytest.raises(CheckpointError, match=r"learned from logs with the fingerprint \w{12}, and .*o\.npz has"):
        loop_of(handed(share=0.5), other).load(whole[0] / "6")


# What is kept


def test_whole_episodes_are_kept_the_same_for_every_seed(whole: Any, task: LoggedTask) -> None:
    logs, loop = task.logs(), whole[3]
    some = share_of(logs, 0.25, logs.fingerprint)
    assert some.episodes == 1 and some.rows == 199 and logs.rows == 796
    first = int(np.flatnonzero((logs.observations == some.observations[0]).all(1))[0])
    assert first % 199 == 0 and np.array_equal(logs.rewards[first : first + 199], some.rewards)
    assert share_of(logs, 0.26, logs.fingerprint).episodes == 2 and share_of(logs, 1.0, "") is logs
    assert loop.collector.kept.size == 199 and loop.collector.lines[-1] == "199 of 796 rows are kept"
    draws = {share_of(logs, 0.25, f"{n:015x}").rewards[0] for n in range(20)}
    assert len(draws) == 4  # any of them


def test_both_stores_are_read_by_one_index(whole: Any) -> None:
    store: TwoStores = whole[3].collector.store
    size = store.ring.size
    assert (size, store.size) == (4 * BLOCK, 4 * BLOCK + 199)
    index = torch.tensor([[0, size - 1, size, size + 198], [size + 5, 3, 3, size]])
    rows, own, there = (
        store.read(index),
        store.ring.read(index.clamp(max=size - 1)),
        store.logs.read((index - size).clamp(min=0)),
    )
    for name in rows._fields:
        got, mine, theirs = (getattr(x, name) for x in (rows, own, there))
        for m in range(2):
            for n in range(4):
                assert torch.equal(got[m, n], mine[m, n] if index[m, n] < size else theirs[m, n]), name
    ahead, stored = store.ahead(index, 1)
    assert ahead.tolist() == [[1, 28, size + 1, size + 0], [size + 6, 4, 4, size + 1]]
    assert stored.tolist() == [[True, False, True, False], [True, True, True, True]]
    batch = NStep(gamma=0.5, n=2).read(store, index)
    assert batch.discounts is not None and batch.discounts[0].tolist() == [0.25, 0.5, 0.25, 0.5]
    assert not store.has(0, size) and store.has(0, 0)
    assert store.rewards.shape == store.live.shape == (2, store.size)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.0, 1.0])
def test_a_share_of_every_batch_is_of_the_logs(whole: Any, share: float) -> None:
    loop: OffPolicyLoop = whole[3]
    part, store = Symmetric(batch=6, share=share), loop.collector.store
    drawn = [part.draw(store, loop.updater.stretches.at(t)).index for t in range(200)]
    index = torch.cat([x for x in drawn if x is not None], 1).view(2, 200, 6)
    count = round(6 * share)
    assert bool(((index >= store.own.size).sum(-1) == count).all())
    for places, low, high in (
        (index[..., : 6 - count], 0, store.own.size),
        (index[..., 6 - count :], store.own.size, store.size),
    ):
        if places.numel():
            assert int(places.min()) >= low and int(places.max()) < high
            assert abs(float((places - low).float().mean()) / (high - low) - 0.5) < 0.05  # uniform


# What cannot be


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda: handed(set=()).replace(stages=(Handover(),)), "is the first stage, so nothing was learned"),
        (lambda: small(get_method("sac")).replace(stages=(ON_LOGS, Handover())), "from logs, and Replay acts"),
        (lambda: handed(set=("critic.count=3",)), "stage 1 changes the critic, which goes on .*: only what"),
        (lambda: handed(set=("policy.learning.optimizer.lr=0.1",)), "stage 1 changes the policy"),
        (lambda: handed(keep=0.0, share=0.5), "draws of logs and of steps that are acted .*, and LogsAndReplay"),
        (lambda: handed(set=("sampling=prioritized-rows",)), "beside the ring, and PrioritizedRows cannot draw"),
        (lambda: small_logged("cql").replace(sampling=Symmetric()), "and Logged does not have both"),
        (lambda: small_logged("cal-ql").replace(stages=(ON_LOGS, Handover(keep=0.0, warmup=6))), "and keep logs"),
    ],
)  # fmt: skip
def test_what_cannot_be_composed_is_said(change: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(change())


def test_another_phase_cannot_act() -> None:
    found = list(handed().replace(stages=(ON_LOGS, Phase(like="sac"))).objections())
    assert any("changes the experience" in x and x.endswith("stages=handover begins another.") for x in found)


def test_it_asks_for_logs_and_for_an_environment(task: LoggedTask) -> None:
    check(handed(), task)
    with pytest.raises(ConfigError, match="learns from logs, and there are none for pendulum"):
        check(handed(), pendulum)
    with pytest.raises(ConfigError, match=r"LogsAndReplay acts\. There is no environment to play in: give --task"):
        check(handed(), LoggedTask(data=task.data))


def test_a_run_says_what_will_be_done(whole: Any, task: LoggedTask) -> None:
    method, run = handed(share=0.5), ReplayRun()
    assert given(method, 8) == [(Logged(), 1000), (method.stages[1].experience, 1000)]
    said = run.sentence(loop_of(method, task), method, task)
    assert "28 updates, then 28 environment steps of each" in said
    said = run.sentence(whole[3], method, task)
    assert "beside" in said and "199 of 796 rows are kept." in said
    assert run.promises(whole[3])["data"]["fingerprint"] == task.logs().fingerprint
    with pytest.raises(ConfigError, match=r"in 500 environment steps: lower stages\.handover\.warmup \(900\)"):
        run.prepare(handed(warmup=900, capacity=1000), task, Options(steps=1000, seeds=2))


def test_stages_are_the_same_for_all_members(task: LoggedTask) -> None:
    with pytest.raises(ConfigError, match=r"--population 'keep=0.1,0.5' is no FIELD=VALUE"):
        members(handed(), Options(population=("keep=0.1,0.5",)))
    for changes in (["experience.keep=0.1"], ["sampling.share=0.1"]):
        name, value = changes[0].split("=")
        method = small(get_method("sac"), warmup=2).replace(
            experience=LogsAndReplay(random=0, warmup=6), sampling=Symmetric(batch=6)
        )
        with pytest.raises(ConfigError, match=f"{name}.* cannot differ between the members"):
            OffPolicyLoop(method, task, [Member(0, {name: float(value)}), Member(1)], 4, 20).step()
    assert set_values(handed(), ["stages.handover.keep=1"]).stages[1].keep == 1
