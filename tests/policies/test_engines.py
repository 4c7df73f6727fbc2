"""Engines over HTTP: what they answer is what a conversation here would have said, whatever fails on the way."""

from __future__ import annotations

import dataclasses
import errno
import json
import threading
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from engine_toys import SHORT, Failing, connected, hangs_up, serving
from etude.core.draws import Draw
from etude.core.episodes import StopReason
from etude.core.errors import ConfigError, InvariantError, WorkerError
from etude.experience.engine import Answer, Full, Request, ServedEngine
from etude.experience.engine_server import EngineServer
from etude.policies import snapshots
from etude.policies.engines import vllm_transfer
from etude.policies.engines.addresses import Address, address_of, check_host
from etude.policies.engines.dialects import known
from etude.policies.engines.remote import Patience, RemoteEngine
from etude.policies.engines.wire import KEY, EngineGone, NoRoom, Refused, Wire
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Completion, Sampling
from language_toys import draws, random_policy, random_prompts

pytestmark = pytest.mark.usefixtures("one_thread")
HOW = Sampling(temperature=0.8, max_tokens=6, stop=("q",))
KINDS = ("native", "vllm", "sglang")


def mark_of(policy: LanguagePolicy) -> str:
    return snapshots.mark(snapshots.weights(policy))


@pytest.fixture(scope="module")
def servers(one_thread: None) -> Iterator[dict[str, EngineServer]]:
    """One of each kind, with other weights than the policies that ask it."""
    with (
        serving(ServedEngine(random_policy(seed=9)), "native") as native,
        serving(ServedEngine(random_policy(seed=9)), "vllm") as vllm,
        serving(ServedEngine(random_policy(seed=9)), "sglang") as sglang,
    ):
        yield {"native": native, "vllm": vllm, "sglang": sglang}


def two_turns(engine: Any, how: Sampling = HOW) -> list[list[Completion]]:
    """Rows that are opened, extended, forked, rewound and closed between turns."""
    prompts = random_prompts(4, seed=3)
    rows = engine.open([*prompts, prompts[0]])
    found = [engine.sample(rows, how, draws(5))]
    engine.extend(rows[:3], [[5], [6, 7], [8]])
    more = engine.fork(rows[:1])
    engine.rewind(rows[3:4], [2])
    engine.extend(rows[3:4], [[9]])
    engine.close(rows[4:])
    found.append(engine.sample([*rows[:4], *more], how, draws(5, seed=1), [0, 1, 0, 2, 0]))
    engine.extend(more, [[3]])
    found.append(engine.sample(more, how, draws(1, seed=2), last=True))
    assert engine.tokens(rows[0])[-1] == found[1][0].tokens[-1]
    return found


def said(turns: Sequence[Sequence[Completion]]) -> list[Any]:
    return [dataclasses.astuple(c) for turn in turns for c in turn]


# The same


@pytest.mark.slow
@pytest.mark.parametrize("how", [HOW, dataclasses.replace(HOW, entropy=True, top_p=0.9, top_k=40, whole_turns=True),
                                 Sampling(temperature=0, max_tokens=3)], ids=["plain", "more", "greedy"])  # fmt: skip
def test_our_own_engine_says_what_a_conversation_here_says(servers: dict[str, EngineServer], how: Sampling) -> None:
    here, there = random_policy(), random_policy()
    engine = connected(servers["native"])
    mine = here.converse()
    first = [mine.sample(mine.open(random_prompts(4, seed=3)), how, draws(4)) for _ in range(2)]
    conversation = engine.converse(there, mark_of(there))
    assert said(first[:1]) == said([conversation.sample(conversation.open(random_prompts(4, seed=3)), how, draws(4))])
    here.work.clear(), there.work.clear(), here.emitted.clear(), there.emitted.clear()
    if not how.whole_turns:  # a fork is read anew there: the same tokens, and the last digits of a product
        a, b = two_turns(here.converse(), how), two_turns(engine.converse(there, mark_of(there)), how)
        assert [c[0] for c in said(a)] == [c[0] for c in said(b)]
        assert said(a[:1]) == said(b[:1])
        assert here.emitted == there.emitted
        assert here.work["sampled_tokens"] == there.work["sampled_tokens"]


