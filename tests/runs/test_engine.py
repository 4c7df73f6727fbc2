"""`--engine`: with our own engine the run without it, bit for bit; with others the same code; and what stops it."""

from __future__ import annotations

import copy
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_on_processes import SMALL, STEPS, TASKS, learned, outcome, small, tiny

import etude
import processes
from engine_toys import SHORT, connected, serving
from etude.core.errors import ConfigError, WorkerError
from etude.core.registry import get_method
from etude.experience.engine import Answer, Request, ServedEngine
from etude.experience.engine_server import EngineServer
from etude.experience.samplers import Sampler, Samplers
from etude.loops.language import LanguageLoop
from etude.policies.engines import remote
from etude.policies.engines.wire import EngineGone
from etude.runs import engine_start
from etude.runs.engine_start import Start, command
from etude.runs.engines import agreeing, check, connect
from etude.runs.training import Options
from etude.runtime.executors.local import Local
from etude.tasks import resolve_task
from language_toys import untimed

pytestmark = pytest.mark.usefixtures("one_thread", "forked_roles")


def other() -> Any:
    """The model that runs begin with, and other weights."""
    policy = copy.deepcopy(tiny())
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(0.5)
    policy.loads += 1
    return policy


@pytest.fixture(scope="module")
def server(one_thread: None) -> Iterator[EngineServer]:
    with serving(ServedEngine(other())) as found:
        yield found


# The same run


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "kimi-k1-5", "supo"])
def test_a_method_comes_to_the_same(method: str, server: EngineServer, tmp_path: Path) -> None:
    """One turn; turns that are gone on with later; many turns of which not all is shown."""
    own, task = small(get_method(method)), resolve_task(TASKS.get(method, "compose"))
    found = []
    for engine in (None, connected(server)):  # two steps: what was kept of the first is gone on with
        policy = copy.deepcopy(tiny())
        samplers = None if engine is None else Samplers(Local(Sampler(task, policy, engine)), task)
        loop = LanguageLoop(own, task, policy, seed=6, steps=STEPS, samplers=samplers)
        folder = tmp_path / str(len(found))
        metrics = [untimed(loop.step().metrics) for _ in range(2)]
        loop.save(folder)
        found.append((metrics, learned(folder)))
    assert found[1] == found[0]


@pytest.mark.slow
def test_a_sampler_process_that_runs_ahead_asks_the_engine_and_comes_to_the_same(
    server: EngineServer, tmp_path: Path
) -> None:
    how = SMALL | {"bound": 1, "set": [*SMALL["set"], "objective=decoupled-surrogate"]}
    here = etude.train("grpo", "compose", out=str(tmp_path / "here"), **how)
    there = etude.train("grpo", "compose", on="processes", engine=server.url, out=str(tmp_path / "there"), **how)
    assert outcome(there) == outcome(here)
    assert json.loads((there.folder / "config.json").read_text())["engine"] == server.url


@pytest.mark.slow
def test_a_run_goes_by_the_routes_of_others(tmp_path: Path) -> None:
    """Weights in folders, one row in a request: its invariants hold."""
    with serving(ServedEngine(other()), "vllm") as there:
        run = etude.train("grpo", "compose", engine=f"vllm:{there.url}", out=str(tmp_path / "run"), **SMALL)
    assert len(run.metrics) == STEPS
    assert all(m["logp_gap"] <= m["logp_gap_bound"] < 3e-3 for m in run.metrics)
    assert there.engine.policy.loads == 1 + 1 + (STEPS - 1)  # ours at the start, then one for each update but the last


