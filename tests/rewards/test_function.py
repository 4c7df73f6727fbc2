"""Users' reward functions: what they are given, what they may return, and what becomes of everything else."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import processes
from etude.core.episodes import Problem
from etude.core.errors import ConfigError, RewardError, UnknownNameError
from etude.core.part import part_from_json
from etude.rewards.calls import InvalidReturn, components
from etude.rewards.function import CallableReward, FunctionReward
from etude.rewards.several import reward_part
from reward_toys import CONTEXT, episodes

SOURCE = """
import math, os, random, subprocess, sys, time
import numpy

def exact(completions, answers):
    return [c == a for c, a in zip(completions, answers)]

def columns(completions, prompts, answer, levels, ids, topic, absent=None):
    return [json_like(*row) for row in zip(completions, prompts, answer, levels, ids, topic)]

def json_like(*row):
    assert row == ("yes", "p0", "a", "easy", "0", "sums"), row
    return 1.0

def rest(completions, **data):
    assert sorted(data) == ["answers", "ids", "levels", "prompts", "topic"], sorted(data)
    return [0.5] * len(completions)

def talk(messages, episodes):
    assert messages[0] == [{"role": "user", "content": "p0"}, {"role": "assistant", "content": "yes"}]
    assert episodes[0]["stop"] == "terminated" and episodes[0]["completion"] == "yes"
    assert [episodes[0][mark] for mark in ("written", "elsewhere", "auxiliary")] == [False] * 3
    return numpy.ones(len(messages))

def parts(completions):
    print("some noise")
    return [{"form": 1, "length": len(c) / 4, "rare": None} for c in completions]

def faulty(completions):
    if any("hang" in c for c in completions):
        subprocess.Popen(["sleep", "60"])
        time.sleep(60)
    if any("die" in c for c in completions):
        print("last words", flush=True)
        os._exit(3)
    if any("exit" in c for c in completions):
        sys.exit(0)
    return [check(c) for c in completions]

def check(c):
    if "raise" in c:
        return 1 / 0
    return {"a": math.nan if "nan" in c else math.inf if "inf" in c else 1.0}

def faulty_some(completions):
    return [None if c == "" else check(c)["a"] for c in completions]

def never(completions):
    return [{"a": None, "b": None} if c == "" else {"a": 0.0} for c in completions]

def whole(completions):
    if len(completions) > 1:
        raise ValueError("one at a time")
    return [1.0]

def short(completions):
    return [1.0] * (len(completions) - 1)

def chance(completions):
    return [random.random() for _ in completions]

def unknown(completions, topik):
    return [0.0]

def order(completions):
    return [float(list({"a", "b", "c", "d"}).index("a"))]

def later(completions):
    globals()["seen"] = globals().get("seen", 0) + 1
    return [float(seen)]

class Scorer:
    def __call__(self, completions):
        return [2.0] * len(completions)

scorer, number = Scorer(), 7

def positional(completions, /):
    return [0.0]
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "user_rewards.py"
    path.write_text(SOURCE)
    return path


# What a function is given and returns


@pytest.mark.slow
def test_scores_are_weighted_and_counted(make: Any) -> None:
    part = make("exact", weight=0.5)
    assert part.score(episodes("a", "b", "a"), CONTEXT) == [0.5, 0.0, 0.5]
    assert part.score([], CONTEXT) == []
    assert {k: part.state[k] for k in ("calls", "episodes", "zeros", "failed")} == {
        "calls": 1, "episodes": 3, "zeros": 1, "failed": 0,
    }  # fmt: skip


@pytest.mark.first
@pytest.mark.parametrize(("name", "expected"), [("columns", 1.0), ("rest", 0.5), ("talk", 1.0), ("scorer", 2.0)])
def test_functions_get_what_they_ask_for(make: Any, name: str, expected: float) -> None:
    assert make(name).score(episodes("yes"), CONTEXT) == [expected]


@pytest.mark.slow
def test_a_column_that_is_not_there(make: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"no column named 'topik'. Did you mean 'topic'\? unknown asks for it"):
        make("unknown").score(episodes("x"), CONTEXT)