@pytest.mark.slow
def test_float32_travels_with_all_its_bits(servers: dict[str, EngineServer]) -> None:
    policy = random_policy()
    conversation = connected(servers["native"]).converse(policy, mark_of(policy))
    (found,) = conversation.sample(conversation.open([[5, 6, 7]]), HOW, draws(1), last=True)
    exact = torch.tensor(found.logp, dtype=torch.float32)
    assert exact.double().tolist() == found.logp


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_routes_of_others_bring_the_same_tokens_and_reasons(kind: str, servers: dict[str, EngineServer]) -> None:
    """One row in a request: products of another batch size, so log-probabilities agree to rounding."""
    here, there = random_policy(context=16), random_policy(context=16)
    engine = connected(servers[kind], kind)
    with pytest.raises(ConfigError, match="attends to 128 tokens and the policy to 4096"):
        engine.converse(random_policy(context=4096), "x")
    prompts, how = [[5, 6], list(range(3, 16)), [7, 8, 9]], Sampling(max_tokens=6, stop=("a", "e"))
    a, b = here.converse(), engine.converse(there, mark_of(there))
    keys = [Draw(row + 77) for row in range(3)]  # small enough for every engine's seed
    x, y = a.sample(a.open(prompts), how, keys), b.sample(b.open(prompts), how, keys)
    assert [(c.tokens, c.stop) for c in x] == [(c.tokens, c.stop) for c in y]
    assert max(abs(p - q) for c, d in zip(x, y) for p, q in zip(c.logp, d.logp)) < 2e-6
    assert y[1].stop is StopReason.CONTEXT_OVERFLOW
    assert there.work["prefilled_tokens"] == sum(map(len, prompts))


def test_why_a_row_ended_survives_the_way_there_and_back() -> None:
    from etude.experience.engine_server import _choice
    from etude.policies.engines.dialects import Asked, Turn
    from etude.policies.engines.vllm import read

    turn = Turn(Sampling(max_tokens=3, stop=("q",)), [1], context=5)
    for reason, held in ((StopReason.END_OF_TEXT, 1), (StopReason.STOP_STRING, 1), (StopReason.MAX_TOKENS, 1),
                         (StopReason.CONTEXT_OVERFLOW, 3)):  # fmt: skip
        row = Asked(0, [4] * held, 0, 0, 3)
        found = read(row, turn, _choice(0, Completion([4, 1], [-1.0, -2.0], stop=reason), turn.sampling))
        assert found is not None and found.stop is reason
    assert read(row, turn, {"finish_reason": "abort"}) is None
    with pytest.raises(ConfigError, match="row 0 with 2 token ids and 1 log-probabilities"):
        read(row, turn, {"finish_reason": "stop", "token_ids": [4, 1], "logprobs": {"token_logprobs": [-1.0]}})


# Weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_given_once_for_each_version(kind: str, servers: dict[str, EngineServer]) -> None:
    engine, policy, served = connected(servers[kind], kind), random_policy(seed=2), servers[kind].engine
    before = served.policy.loads
    for _ in range(2):
        engine.converse(policy, mark_of(policy))
    assert (served.policy.loads - before, served.mark) == (1, mark_of(policy))
    with torch.no_grad():
        next(policy.model.parameters()).add_(0.5)
    engine.converse(policy, mark_of(policy))
    assert (served.policy.loads - before, served.mark, served.paused) == (2, mark_of(policy), False)
    assert connected(servers[kind], kind).dialect.held() == mark_of(policy)


@pytest.mark.slow
def test_an_adapter_travels_folded_in(servers: dict[str, EngineServer]) -> None:
    from etude.policies.adapters import NAMED

    peft = pytest.importorskip("peft")
    assert peft
    served = ServedEngine(LanguagePolicy.load("tiny"))
    policy = LanguagePolicy.load("tiny", adapter=NAMED["lora"])
    with torch.no_grad():
        for weight in snapshots.weights(policy).values():
            weight.add_(0.01)
    with serving(served) as server:
        engine = connected(server)
        a, b = policy.converse(), engine.converse(policy, mark_of(policy))
        assert served.mark == snapshots.mark(dict(policy.merged().named_parameters()))
        x, y = (c.sample(c.open([[5, 6, 7]]), HOW, draws(1)) for c in (a, b))
        assert x[0].tokens == y[0].tokens
        assert x[0].logp == pytest.approx(y[0].logp, abs=1e-5)