@pytest.mark.slow
def test_a_run_whose_engine_was_killed_stops_saved_and_goes_on_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`etude engine start`, kill -9, and again at the same address: the run that never stopped, bit for bit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"

    def started() -> processes.Process:
        process = processes.etude(tmp_path, "engine", "start", "native", "--port", str(port), "--threads", "1")
        due = time.monotonic() + 60
        while time.monotonic() < due:
            try:
                connect(url)
                return process
            except EngineGone:
                time.sleep(0.1)
        raise AssertionError(process.said.read_text())

    whole, play, engine = etude.train("grpo", "compose", out=str(tmp_path / "whole"), **SMALL), Samplers.play, started()

    def deadly(self: Any, starts: Any, context: Any, *more: Any) -> Any:
        if context.step == 2:
            engine.kill()
            engine.end(10)
        return play(self, starts, context, *more)

    monkeypatch.setattr(Samplers, "play", deadly)
    monkeypatch.setattr(remote, "Patience", lambda: SHORT)
    with pytest.raises(WorkerError, match=r"waited for 0.3 seconds: start it again .* The run is safe at step 2"):
        etude.train("grpo", "compose", engine=url, out=str(tmp_path / "parts"), **SMALL)
    monkeypatch.undo()
    again = started()
    assert outcome(etude.resume(tmp_path / "parts", quiet=True)) == outcome(whole)
    again.kill()
    again.end(10)


# Before the first update


class Wrong(ServedEngine):
    """Says other log-probabilities than those of what it drew."""

    def __init__(self, how: str) -> None:
        super().__init__(copy.deepcopy(tiny()))
        self.how = how

    def complete(self, request: Request) -> Answer:
        found = super().complete(request)
        for completion in found.completions:
            if self.how == "shifted":
                completion.logp = [p - 0.1 for p in completion.logp]
            elif request.sampling.temperature != 1:
                completion.logp = [p * request.sampling.temperature for p in completion.logp]
        return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [("shifted", "native", r"differ by 0\.1 nats per token .* holds another model, .* Nothing was trained"),
     ("before temperature", "vllm", r"temperature 1, and at 0\.7 they differ .* --logprobs-mode processed_logprobs"),
     ("before temperature", "sglang", r"without SGLANG_RETURN_ORIGINAL_LOGPROB")],
)  # fmt: skip
def test_an_engine_with_other_log_probabilities_is_refused(how: str, kind: Any, sentence: str) -> None:
    policy = copy.deepcopy(tiny())
    with serving(Wrong(how), kind) as server, pytest.raises(ConfigError, match=sentence):
        agreeing(f"{kind}:{server.url}", policy)


@pytest.mark.slow
def test_an_engine_that_agrees_leaves_no_trace_in_what_is_counted(server: EngineServer) -> None:
    policy = copy.deepcopy(tiny())
    policy.work.clear()
    assert agreeing(server.url, policy).faults == 0
    assert not policy.work and not policy.emitted


def test_what_an_engine_cannot_do_is_said_before_anything_else() -> None:
    own, vllm = "http://127.0.0.1:8000", "vllm:http://127.0.0.1:8000"
    check(get_method("grpo"), Options(engine=vllm))
    check(get_method("grpo"), Options(engine=own, on="processes", bound=1))
    for on in ("processes:2", "hogwild"):
        with pytest.raises(ConfigError, match=f"--on {on} would have several processes give it theirs"):
            check(get_method("grpo"), Options(engine=own, on=on))
    with pytest.raises(ConfigError, match="--engine is for methods that sample, and sft learns from data"):
        check(get_method("sft"), Options(engine=own))
    with pytest.raises(ConfigError, match="--engine must be native:http"):
        Options(engine="8000")


@pytest.mark.slow
def test_methods_that_note_more_while_sampling_are_refused_by_name() -> None:
    from etude.core.kinds import TokenMethod
    from etude.core.registry import compositions, files

    said = {}
    for name in sorted(files("methods")):
        for method in compositions(name):
            if isinstance(method, TokenMethod) and method.experience is not None and method.experience.samples:
                for kind in ("native", "vllm"):
                    try:
                        check(method, Options(engine=f"{kind}:http://127.0.0.1:8000"))
                    except ConfigError as error:
                        said[method.id, kind] = str(error)
    assert all("noted while sampling" in sentence for sentence in said.values())
    assert {m for m, kind in said if kind == "native"} < {m for m, kind in said if kind == "vllm"}


