"""`--on processes`: the run of one process, bit for bit, whatever becomes of the samplers."""

from __future__ import annotations

import copy
import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import etude
import processes
from etude.core.errors import ConfigError, WorkerError
from etude.core.kinds import TokenMethod
from etude.core.registry import compositions, files, get_method
from etude.experience.forks import Forks
from etude.experience.samplers import Sampler, Samplers
from etude.experience.turn_replay import StoredStates
from etude.learners.value_model import ValueModel
from etude.loops.language import LanguageLoop
from etude.methods.preference.pairwise_rl import AgainstAnchor
from etude.methods.preference.reward_anything import ListwiseReward, ShuffledNames
from etude.methods.preference.rlgf.guided import WithGuide
from etude.methods.rlvr.one_shot_rlvr import NamedProblems, Replicated
from etude.methods.rlvr.rlad.hints import HintedGroups
from etude.methods.rlvr.rlad.scores import SolvedWith
from etude.policies.language import LanguagePolicy
from etude.policies.texts.models import SavedModel
from etude.rewards.model import RewardModel
from etude.rewards.outcome import TaskReward
from etude.rewards.pair_judges import SimulatedJudge
from etude.rewards.patterns import RepetitionPenalty
from etude.runs.samplers import check, sampler_arguments
from etude.runs.training import Options
from etude.runtime.executors.places import Place, place_of
from etude.runtime.executors.processes import Processes
from etude.tasks import resolve_task
from language_toys import Toy, untimed
from slow_worlds import Slow

pytestmark = pytest.mark.usefixtures("one_thread", "forked_roles")
STEPS = 3
PROBLEMS = {"ghpo": 4, "hgpo": 4, "spo": 6, "spo-tree": 6, "t-ppo": 4}
"""Of methods that need more than two for a group whose completions differ."""
TASKS = {"archer": "attr-20q", "planning-q-learning": "paths", "reward-anything": "principles", "supo": "attr-20q"}
"""Of methods that are for another than `compose`."""
SIX = ("archer", "critique-grpo", "kimi-k1-5", "ppo-max", "sasr", "spo-tree")
"""Methods that together fill every slot; `make test-full` has all."""
SAMPLING = ("experience", "curriculum", "second_look", "stages", "critic")
"""Slots whose parts ask for episodes or keep a state that decides what is asked for."""
PLAIN = {"rlpt-text", "rto", "spa-rl", "swe-rl", "text2grad", "tl-training-ppo"}
"""Methods whose rewards need models or tasks of their own: what samplers play does not depend on rewards."""
LATER = {"sparkle"}
"""Methods whose second step comes out alike here whatever is sampled."""
TURNS = {"attr-20q": 6}
"""Of games that the shipped model does not win: context is full by then."""


def kinds_of_sampling() -> dict[str, TokenMethod]:
    """For each part of those slots the first method that has it: what the others change, samplers never see."""
    found, seen = {}, set()
    for name in sorted(files("methods")):
        for method in compositions(name):
            if not isinstance(method, TokenMethod) or method.experience is None or not method.experience.samples:
                continue
            if method.roles:
                continue  # of several players, whom samplers do not play for
            parts = {(slot.split(".")[0], type(part)) for slot, part in method.parts().items()}
            new = {(slot, part) for slot, part in parts if slot in SAMPLING} - seen
            if new or method.id in TASKS:
                found[method.id] = method
                seen |= new
    return found


METHODS = kinds_of_sampling()
SMALL: dict[str, Any] = {
    "steps": STEPS, "evaluate": 0, "quiet": True, "preset": False, "threads": 1,
    "set": ["problems=3", "experience.size=4"],
}  # fmt: skip
STAT = Path("/proc/self/stat")
ONCE: dict[str, Any] = {"fault": "die once", "at": 1}


