"""`etude engine`: who samples beside a run."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

engine = App(name="engine", help="Who samples beside a run: etude's own engine, vLLM or SGLang, over HTTP.")


@engine.command
def start(
    kind: Literal["native", "vllm", "sglang"] = "native", *, model: str = "tiny", host: str = "127.0.0.1",
    port: int = 8000, env: str | None = None, device: str = "auto", dtype: str = "auto", threads: int | None = None,
    rows: int | None = None, transport: Literal["files", "nccl", "ipc"] = "files", also: str = "",
) -> None:  # fmt: skip
    """Start an engine here, and let it work until it is stopped: `etude train ... --engine KIND:http://HOST:PORT`.

    Parameters
    ----------
    kind
        native is etude's own; vllm and sglang are started from an environment of their own (--env).
    model
        What the run trains: the same --model. The run sends its weights, so only its shape and tokenizer matter.
    host
        An address of this machine or a private network. Who reaches it can change the weights: others are refused
        unless they are said with the word in front, as in 'public 203.0.113.5'.
    port
        0 takes a free one (native).
    env
        The folder of the engine's environment, as in ~/envs/vllm.
    device
        cpu, cuda, ...; by default the GPU if there is one (native).
    dtype
        Of the weights, as the run's own --dtype: in another type log-probabilities differ.
    threads
        CPU threads; by default one for small models, all cores for others (native).
    rows
        Rows of one request at most; by default as many as are asked for (native).
    transport
        How weights will travel: files, or with vllm nccl or ipc.
    also
        Further flags of vLLM or SGLang, as in --also '--tensor-parallel-size 2'.
    """
    import os

    from etude.runs import engine_start

    told = engine_start.Start(kind, model, host, port, env, device, dtype, threads, rows, transport, also)
    if kind != "native":
        engine_start.become(engine_start.command(told, os.environ))
        return
    with engine_start.native(told) as server:
        print(f"The engine is at {server.url}. Train with it: etude train grpo --engine {server.url}", flush=True)
        server.serve_forever()


@engine.command
def show(address: str) -> None:
    """What answers at an address: its version, its context, which weights it has.

    Parameters
    ----------
    address
        As for `etude train --engine`: native:http://127.0.0.1:8000, vllm:http://..., sglang:http://...
    """
    from etude.runs.engines import connect

    found = connect(address)
    context = "it does not say" if found.greeting.context is None else str(found.greeting.context)
    print(f"{found.dialect.name} {found.greeting.version} at {found.address.url}")
    print(f"  context: {context}")
    print(f"  weights: {found.dialect.held() or 'it does not say which'}")