def test_components_are_summed_and_kept(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    batch = episodes("ab", "abcd")
    with caplog.at_level(logging.INFO, "etude.rewards"):
        part = make("parts", weight=2.0)
        assert [part.score(batch, CONTEXT) for _ in range(2)] == [[3.0, 4.0]] * 2
    assert batch[0].scores == {"parts/form": 1.0, "parts/length": 0.5}
    assert caplog.text.count("printed:\nsome noise\n") == 2
    assert "\0" not in caplog.text


@pytest.mark.slow
def test_a_data_column_does_not_replace_the_completions(make: Any) -> None:
    batch = episodes("a")
    batch[0].problem = Problem("0", "p", "a", info={"completions": "b"})
    assert make("exact").score(batch, CONTEXT) == [1.0]


@pytest.mark.slow
def test_a_set_has_the_same_order_in_every_process(make: Any) -> None:
    assert make("order").score(episodes("x"), CONTEXT) == make("order").score(episodes("x"), CONTEXT)


@pytest.mark.slow
def test_one_process_serves_all_calls(make: Any) -> None:
    part = make("later")
    assert [part.score(episodes("x"), CONTEXT) for _ in range(3)] == [[1.0], [2.0], [3.0]]
    part.close()
    assert part.score(episodes("x"), CONTEXT) == [1.0]  # started again when it is needed


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([1, True, None], {"": [1.0, 1.0, None]}),
        ((0.5, np.float32(0.5), np.bool_(True)), {"": [0.5, 0.5, 1.0]}),
        (np.array([1, 2, 3]), {"": [1.0, 2.0, 3.0]}),
        ([{"a": 1}, {"b": 2}, {}], {"a": [1.0, None, None], "b": [None, 2.0, None]}),
        ({"a": [1, 2, 3], "b": np.zeros(3)}, {"a": [1.0, 2.0, 3.0], "b": [0.0, 0.0, 0.0]}),
        ([10**400, 0, 0], {"": [math.inf, 0.0, 0.0]}),
    ],
)
def test_returns_that_are_numbers(returned: Any, expected: Any) -> None:
    assert components(returned, 3, "score") == expected


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ([1.0, 2.0], "score must return 3 floats, got list of 2."),
        (np.zeros((2,)), "score must return 3 floats, got list of 2."),
        (None, "score must return 3 floats, got None."),
        (0.5, "score must return 3 floats, got 0.5."),
        ("abc", "score must return 3 floats, got str 'abc'."),
        ({}, "score must return 3 floats, got dict."),
        ([1.0, "0.5", 1.0], "score must return 3 floats, got list whose item 1 is str '0.5'."),
        ([1.0, {"a": 1}, 1.0], "score must return 3 floats, got list whose item 1 is dict."),
        (np.zeros((3, 1)), "score must return 3 floats, got list whose item 0 is list."),
        ([1j, 0, 0], "score must return 3 floats, got list whose item 0 is complex."),
        ({"a": [1.0]}, "score, component 'a', must return 3 floats, got list of 1."),
        ([{"a": 1}], "score, component 'a', must return 3 floats, got list of 1."),
        ((i for i in range(3)), "score must return 3 floats, got generator."),
    ],
)
def test_returns_that_are_not(returned: Any, sentence: str) -> None:
    with pytest.raises(InvalidReturn) as error:
        components(returned, 3, "score")
    assert str(error.value) == sentence


def test_tensors_are_numbers() -> None:
    torch = pytest.importorskip("torch")
    assert components(torch.tensor([1.0, 2.0], requires_grad=True), 2, "s") == {"": [1.0, 2.0]}
    assert components([torch.tensor(1.0), torch.tensor(True)], 2, "s") == {"": [1.0, 1.0]}


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()), max_size=4))
def test_components_are_numbers_or_a_sentence(returned: Sequence[Any]) -> None:
    try:
        column = components(returned, 3, "score")[""]
    except InvalidReturn as error:
        assert str(error).startswith("score must return 3 floats, got ")
    else:
        assert len(column) == 3
        assert all(v is None or isinstance(v, float) for v in column)


# Functions that fail


def failure(part: FunctionReward, *completions: str) -> RewardError:
    with pytest.raises(RewardError) as error:
        part.score(episodes(*completions), CONTEXT)
    return error.value