# Starting one


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment whose Python says that it has any package in this version."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.write_text('#!/bin/sh\n[ "$PYTHONPATH" ] && echo leaked\ncat "$(dirname "$0")/version"\n')
    python.chmod(0o755)
    (tmp_path / "env" / "bin" / "version").write_text("0.33.0\n")
    return tmp_path / "env"


GIVEN = {"PATH": os.environ["PATH"], "PYTHONPATH": "ours", "VIRTUAL_ENV": "ours", "CUDA_VISIBLE_DEVICES": "1"}


def test_vllm_is_started_from_its_own_environment_on_this_machine_alone(env: Path) -> None:
    start = Start("vllm", "Qwen/Qwen2.5-0.5B", port=9, env=str(env), dtype="bfloat16", also="--enforce-eager -tp 2")
    arguments, variables = command(start, GIVEN)
    assert arguments == [
        str(env / "bin" / "vllm"), "serve", "Qwen/Qwen2.5-0.5B", "--host", "127.0.0.1", "--port", "9", "--dtype",
        "bfloat16", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enforce-eager", "-tp",
        "2",
    ]  # fmt: skip
    assert variables == {"PATH": GIVEN["PATH"], "CUDA_VISIBLE_DEVICES": "1", "VLLM_SERVER_DEV_MODE": "1"}
    sent = command(Start("vllm", "x", env=str(env), transport="ipc"), GIVEN)
    assert sent.arguments[-2:] == ["--weight-transfer-config", '{"backend": "ipc"}']
    assert sent.variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"


def test_sglang_is_started_from_its_own_environment(env: Path) -> None:
    with pytest.raises(ConfigError, match=r"is SGLang 0\.33\.0, and the versions .* are 0\.5\.4 to 0\.5\.23"):
        command(Start("sglang", "x", env=str(env)), GIVEN)
    (env / "bin" / "version").write_text("0.5.23\n")
    arguments, variables = command(Start("sglang", "x", env=str(env), host="10.0.0.2"), GIVEN)
    assert arguments[:7] == [str(env / "bin" / "python"), "-m", "sglang.launch_server", "--model-path", "x", "--host",
                             "10.0.0.2"]  # fmt: skip
    assert "VLLM_SERVER_DEV_MODE" not in variables


def test_a_start_that_cannot_be_is_a_sentence(env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for told, sentence in (
        ({"kind": "vllm"}, r"cannot share etude's: say where, as in --env"),
        ({"kind": "native", "env": "x"}, "leave out --env"),
        ({"kind": "native", "host": "0.0.0.0"}, r"reached from outside.*'public 0\.0\.0\.0'"),
        ({"kind": "sglang", "env": "x", "transport": "nccl"}, "--transport must be files, or with vllm"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            Start(**told)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="There is no Python in"):
        command(Start("vllm", "x", env=str(tmp_path / "none")), GIVEN)
    with pytest.raises(ConfigError, match="'blank:2x64' is made by etude: save it"):
        command(Start("vllm", "blank:2x64", env=str(env)), GIVEN)
    (env / "bin" / "version").unlink()
    with pytest.raises(ConfigError, match="has no vllm: install it there"):
        command(Start("vllm", "x", env=str(env)), GIVEN)
    became: list[Any] = []
    monkeypatch.setattr("os.execve", lambda *args: became.append(args))
    engine_start.become(engine_start.Command(["vllm", "serve"], {"A": "1"}))
    assert became == [("vllm", ["vllm", "serve"], {"A": "1"})]
    with pytest.raises(ConfigError, match="Nothing can listen at"), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine_start.native(Start("native", port=taken.getsockname()[1], threads=1))
