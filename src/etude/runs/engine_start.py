"""Starting an engine: our own in this process, vLLM or SGLang from an environment of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etude.core.errors import ConfigError
from etude.policies.engines.addresses import KINDS, TRANSPORTS, Kind, check_host
from etude.policies.engines.dialects import known
from etude.policies.engines.sglang import VERSIONS as SGLANG
from etude.policies.engines.vllm import VERSIONS as VLLM

if TYPE_CHECKING:
    from etude.experience.engine_server import EngineServer

ASK = "from importlib.metadata import version; print(version({!r}))"
PACKAGES = {"vllm": ("vLLM", VLLM), "sglang": ("SGLang", SGLANG)}
OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Of this environment, none of which is the engine's."""


@dataclass(frozen=True)
class Start:
    """How an engine is started.

    Args:
        host: of this machine or a private network; others in words. env: the folder of the engine's environment.
        rows: of one request at most (etude's own). transport: how weights will travel (vLLM). also: further flags.
    """

    kind: Kind
    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8000
    env: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    rows: int | None = None
    transport: str = "files"
    also: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"An engine is {', '.join(KINDS)}, got {self.kind!r}.")
        check_host(self.host)
        if self.transport not in TRANSPORTS or (self.transport != "files" and self.kind != "vllm"):
            raise ConfigError(f"--transport must be files, or with vllm nccl or ipc; got {self.transport!r}.")
        if (self.kind == "native") == (self.env is not None):
            wants = "is etude's own, and has no environment: leave out --env"
            lacks = "has an environment of its own, since it cannot share etude's: say where, as in --env ~/envs/vllm"
            raise ConfigError(f"The engine {self.kind} {wants if self.kind == 'native' else lacks}.")


class Command(NamedTuple):
    """What is run, and with which variables."""

    arguments: list[str]
    variables: dict[str, str]


def native(start: Start) -> EngineServer:
    """etude's own engine, not serving yet."""
    import torch

    from etude.experience.engine import ServedEngine
    from etude.experience.engine_server import EngineServer
    from etude.policies.language import LanguagePolicy
    from etude.runs.worlds.language import threads

    policy = LanguagePolicy.load(start.model, device=start.device, dtype=start.dtype)
    torch.set_num_threads(start.threads or threads(policy))
    try:
        return EngineServer(ServedEngine(policy, start.rows), start.host, start.port)
    except OSError as error:
        raise ConfigError(f"Nothing can listen at {start.host}:{start.port}: {error.strerror}.") from None


def command(start: Start, given: Mapping[str, str]) -> Command:
    """The command of an engine in its own environment, whose version is one that is known.

    Args:
        given: the variables of this process.

    Raises: ConfigError where the environment has no such engine, or another version; for a model that is no folder
    and no name of the hub.
    """
    from etude.policies.loading import resolve

    home = Path(str(start.env)).expanduser()
    python = home / "bin" / "python"
    name, table = PACKAGES[start.kind]
    variables = {k: v for k, v in given.items() if k not in OURS}
    known(name, _version(python, start.kind, variables), table)
    if ":" in start.model:
        raise ConfigError(
            f"{name} loads a folder or a model of the hub, and {start.model!r} is made by etude: save it."
        )
    where = ["--host", check_host(start.host), "--port", str(start.port)]
    dtype = [] if start.dtype == "auto" else ["--dtype", start.dtype]
    model, also = resolve(start.model), shlex.split(start.also)
    if start.kind == "sglang":
        told = ["-m", "sglang.launch_server", "--model-path", model, *where, *dtype, "--sampling-defaults", "openai"]
        return Command([str(python), *told, *also], variables)
    variables["VLLM_SERVER_DEV_MODE"] = "1"
    sent: Sequence[str] = ()
    if start.transport != "files":
        sent = ["--weight-transfer-config", f'{{"backend": "{start.transport}"}}']
        if start.transport == "ipc":
            variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    told = ["serve", model, *where, *dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    return Command([str(home / "bin" / "vllm"), *told, *sent, *also], variables)


def _version(python: Path, package: str, variables: Mapping[str, str]) -> str:
    """Of a package in another environment."""
    if not python.is_file():
        raise ConfigError(f"There is no Python in {python.parent}: --env is the folder of a virtual environment.")
    try:
        asked = subprocess.run(
            [str(python), "-c", ASK.format(package)], capture_output=True, text=True, timeout=60, env=dict(variables)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{python} could not be asked for its {package} ({type(error).__name__}).") from None
    if asked.returncode:
        raise ConfigError(f"The environment of {python} has no {package}: install it there.")
    return asked.stdout.strip()


def become(run: Command) -> None:
    """Replace this process by the engine, so that what ends the one ends the other."""
    os.execve(run.arguments[0], run.arguments, run.variables)