def running(group: int) -> list[str]:
    """Programs of a process group that have not ended; three seconds' grace."""
    deadline = time.monotonic() + 3
    while True:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = stat.read_text().rpartition(")")
                state, _, of = rest.split()[:3]
                found += [name] * (int(of) == group and state != "Z")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


@pytest.mark.slow
def test_wrong_length_is_never_dropped(make: Any) -> None:
    assert str(failure(make("short", on_bad_reward="drop"), *"abc")) == "short must return 3 floats, got list of 2."


def test_an_error_names_problem_completion_and_line(make: Any, source: Path) -> None:
    part = make("faulty")
    error = failure(part, "fine", "fine", "raise it", "fine")
    lines = [
        1 + SOURCE.splitlines().index(t) for t in ("    return [check(c) for c in completions]", "        return 1 / 0")
    ]
    assert str(error).startswith("faulty, on problem '2' of task 'sums', raised:\n")
    assert [f'File "{source}", line {n}' in str(error) for n in lines] == [True, True]
    assert "calls.py" not in str(error)
    assert "ZeroDivisionError: division by zero\nThe completion was 'raise it'." in str(error)
    assert error.completion == "raise it"  # type: ignore[attr-defined]
    assert part.state["failed"] == 1


@pytest.mark.slow
def test_nan_names_problem_and_component(make: Any) -> None:
    part = make("faulty")
    assert "on problem '1' of task 'sums', returned nan for its component 'a'.\n" in str(failure(part, "x", "nan"))
    assert "returned inf for its component 'a'." in str(failure(part, "inf"))
    assert part.state["not_finite"] == 2


@pytest.mark.slow
def test_sys_exit_is_an_error(make: Any) -> None:
    assert "raised:\n" in str(error := failure(make("faulty"), "exit"))
    assert "SystemExit: 0" in str(error)


@pytest.mark.slow
def test_long_completions_are_cut_in_messages(make: Any) -> None:
    text = str(failure(make("faulty"), "\x1b[31mraise" + "x" * 5_000))
    assert "\\x1b[31mraise" in text
    assert " [...] " in text
    assert len(text) < 2_000


@pytest.mark.slow
def test_a_hanging_call_is_ended_with_all_it_started(make: Any) -> None:
    part = make("faulty", timeout=0.3)
    before = part._caller.worker.process.pid
    start = time.monotonic()
    error = failure(part, "a", "b", "c", "hang")
    assert time.monotonic() - start < 10
    assert str(error).startswith("faulty, on problem '3' of task 'sums', did not return within 0.3 s.\n")
    assert (part.state["timed_out"], part.state["failed"]) == (1, 0)
    assert running(before) == []
    assert part.score(episodes("a"), CONTEXT) == [1.0]


@pytest.mark.slow
def test_a_dead_process_says_how_it_ended(make: Any) -> None:
    part = make("faulty")
    sentence = (
        "on problem '1' of task 'sums', lost its process, which ended with exit code 3; it last printed 'last words'."
    )
    assert sentence in str(failure(part, "x", "die"))
    assert part.state["failed"] == 1


@pytest.mark.slow
def test_dropped_episodes_say_why(make: Any) -> None:
    part = make("faulty", timeout=0.3, on_bad_reward="drop")
    batch = episodes("x", "hang", "die", "nan", "raise", "x")
    rewards = part.score(batch, CONTEXT)
    assert [r if math.isfinite(r) else None for r in rewards] == [1.0, None, None, None, None, 1.0]
    reasons = [e.info.get("dropped") for e in batch]
    assert reasons == [None, "reward timed out", "reward died", "reward not finite", "reward raised", None]
    counts = {k: part.state[k] for k in ("episodes", "dropped", "timed_out", "failed", "not_finite", "zeros")}
    assert counts == {"episodes": 6, "dropped": 4, "timed_out": 1, "failed": 2, "not_finite": 1, "zeros": 0}
    assert batch[3].scores == {}


