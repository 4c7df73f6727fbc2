"""The sandbox: what is told inside, what is read back, and what is said where there is none."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import ConfigError
from etude.runtime import environment
from etude.runtime.sandbox import filter, jail
from etude.runtime.sandbox import pool as pools
from etude.runtime.sandbox.consent import UNSAFE
from etude.runtime.sandbox.limits import MIB, Ended, Limits, Program, agree
from etude.runtime.sandbox.pool import Pool, shared_pool, slots_that_fit
from sandboxes import needs_sandbox

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture
def forget() -> Iterator[None]:
    """No pool of before, and none for later."""
    for cached in (pools._checked, jail.bubblewrap, jail.interpreter, jail.version):
        cached.cache_clear()
    yield
    for cached in (pools._checked, jail.bubblewrap, jail.interpreter, jail.version):
        cached.cache_clear()


# What is equal


@pytest.mark.slow
@settings(max_examples=50)
@given(JSON)
def test_a_value_agrees_with_what_json_makes_of_it(value: object) -> None:
    assert agree(value, json.loads(json.dumps(value)))


def test_values_that_only_look_alike_do_not_agree() -> None:
    for one, other in [(1, True), (0, False), (None, 0), ("1", 1), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ([], {}),
                       (1.0, 1.000001), (10**400, 1.5), ("", None)]:  # fmt: skip
        assert not agree(one, other) and not agree(other, one), (one, other)
    assert agree(10**30, 10**30) and agree(float("nan"), float("nan")) and agree(float("inf"), float("inf"))
    assert agree({1: (1, 2)}, {"1": [1.0, 2.0]}), "as JSON has them"


# The filter, run by hand


def decided(program: bytes, number: int, argument: int = 0, architecture: int = 0xC000003E) -> int:
    """What a seccomp filter says to a call: a machine of six instructions, written from the kernel's description."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, argument, 0, 0, 0, 0, 0)
    lines = [struct.unpack("=HBBI", program[i : i + 8]) for i in range(0, len(program), 8)]
    place, value = 0, 0
    while True:
        code, yes, no, constant = lines[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack("=I", data[constant : constant + 4])
        elif code == 0x15:
            place += yes if value == constant else no
        elif code == 0x35:
            place += yes if value >= constant else no
        else:
            assert code == 0x06
            return int(constant)


def test_the_filter_refuses_what_it_names_and_nothing_else() -> None:
    for machine, column, architecture in (("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)):
        program = filter.program(machine)
        assert program is not None
        refused, allowed, killed = 0x50001, 0x7FFF0000, 0x80000000
        numbers = {pair[column] for pair in filter.REFUSED.values()}
        for number in range(500):
            if number != filter.SOCKET[column]:
                said = decided(program, number, architecture=architecture)
                assert said == (refused if number in numbers else allowed), (machine, number)
        for family in range(64):
            said = decided(program, filter.SOCKET[column], family, architecture)
            assert said == (allowed if family in (1, 2, 10) else refused), (machine, family)
        assert decided(program, 0, architecture=0x40000003) == killed, "of another architecture"
    x32 = filter.program("x86_64")
    assert x32 is not None and decided(x32, 0x40000000 + 101) == 0x50001


# What is told, and to whom


def test_nothing_of_what_is_right_is_told() -> None:
    program = Program("def f(x): return x", (("f", (86243,)),), "input", Limits())
    assert set(program.message("m", {})) == {"marker", "code", "calls", "stdin", "resources"}


def test_every_wall_is_asked_for() -> None:
    walls = jail._walls(jail.Interpreter("/opt/python/bin/python3", "/opt/python"), Limits(disk=3 * MIB))
    text = " ".join(walls)
    for part in ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop ALL", "--new-session", "--clearenv",
                 "--die-with-parent", f"--size {4 * MIB} --tmpfs /dev/shm --remount-ro /dev",
                 f"--size {3 * MIB} --tmpfs /tmp", "--ro-bind /usr /usr",
                 "--ro-bind /opt/python /opt/python"):  # fmt: skip
        assert part in text
    assert walls[-2:] == ["--remount-ro", "/"], "the root folder is memory too, and writable until then"
    assert "--bind" not in walls and "--ro-bind / " not in text and "/proc" not in walls and "/etc" not in text


def test_each_sandbox_has_a_user_of_its_own() -> None:
    taken = [jail.free_user() for _ in range(3)]
    assert len({user for user, _ in taken}) == 3 and all(60_001 <= user < 64_001 for user, _ in taken)
    taken[0][1].close()
    again, held = jail.free_user()
    assert again not in {user for user, _ in taken[1:]}
    for _, each in [*taken[1:], (0, held)]:
        each.close()


def test_sandboxes_fit_into_the_memory() -> None:
    limits = Limits(memory=256 * MIB, processes=8, disk=16 * MIB)
    each = 8 * 256 * MIB + 16 * MIB + 4 * MIB
    assert [slots_that_fit(limits, n) for n in (0, each, 2 * each - 1, 5 * each)] == [1, 1, 1, 5]


# Where there is none


def test_without_bubblewrap_code_is_refused(forget: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(UNSAFE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match=r"(?s)not run here.*bubblewrap is not there.*apt-get.*--unsafe-no-sandbox"):
        shared_pool()
    assert pools.kind().startswith("code is not run: bubblewrap is not there")


def test_where_a_wall_does_not_hold_code_is_refused(forget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNSAFE, raising=False)
    monkeypatch.setattr("etude.runtime.sandbox.probe.holes", lambda pool: ["read /etc/shadow", "was root"])
    with pytest.raises(ConfigError, match="a program that was tried in it read /etc/shadow and was root"):
        shared_pool()


def test_a_bubblewrap_that_does_not_start_is_told(
    forget: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    wrong = tmp_path / "bin" / "bwrap"
    wrong.write_text("#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n")
    wrong.chmod(0o755)
    monkeypatch.delenv(UNSAFE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigError, match="No permissions to create a new namespace"):
        shared_pool()


@pytest.mark.slow
def test_what_the_user_allows_runs_and_is_written_down(forget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNSAFE, "1")
    monkeypatch.setenv("A_TOKEN", "secret")
    monkeypatch.setattr("shutil.which", lambda name: None)
    pool = shared_pool()
    code = "import os\nprint(os.getcwd(), 'A_TOKEN' in os.environ, input())\ndef f(x): return [x]"
    (outcome,) = pool.run([Program(code, (("f", (3,)),), "told")])
    pool.close()
    folder, seen, told = outcome.stdout.split()
    assert (outcome.ended, outcome.answers, seen, told) == (Ended.DONE, {0: [3]}, "False", "told")
    assert not Path(folder).exists(), "its folder is gone"
    assert pools.kind() == "nothing (--unsafe-no-sandbox)" and environment.record(0)["unsafe_no_sandbox"] is True
    monkeypatch.delenv(UNSAFE)
    assert environment.record(0)["unsafe_no_sandbox"] is False


def test_the_flag_is_taken_from_any_verb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from etude.cli import _without_consent

    monkeypatch.setenv(UNSAFE, "0")
    assert _without_consent(["tasks"]) == ["tasks"] and os.environ[UNSAFE] == "0"
    assert _without_consent(["train", "--unsafe-no-sandbox", "--steps", "1"]) == ["train", "--steps", "1"]
    assert os.environ[UNSAFE] == "1" and "in no sandbox" in capsys.readouterr().err


# Where there is one


@needs_sandbox
@pytest.mark.slow
def test_many_programs_come_back_in_order() -> None:
    pool = Pool(2)
    programs = [Program(f"def f(x): return x + {n % 7}", (("f", (10,)),)) for n in range(12)]
    try:
        outcomes = pool.run(programs)
        assert [o.answers for o in outcomes] == [{0: 10 + n % 7} for n in range(12)]
        assert outcomes[0] is outcomes[7], "what is equal runs once"
        assert pool.run([]) == []
    finally:
        pool.close()


@needs_sandbox
@pytest.mark.slow
def test_one_that_died_while_it_waited_is_replaced() -> None:
    pool = Pool(1)
    try:
        pool.warm()
        (waiting,) = pool._warm
        os.killpg(waiting.process.pid, signal.SIGKILL)
        waiting.process.wait()
        (outcome,) = pool.run([Program("print(1)")])
        assert outcome.stdout == "1\n"
    finally:
        pool.close()


@needs_sandbox
@pytest.mark.slow
def test_one_that_another_thread_started_is_not_used() -> None:
    """It would end in the middle of a program, with that thread."""
    pool = Pool(1)
    try:
        for _ in range(2):
            thread = threading.Thread(target=pool.warm)
            thread.start()
            thread.join()
            assert not pool._warm[0].usable
            (outcome,) = pool.run([Program("print(1)")])
            assert outcome.stdout == "1\n" and pool._warm[0].usable
            pool.close()
    finally:
        pool.close()


@pytest.fixture
def without() -> Iterator[Callable[[str, int], None]]:
    """Takes a wall away: an argument of bubblewrap's and those that follow it."""
    real = jail._walls

    def take(argument: str, others: int) -> None:
        def walls(*given: object) -> list[str]:
            found = real(*given)  # type: ignore[arg-type]
            place = len(found) - 1 - found[::-1].index(argument)
            return found[:place] + found[place + 1 + others :]

        jail._walls = walls  # type: ignore[assignment]

    yield take
    jail._walls = real


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wall", "others", "hole"),
    [("--disable-userns", 0, "A child cannot begin"), ("--clearenv", 0, "The environment is empty"),
     ("--remount-ro", 1, "Nothing is written beside"), ("--size", 1, "/tmp has a size")],
)  # fmt: skip
def test_each_wall_is_needed(without: Callable[[str, int], None], wall: str, others: int, hole: str) -> None:
    """The suite finds the hole that is there without it. No case here is one that a hole could let loose."""
    from etude.evaluation.sandbox_check import limits, walls
    from etude.evaluation.sandbox_check.suite import failing

    os.environ["ETUDE_SEEN"] = "1"
    cases = [c for c in (*walls.CASES, *limits.CASES) if c.name.startswith(hole)]
    for taken, count in ((False, 0), (True, 1)):
        if taken:
            without(wall, others)
        pool = Pool(1)
        try:
            assert len(failing(pool, "walls", cases)) == count
        finally:
            pool.close()
    del os.environ["ETUDE_SEEN"]