def learned(folder: Path) -> dict[str, bytes]:
    """A checkpoint's files, but those that say how long it took."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in ("run.json", "COMPLETE"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def outcome(run: etude.Result) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    return [untimed(m) for m in run.metrics], learned(run.checkpoint)


# Every kind of method


@cache
def tiny() -> LanguagePolicy:
    return LanguagePolicy.load("tiny", device="cpu")


def task_of(name: str) -> Any:
    task: Any = resolve_task(name)
    return task.replace(max_turns=TURNS[name]) if name in TURNS else task


@pytest.fixture(scope="module")
def kept(one_thread: None) -> Iterator[Callable[[str], Processes]]:
    """One sampler process for all methods of a task; they are told apart by the weights that it is given."""
    made: dict[str, Processes] = {}

    def sampler(task: str) -> Processes:
        if task not in made:
            arguments = sampler_arguments(Options(device="cpu"), task_of(task))
            made[task] = Processes(Sampler, "etude.runs.samplers:sampler", arguments, name="Sampler")
        return made[task]

    yield sampler
    for executor in made.values():
        executor.close()


def small(method: TokenMethod) -> TokenMethod:
    """The method with what a user has to name, and little to do in a step."""
    if isinstance(method.curriculum, Replicated):
        few = NamedProblems(ids=("compose/train/1", "compose/train/2"))
        method = method.replace(curriculum=method.curriculum.replace(chosen=few))
    if isinstance(method.experience, ShuffledNames):
        method = method.replace(experience=method.experience.replace(max_tokens=16))
    if isinstance(method.experience, WithGuide):
        method = method.replace(experience=method.experience.replace(guide=SavedModel(model="tiny"), size=4), epochs=1)
    if isinstance(method.experience, HintedGroups):
        method = method.replace(experience=method.experience.replace(writer=SavedModel(model="tiny")))
    if isinstance(method.critic, ValueModel):
        method = method.replace(critic=method.critic.replace(lead=0))
    if isinstance(method.experience, Forks):
        method = method.replace(experience=method.experience.replace(rollouts=3))
    if isinstance(method.experience, StoredStates):
        method = method.replace(experience=method.experience.replace(states=16))
    rewards = (TaskReward() if isinstance(part, (RewardModel, SolvedWith)) else part for part in method.rewards)
    judged = (p.replace(judge=SimulatedJudge()) if isinstance(p, AgainstAnchor) else p for p in rewards)
    judged = (RepetitionPenalty(size=1) if isinstance(p, ListwiseReward) else p for p in judged)
    paid = (TaskReward(),) if method.id in PLAIN else tuple(judged)
    return method.replace(rewards=paid, problems=PROBLEMS.get(method.id, 2), epochs=1)


def keeps(method: TokenMethod) -> bool:
    """Whether what a step asks for depends on more than the weights that the one before left: then it takes three."""
    assert method.experience is not None
    return bool(method.stages) or bool(method.experience.initial_state()) or method.id in LATER


def loop_of(method: Any, task: Any, executor: Any = None, bound: int = 0, steps: int = STEPS) -> LanguageLoop:
    samplers = None if executor is None else Samplers(executor, task)
    return LanguageLoop(method, task, copy.deepcopy(tiny()), seed=6, steps=steps, samplers=samplers, bound=bound)


def assert_the_same(method: TokenMethod, kept: Callable[[str], Processes], folder: Path) -> None:
    """Metrics and checkpoint of some steps, played here and by a sampler elsewhere."""
    method, task, steps = small(method), TASKS.get(method.id, "compose"), STEPS if keeps(method) else 2
    found = []
    for executor in (None, kept(task)):
        loop, place = loop_of(method, task_of(task), executor), folder / str(len(found))
        metrics = [untimed(loop.step().metrics) for _ in range(steps)]
        loop.save(place)
        found.append((metrics, learned(place)))
    assert found[1] == found[0]
    assert kept(task).faults == [0]
    assert kept(task).pool.workers[0].starts <= 1  # deepsearch asks for none until it replays


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param(m, id=i, marks=() if i in SIX else pytest.mark.full) for i, m in METHODS.items()]
)
def test_with_one_sampler_a_method_comes_to_the_same(
    method: TokenMethod, kept: Callable[[str], Processes], tmp_path: Path
) -> None:
    assert_the_same(method, kept, tmp_path)


# Whole runs


@pytest.mark.slow
def test_several_samplers_are_the_local_run_in_as_many_pieces(tmp_path: Path) -> None:
    here, there = (
        etude.train("grpo", "compose", on=on, out=str(tmp_path / on[:5]), **SMALL) for on in ("local:2", "processes:2")
    )  # fmt: skip
    assert outcome(there) == outcome(here)
    assert json.loads((there.folder / "config.json").read_text())["on"] == "processes:2"


@pytest.mark.slow
def test_a_run_goes_on_with_samplers_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = etude.train("kimi-k1-5", "compose", out=str(tmp_path / "whole"), **SMALL)
    etude.train("kimi-k1-5", "compose", on="processes", until=2, out=str(tmp_path / "parts"), **SMALL)
    assert outcome(etude.resume(tmp_path / "parts", quiet=True)) == outcome(whole)


@pytest.mark.slow
def test_a_sampler_that_is_killed_changes_no_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It dies in the middle of an episode of several turns; the local run is one that had that behind it."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "once").touch()
    runs = {}
    for name, on in (("here", "local"), ("there", "processes")):
        task = Slow(folder=str(tmp_path / name), **ONCE)
        runs[name] = etude.train("grpo", task, on=on, out=str(tmp_path / f"run-{name}"), **SMALL)
    assert (tmp_path / "there" / "once").exists()
    assert "lost its process, which ended with exit code 3" in caplog.text
    assert outcome(runs["there"]) == outcome(runs["here"])


@pytest.mark.slow
def test_after_too_many_restarts_the_run_stops_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, play = etude.train("grpo", "compose", out=str(tmp_path / "whole"), **SMALL), Samplers.play

    def deadly(self: Any, *args: Any) -> Any:
        """Kills the sampler once it has played, which is once a step."""
        episodes, worker = play(self, *args), self.executor.pool.workers[0]
        worker.process.kill()
        worker.process.wait()
        return episodes

    monkeypatch.setattr(Samplers, "play", deadly)
    monkeypatch.setattr(Processes, "start", lambda self: setattr(self, "restarts", 1))  # of three, to wait less
    with pytest.raises(WorkerError, match=r"failed 2 times.* The run is safe at step 2 "):
        etude.train("grpo", "compose", on="processes", out=str(tmp_path / "parts"), **SMALL)
    monkeypatch.setattr(Samplers, "play", play)
    assert outcome(etude.resume(tmp_path / "parts", quiet=True)) == outcome(whole)


def sampling(folder: Path, *where: str, forks: bool = False) -> processes.Process:
    """A long run in a process of its own that has taken a step."""
    run = processes.etude(
        folder, "train", "grpo", "--steps", "5000", "--evaluate", "0", "--out", "run", "--set", "problems=2",
        "--set", "experience.size=2", "--no-preset", *where, forks=forks,
    )  # fmt: skip
    log, due = folder / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (log.is_file() and log.stat().st_size) and run.running and time.monotonic() < due:
        time.sleep(0.05)
    return run


@pytest.mark.slow
@pytest.mark.skipif(not STAT.exists(), reason="counts processes in /proc")
@pytest.mark.parametrize(("signals", "code"), [("INT INT", 130), ("TERM", 143), ("KILL", -9)])
def test_however_it_is_stopped_no_sampler_is_left(signals: str, code: int, tmp_path: Path) -> None:
    run = sampling(tmp_path, "--on", "processes", forks=signals != "KILL")
    samplers = processes.children(run.pid)
    assert len(samplers) == 1, run.said.read_text()
    for name in signals.split():
        run.signal(getattr(signal, f"SIG{name}"))
    assert run.end()[0] == code
    due = time.monotonic() + (10 if signals == "KILL" else 0)
    while (left := [pid for pid in samplers if Path(f"/proc/{pid}").exists()]) and time.monotonic() < due:
        time.sleep(0.05)
    assert not left
    assert signals == "KILL" or any((tmp_path / "run" / "checkpoints").glob("step-*"))


# Options


def test_where_it_samples_is_a_name_and_a_number() -> None:
    assert place_of("local") == Place("local", 1)
    assert place_of("processes:3") == Place("processes", 3)
    for wrong in ("rays", "processes:", "processes:0", "processes:x", "local:-1", ""):
        with pytest.raises(ConfigError, match="--on must be local, processes"):
            Options(on=wrong)


@pytest.mark.slow
def test_it_is_refused_where_nothing_samples_or_nobody_else_can_make_the_task(tmp_path: Path) -> None:
    class Here(Toy):
        """Only this function knows it."""

    task = Here()
    check(get_method("grpo"), task, Options())
    check(get_method("grpo"), task, Options(on="local:2"))
    with pytest.raises(ConfigError, match=r"played in processes of their own, which make the task.*run --on local"):
        check(get_method("grpo"), task, Options(on="processes"))
    for on in ("local:2", "processes"):
        with pytest.raises(ConfigError, match=f"--on {on} is for methods that sample, and sft learns from data"):
            etude.train("sft", "compose", on=on, out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="--on processes is for methods that sample tokens, and ppo is for control"):
        etude.train("ppo", "CartPole-v1", on="processes", out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="--on means nothing for enumerable"):
        etude.train("grpo", "enumerable", on="processes", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