@pytest.mark.slow
def test_too_many_dropped_episodes_stop_the_run(make: Any) -> None:
    part = make("faulty", on_bad_reward="drop")
    part.score(episodes(*["x"] * 98, "raise"), CONTEXT)  # 1 of 99: too early to say
    part.score(episodes(*["x"] * 99, "x"), CONTEXT)
    part.score(episodes("raise"), CONTEXT)  # 2 of 200 is not more than 1 %
    error = failure(part, "nan")
    assert "faulty had no reward for 3 of 201 episodes so far (2 failed, 0 timed out, 1 not finite)" in str(error)
    assert "more than 0.01 of them (bad_share)" in str(error)


@pytest.mark.slow
def test_a_completion_that_no_component_applies_to_has_no_reward(make: Any) -> None:
    part, batch = make("never"), episodes("", "x", "")
    assert part.score(batch, CONTEXT) == [None, 0.0, None]
    assert [e.info for e in batch] == [{}] * 3 and [e.scores for e in batch] == [{}, {"never/a": 0.0}, {}]
    counts = {k: part.state[k] for k in ("episodes", "zeros", "not_applicable", "dropped")}
    assert counts == {"episodes": 3, "zeros": 1, "not_applicable": 2, "dropped": 0}


@pytest.mark.slow
def test_what_does_not_apply_is_exempt_from_the_limit_on_failures(make: Any) -> None:
    """995 of 1,000 do not apply and none failed: fine. Two failures among 104 that it applies to are over 1 %."""
    part = make("never", on_bad_reward="drop")
    part.score(episodes(*[""] * 995, *["x"] * 5), CONTEXT)
    part = make("faulty_some", on_bad_reward="drop")
    part.score(episodes(*[""] * 900, *["x"] * 98, "raise"), CONTEXT)
    with pytest.raises(RewardError, match=r"had no reward for 2 of 104 episodes so far \(2 failed"):
        part.score(episodes(*["x"] * 4, "raise"), CONTEXT)


@pytest.mark.slow
def test_a_batch_that_works_in_pieces_is_counted(make: Any) -> None:
    part = make("whole")
    assert part.score(episodes(*"abcd"), CONTEXT) == [1.0] * 4
    assert part.state["recovered"] == 1
    assert part.state["failed"] == 0