@pytest.mark.slow
def test_weights_that_are_torn_or_another_version_s_are_refused(
    servers: dict[str, EngineServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all their bits, at the engine; it goes on with those that it has."""
    engine, policy, served = connected(servers["native"]), random_policy(seed=4), servers["native"].engine
    engine.converse(policy, mark_of(policy))
    wire, other, had = Wire(engine.address, 5.0), random_policy(seed=5), served.mark
    snapshot = snapshots.Snapshot(snapshots.weights(other), 1)
    whole = snapshot.file.read_bytes()
    wire.post("/start_weight_update")
    with pytest.raises(Refused, match="of another version, and was not taken") as caught:
        wire.post("/update_weights", {"update_info": {"file": str(snapshot.file), "mark": had}})
    assert caught.value.status == 409
    for bad in (whole[:-5], whole[:-1] + bytes([whole[-1] ^ 1])):  # cut, and one bit
        (tmp_path / "torn").write_bytes(bad)
        wire.post("/start_weight_update")
        with pytest.raises(Refused, match=r"cannot be read|have the mark"):
            wire.post("/update_weights", {"update_info": {"file": str(tmp_path / "torn"), "mark": mark_of(other)}})
    assert served.mark == had
    with pytest.raises(Refused, match="cannot update now: the last that it did was 'init'"):
        wire.post("/update_weights", {"update_info": {"file": str(snapshot.file), "mark": mark_of(other)}})
    with pytest.raises(Refused, match="backend 'file', got 'nccl'"):
        wire.post("/init_weight_transfer_engine", {"init_info": {"backend": "nccl"}})
    snapshot.close()

    save = safetensors.torch.save_file

    def torn(tensors: Any, file: Any) -> None:
        save({name: tensor + 1 for name, tensor in tensors.items()}, file)

    monkeypatch.setattr("safetensors.torch.save_file", torn)
    with pytest.raises(InvariantError, match=r"of another version, and was not taken.*not those of version 0"):
        engine.converse(other, mark_of(other))
    monkeypatch.undo()
    engine.converse(other, mark_of(other))
    assert served.mark == mark_of(other) and not served.paused


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_folder_of_another_model_is_refused(kind: str, servers: dict[str, EngineServer]) -> None:
    engine, other = connected(servers[kind], kind), random_policy("qwen2")
    with pytest.raises(InvariantError, match="are another model's"):
        engine.converse(other, mark_of(other))


@pytest.mark.slow
def test_rows_of_other_weights_are_asked_again_once_then_refused() -> None:
    """Somebody else gives the engine weights between ours and the rows."""
    policy, often = random_policy(), [1]

    def meddles(engine: Any, number: int, request: Request) -> None:
        if number < often[0]:
            with torch.no_grad():
                next(engine.policy.model.parameters()).add_(0.1)
            engine.policy.loads += 1

    with serving(Failing(random_policy(seed=3), meddles)) as server:
        engine = connected(server)
        conversation = engine.converse(policy, mark_of(policy))
        found = conversation.sample(conversation.open([[5, 6]]), HOW, draws(1))
        mine = policy.converse()
        assert said([found]) == said([mine.sample(mine.open([[5, 6]]), HOW, draws(1))])
        often[0] = 99
        with pytest.raises(InvariantError, match=r"and [0-9a-f]{16} were asked for: the weights of the engine .* late"):
            conversation.sample(conversation.open([[5, 6]]), HOW, draws(1))


@pytest.mark.slow
def test_an_engine_that_keeps_its_weights_is_found_out() -> None:
    class Late(ServedEngine):
        def take_file(self, file: str, mark: str) -> None:
            """Does nothing, and says that it was done."""

    policy = random_policy()
    with (
        serving(Late(random_policy(seed=3))) as server,
        pytest.raises(InvariantError, match="was given weights with the mark"),
    ):
        connected(server).converse(policy, mark_of(policy))


# Engines that are lost


@pytest.mark.slow
def test_rows_are_asked_again_after_an_engine_was_lost_and_each_counts_once() -> None:
    """It is gone in the middle of a turn; another one with other weights takes its place."""
    policy, next_one = random_policy(), list[Any]()
    policy.work.clear()

    def dies(engine: Any, number: int, request: Request) -> None:
        if number == 1:
            port = server.server_address[1]
            server.shutdown(), server.server_close()
            next_one.append(EngineServer(ServedEngine(random_policy(seed=8)), port=port))
            threading.Thread(target=next_one[0].serve_forever, daemon=True).start()
            raise ConnectionAbortedError

    server = EngineServer(Failing(random_policy(seed=7), dies))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    engine = connected(server)
    mine, conversation = policy.converse(), engine.converse(policy, mark_of(policy))
    opened = [c.open(random_prompts(3)) for c in (mine, conversation)]
    turns = [[c.sample(rows, HOW, draws(3))] for c, rows in zip((mine, conversation), opened)]
    for c, rows, found in zip((mine, conversation), opened, turns):
        c.extend(rows, [[5]] * 3)
        found.append(c.sample(rows, HOW, draws(3, seed=1)))
    next_one[0].shutdown(), next_one[0].server_close()
    assert [c.tokens for turn in turns[0] for c in turn] == [c.tokens for turn in turns[1] for c in turn]
    assert [len(c.tokens(r)) for c, rows in ((conversation, opened[1]),) for r in rows] == [
        len(mine.tokens(r)) for r in opened[0]
    ]
    assert next_one[0].engine.mark == mark_of(policy) and engine.faults <= 1


@pytest.mark.slow
def test_rows_that_were_answered_are_not_asked_again() -> None:
    """One row in a request: those whose connection broke are asked once more, the others never."""
    policy, keys = random_policy(), [Draw(row + 1) for row in range(6)]
    broken: set[int] = {2, 5}

    def breaks(engine: Any, number: int, request: Request) -> None:
        if request.draws[0].key in broken:
            broken.discard(request.draws[0].key)
            raise ConnectionAbortedError

    with serving(served := Failing(random_policy(seed=3), breaks), "vllm") as server:
        engine = connected(server, "vllm")
        conversation = engine.converse(policy, mark_of(policy))
        found = conversation.sample(conversation.open(random_prompts(6)), HOW, keys)
    asked = [request.draws[0].key for request in served.asked]
    assert {key: asked.count(key) for key in range(1, 7)} == {1: 1, 2: 2, 3: 1, 4: 1, 5: 2, 6: 1}
    mine = policy.converse()
    assert [c.tokens for c in found] == [c.tokens for c in mine.sample(mine.open(random_prompts(6)), HOW, keys)]
    assert policy.work["prefilled_tokens"] == 2 * sum(map(len, random_prompts(6)))  # each once, there and here


@pytest.mark.slow
def test_an_engine_that_is_lost_too_often_or_for_too_long_stops_the_run() -> None:
    policy = random_policy()
    with serving(Failing(random_policy(seed=3), hangs_up)) as server:
        engine = connected(server)
        conversation = engine.converse(policy, mark_of(policy))
        with pytest.raises(WorkerError, match=r"was lost 3 times; .* at most 2 times") as caught:
            conversation.sample(conversation.open([[5]]), HOW, draws(1))
        assert caught.value.intact
        engine.faults = 0
    with pytest.raises(WorkerError, match=r"waited for 0.3 seconds: start it again with `etude engine start`"):
        conversation.sample(conversation.open([[5]]), HOW, draws(1))
    with pytest.raises(EngineGone, match="does not answer"):
        connected(server)


# Engines that are full


@pytest.mark.slow
def test_a_full_engine_is_asked_for_less_then_later_then_there_is_a_sentence() -> None:
    policy, mine = random_policy(), random_policy().converse()
    served = ServedEngine(random_policy(seed=3), rows=2)
    with serving(served) as server:
        engine = connected(server)
        conversation = engine.converse(policy, mark_of(policy))
        found = conversation.sample(conversation.open(random_prompts(7)), HOW, draws(7))
        assert engine.dialect.together == 1 or engine.dialect.together == 2
        alone = mine.sample(mine.open(random_prompts(7)), HOW, draws(7))
        assert [c.tokens for c in found] == [c.tokens for c in alone]
        served.rows = 0
        threading.Timer(0.1, lambda: setattr(served, "rows", 1)).start()
        patient = RemoteEngine(engine.address, Patience(room=20.0))
        conversation = patient.converse(policy, mark_of(policy))
        assert conversation.sample(conversation.open([[5]]), HOW, draws(1))
        served.rows = 0
        conversation = engine.converse(policy, mark_of(policy))
        with pytest.raises(WorkerError, match=r"room for 0 rows .*found no room for 0.3 seconds: .* larger --rows"):
            conversation.sample(conversation.open([[5]]), HOW, draws(1))


@pytest.mark.slow
def test_no_memory_there_and_no_disk_here_are_sentences(
    servers: dict[str, EngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, other = random_policy(), random_policy(seed=6)

    def no_memory(engine: Any, number: int, request: Request) -> None:
        if len(request.views) > 1:
            monkeypatch.setattr(engine, "_lines", lambda session: (_ for _ in ()).throw(MemoryError("none")))
        else:
            monkeypatch.undo()

    with serving(Failing(random_policy(seed=3), no_memory)) as server:
        engine = connected(server)
        conversation = engine.converse(policy, mark_of(policy))
        assert len(conversation.sample(conversation.open(random_prompts(3)), HOW, draws(3))) == 3

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(WorkerError, match="no room to write the weights for the engine"):
        connected(servers["native"]).converse(other, mark_of(other))


# Who answers


@pytest.mark.slow
def test_an_engine_of_another_kind_or_version_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ServedEngine(random_policy())) as server:
        for said_there, kind, sentence in (
            ({"version": "0.15.1"}, "vllm", r"is vLLM 0.15.1, and the versions .* are 0.22 to 0.33"),
            ({"version": "0.34.0"}, "vllm", "is vLLM 0.34.0"),
            ({"version": "0.33.0"}, "native", r"is not etude's own: .* --engine vllm:http"),
            ({"version": "9.9", "engine": "etude"}, "native", r"is etude 9.9, and this is .* the same version on both"),
        ):
            server.routes["GET /version"] = lambda _, said_there=said_there: said_there  # type: ignore[misc]
            with pytest.raises(ConfigError, match=sentence):
                connected(server, kind)
        with pytest.raises(Refused, match="with 404: There is no GET /get_server_info here"):
            connected(server, "sglang")
        server.routes["GET /server_info"] = lambda _: {"version": "0.4.9"}
        with pytest.raises(ConfigError, match=r"is SGLang 0\.4\.9"):
            connected(server, "sglang")
    assert known("vLLM", "0.33.1rc1", (("0.22", "0.33"),)) == (0, 33, 1)
    with pytest.raises(ConfigError, match="is vLLM of no version that it says"):
        known("vLLM", "", (("0.22", "0.33"),))


@pytest.mark.slow
def test_weights_by_nccl_need_a_version_and_vllm_itself(servers: dict[str, EngineServer]) -> None:
    with pytest.raises(ConfigError, match=r"sent by vLLM's own package, which is not installed.*leave out \+nccl"):
        connected(servers["vllm"], "vllm+nccl")
    old = servers["vllm"].routes["GET /version"]
    servers["vllm"].routes["GET /version"] = lambda _: {"version": "0.27.1"}
    try:
        with pytest.raises(ConfigError, match=r"from 0.28 on, and this is 0.27.1: leave out \+ipc"):
            connected(servers["vllm"], "vllm+ipc")
    finally:
        servers["vllm"].routes["GET /version"] = old


@pytest.mark.slow
@pytest.mark.parametrize(("version", "told"), [("0.23.0", {"is_checkpoint_format": True}), ("0.24.0", {})])
def test_the_four_phases_are_told_what_their_version_takes(
    version: str, told: dict[str, Any], servers: dict[str, EngineServer]
) -> None:
    heard: list[Any] = []
    routes = dict(servers["vllm"].routes)
    names = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")
    for name in names:
        routes[f"POST /{name}"] = lambda body, name=name: heard.append((name, body)) or {}  # type: ignore[misc]
    with serving(ServedEngine(random_policy()), "vllm") as server:
        server.routes = routes | {"GET /version": lambda _: {"version": version}}
        dialect: Any = connected(server, "vllm").dialect
        dialect.init_weight_transfer_engine({"a": 1})
        dialect.start_weight_update()
        dialect.update_weights({"b": 2})
        dialect.finish_weight_update("mark")
    assert heard == [
        ("init_weight_transfer_engine", {"init_info": {"a": 1}}), ("start_weight_update", told),
        ("update_weights", {"update_info": {"b": 2}}), ("finish_weight_update", {"weight_version": "mark"}),
    ]  # fmt: skip


@pytest.mark.slow
def test_vllm_s_own_sender_is_begun_once_and_told_who_takes_part(
    servers: dict[str, EngineServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its package is a stand-in: this pins what etude calls, not what vLLM does."""
    calls: list[Any] = []

    class Stand:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, item: str) -> Any:
            def call(*args: Any, **told: Any) -> Any:
                calls.append((f"{self.name}.{item}", args, told))
                return Stand(item)

            return Stand("factory") if item == "WeightTransferTrainerFactory" else call

    monkeypatch.setattr(vllm_transfer.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(vllm_transfer.importlib, "import_module", lambda name: Stand(name.rpartition(".")[2]))
    server, policy = servers["vllm"], random_policy(seed=11)
    server.routes["GET /get_world_size"] = lambda _: {"world_size": 2}
    engine = connected(server, "vllm+nccl")
    for _ in range(2):
        engine.dialect.give(policy, "a mark")
    names = [name for name, _, _ in calls]
    assert names == ["nccl_engine.NCCLTrainerInitInfo", "weight_transfer.HTTPVLLMWeightSyncClient",
                     "weight_transfer.ModuleSource", "factory.trainer_init", "trainer_init.send_weights",
                     "trainer_init.send_weights"]  # fmt: skip
    told = calls[0][2]
    assert (told["rank"], told["world_size"], told["packed"], told["master_address"]) == (0, 3, True, "127.0.0.1")
    assert calls[1][1] == (server.url,) and server.engine.name == "a mark"


# What cannot be asked for


@pytest.mark.slow
def test_what_no_engine_sends_is_refused(servers: dict[str, EngineServer]) -> None:
    policy = random_policy()
    mark = mark_of(policy)
    own, vllm, sglang = (connected(servers[kind], kind).converse(policy, mark) for kind in KINDS)
    for conversation, changes, sentence in (
        (own, {"hidden": True}, "it sends no hidden states"),
        (vllm, {"entropy": True}, "it sends no entropies"),
        (vllm, {"fork_temperature": 1.2}, "it has one temperature"),
        (sglang, {"top_p": 0.9}, "before top-k and top-p, which are not those of what was drawn"),
    ):
        with pytest.raises(ConfigError, match=f"cannot sample so: .*{sentence}.*Leave out --engine"):
            conversation.sample(conversation.open([[5]]), dataclasses.replace(HOW, **changes), draws(1))
    with pytest.raises(ConfigError, match="no engine sends logits"):
        own.following(own.open([[5]]), 1)
    with pytest.raises(ConfigError, match="A prompt must have from 1 to 127 tokens"):
        own.sample(own.open([[]]), HOW, draws(1))


# Where it is


def test_where_an_engine_is_is_one_word() -> None:
    assert address_of("http://127.0.0.1:8000") == Address("native", "127.0.0.1", 8000)
    assert address_of("vllm+ipc:http://[::1]:80/") == Address("vllm", "::1", 80, "ipc")
    assert address_of("public sglang:http://203.0.113.5:9").url == "http://203.0.113.5:9"
    assert Address("native", "::1", 5).url == "http://[::1]:5"
    for wrong in ("vllm", "http://127.0.0.1", "127.0.0.1:80", "tgi:http://127.0.0.1:8", "vllm:https://127.0.0.1:8",
                  "", "http://127.0.0.1:8/v1", "http://127.0.0.1:x", ":http://a:8", "http://u@a:8"):  # fmt: skip
        with pytest.raises(ConfigError, match="--engine must be native:http"):
            address_of(wrong)
    for wrong in ("vllm+tcp:http://127.0.0.1:8", "native+nccl:http://127.0.0.1:8"):
        with pytest.raises(ConfigError, match="Weights travel to an engine by files"):
            address_of(wrong)


def test_strangers_are_kept_out_unless_words_let_them_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for inside in ("127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "fd00::1", "localhost"):
        assert check_host(inside) == inside
    for outside in ("0.0.0.0", "::", "8.8.8.8", "203.0.113.5", "2001:4860:4860::8888", "239.0.0.1"):
        with pytest.raises(ConfigError, match=f"can be reached from outside.*'public {outside}'"):
            check_host(outside)
        with pytest.raises(ConfigError, match="can be reached from outside"):
            RemoteEngine(Address("native", outside, 9))
        with pytest.raises(ConfigError, match="can be reached from outside"):
            EngineServer(None, outside)  # type: ignore[arg-type]
        assert check_host(f"public {outside}") == outside
    both = [(0, 0, 0, "", ("10.0.0.1", 0)), (0, 0, 0, "", ("8.8.8.8", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda host, port: both)
    with pytest.raises(ConfigError, match=r"An engine at both\.example can be reached from outside"):
        check_host("both.example")  # one of its addresses is enough
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="is not known here"):
        check_host("no such host")


@pytest.mark.slow
def test_the_server_answers_to_its_own_names_in_json_and_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sesame")
    with serving(ServedEngine(random_policy())) as server:
        host, port = server.server_address[:2]

        def ask(method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
            connection = HTTPConnection(str(host), int(port), timeout=5)
            told = {"Authorization": "Bearer sesame", "Content-Type": "application/json"}
            connection.request(method, path, body, {**told, **{k.replace("_", "-"): v for k, v in headers.items()}})
            with connection.getresponse() as answer:
                found = answer.status, json.loads(answer.read())
            connection.close()
            return found[0], found[1].get("error", {}).get("message", "")

        assert ask("GET", "/health")[0] == 200
        assert ask("GET", "/health", Host="evil.example")[0] == 403
        assert ask("GET", "/health", Host="localhost:1")[0] == 200
        assert ask("GET", "/health", Authorization="Bearer other")[0] == 401
        assert ask("POST", "/pause", "a=1", Content_Type="application/x-www-form-urlencoded")[0] == 415
        assert ask("POST", "/pause", None, Content_Type="text/plain")[0] == 415
        assert ask("POST", "/v1/completions", "{")[0] == 400
        assert ask("POST", "/v1/completions", "{}") == (400, "What was asked is of another form (KeyError: 'etude').")
        assert ask("GET", "/etc/passwd")[0] == 404
        assert connected(server).greeting.tags
        monkeypatch.setenv(KEY, "other")
        with pytest.raises(Refused, match="asks for the key that is in ETUDE_ENGINE_KEY"):
            connected(server)


@pytest.mark.slow
def test_a_connection_that_went_stale_is_opened_again_and_statuses_are_kinds_of_errors() -> None:
    with serving(ServedEngine(random_policy())) as server:
        port = server.server_address[1]
        wire = Wire(address_of(server.url), 5.0)
        assert wire.get("/is_paused") == {"is_paused": False}
        wire._idle[0].sock.shutdown(2)  # as the other side ends one that was idle
        assert wire.get("/is_paused") == {"is_paused": False}
        server.routes["POST /full"] = lambda _: (_ for _ in ()).throw(Full("No room"))
        with pytest.raises(NoRoom, match="with 503: No room") as caught:
            wire.post("/full")
        assert caught.value.after == 1.0
        wire.close()
    with pytest.raises(EngineGone, match=f"http://127.0.0.1:{port} does not answer"):
        wire.get("/is_paused")
    assert SHORT.restarts == 2 and Answer([], {}, "").mark == ""