@pytest.mark.slow
def test_the_search_for_culprits_is_bounded(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.rewards.function.HANGS", 1)
    error = failure(make("faulty", timeout=0.3), "hang", "hang", "hang")
    assert "on one of the problems '0', '1', '2' of task 'sums', did not return" in str(error)
    assert error.completion == ["hang"] * 3  # type: ignore[attr-defined]


@pytest.mark.slow
def test_chance_is_noticed_once(make: Any) -> None:
    part = make("chance", rescore_every=2)
    with pytest.warns(
        UserWarning, match=r"chance gave the same completion 0\.\d+ and then 0\.\d+: it depends on chance"
    ):
        part.score(episodes("x"), CONTEXT)
    for _ in range(4):
        part.score(episodes("x"), CONTEXT)
    assert (part.state["calls"], part.state["rescored"], part.state["disagreed"]) == (5, 3, 3)


@pytest.mark.slow
def test_state_is_plain_and_restored(make: Any) -> None:
    part = make("exact")
    part.score(episodes("a"), CONTEXT)
    assert json.loads(json.dumps(part.state)) == part.state
    assert part_from_json(part.to_json()) == part


# Functions that cannot be loaded


@pytest.mark.first
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("exat", r"There is no attribute of .*user_rewards.py named 'exat'. Did you mean 'exact'"),
        ("number", "number must be a function, got int."),
        ("Scorer", "Scorer must be a function, got a class; name a function or an instance."),
        ("positional", "must take its parameters by name, but 'completions' is positional only"),
    ],
)
def test_what_is_no_function(make: Any, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(name)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def score(:\n", r"broken.py:1:11: invalid syntax: 'def score\(:'"),
        ("x = 1\nx.y()\n", r'line 2, in <module>[\s\S]*AttributeError: .int. object has no attribute .y.'),
        ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
        ("import sys; sys.exit(3)\n", "SystemExit: 3"),
        ("import os; os._exit(3)\n", "it lost its process, which ended with exit code 3."),
    ],
)  # fmt: skip
def test_files_that_cannot_be_imported(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        FunctionReward(f"{tmp_path / 'broken.py'}:score").bind()


@pytest.mark.slow
def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot import 'not_a_module': No module named 'not_a_module'"):
        FunctionReward("not_a_module:score").bind()
    with pytest.raises(ConfigError, match=r"There is no file .*none.py"):
        FunctionReward(f"{tmp_path / 'none.py'}:score").bind()
    with pytest.raises(ConfigError, match=r"FunctionReward.function must be 'module:name' or .*, such as 'r.py:score'"):
        FunctionReward("r.py")
    with pytest.raises(ConfigError, match=r"FunctionReward.timeout must be a number above 0, got 0"):
        FunctionReward("m:f", timeout=0.0)


# From Python


def same_as_answer(completions: list[str], answers: list[str]) -> list[float]:
    return [float(c == a) for c, a in zip(completions, answers)]


def test_reward_part_chooses_the_process() -> None:
    part = reward_part(same_as_answer)
    assert isinstance(part, FunctionReward) and not isinstance(part, CallableReward)
    assert part.function == f"{__name__}:same_as_answer"
    assert reward_part("m.py:score") == FunctionReward("m.py:score")
    assert reward_part(part) is part
    assert isinstance(reward_part(lambda completions: [0.0]), CallableReward)


def test_a_callable_in_this_process(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def score(completions: list[str]) -> list[float]:
        seen.extend(completions)
        return [1.0 if c != "raise" else 1 / 0 for c in completions]

    part = CallableReward(score, rescore_every=0).bind()
    assert part.score(episodes("a", "b"), CONTEXT) == [1.0, 1.0]
    assert seen == ["a", "b"]
    error = failure(part, "a", "raise")
    assert f'File "{__file__}", line' in str(error)
    assert "score, on problem '1' of task 'sums', raised:\n" in str(error)
    assert part.to_json()["function"].endswith("score")
    with pytest.raises(ConfigError, match="was a function of a notebook or script: give it again"):
        part_from_json(part.to_json())


def test_a_slow_callable_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    part = CallableReward(lambda completions: time.sleep(0.15) or [1.0], timeout=0.05, rescore_every=0).bind()
    assert part.score(episodes("a"), CONTEXT) == [1.0]
    assert "has been running for 0.05 s and cannot be stopped" in caplog.text


@pytest.mark.slow
def test_values_that_are_not_data(make: Any) -> None:
    batch = episodes("x")
    batch[0].problem = Problem("0", "p", object())
    with pytest.raises(ConfigError, match="Object of type object is not JSON serializable"):
        make("exact").score(batch, CONTEXT)


# The process


@pytest.mark.slow
def test_the_worker_does_not_load_torch(tmp_path: Path) -> None:
    (tmp_path / "light.py").write_text("import sys\ndef score(completions):\n    return ['torch' in sys.modules]\n")
    assert FunctionReward(f"{tmp_path / 'light.py'}:score").bind().score(episodes("x"), CONTEXT) == [0.0]


@pytest.mark.slow
def test_a_forgotten_part_ends_its_process(make: Any, source: Path) -> None:
    part = FunctionReward(f"{source}:exact").bind()
    pid = part._caller.worker.process.pid
    del part
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


SCRIPT = """
import os, sys, threading, time
from etude.rewards.calls import Limits
from etude.rewards.function import FunctionReward
part = FunctionReward(sys.argv[1], timeout=60.0).bind()
if sys.argv[2] == "busy":
    call = lambda: part._caller.call({"completions": ["hang"]}, 1, Limits(60))
    threading.Thread(target=call, daemon=True).start()
    time.sleep(0.3)
with open(sys.argv[4], "w") as file:
    print(part._caller.worker.process.pid, file=file)
exec(sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "ending"), [("idle", "pass"), ("idle", "os._exit(0)"), ("busy", "os.kill(os.getpid(), 9)")]
)
def test_the_process_ends_with_its_parent(source: Path, tmp_path: Path, state: str, ending: str) -> None:
    words = (f"{source}:faulty", state, ending, str(tmp_path / "pid"))
    if ending == "pass":  # as Python ends by itself, which no forked process does
        done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=60)
        err = done.stderr
    else:
        err = processes.python(tmp_path, SCRIPT, *words).end()[1]
    assert running(int((tmp_path / "pid").read_text())) == []
    assert err == "" or state == "busy"  # the thread whose call is ended may say so
