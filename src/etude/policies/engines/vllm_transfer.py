"""Weights to vLLM from one device to another: its own trainer-side engines, with NCCL or CUDA IPC. Never run here.

The engine of the trainer is a class of vLLM's package, so that package must be importable where the run is: etude
installed into the engine's environment, not the other way round. Everywhere else weights travel as files.

- `WeightTransferTrainerFactory.trainer_init(init_info=..., client=..., source=ModuleSource(model))`, then one
  `send_weights()` for each update, which goes through start, update and finish (0.28 on;
  `docs/training/weight_transfer/README.md`, commit 031800765ac1, and the documentation of 0.29 and 0.32).
- `NCCLTrainerInitInfo(master_address, master_port, world_size, rank=0, packed=True)`; the world is the trainer and
  `GET /get_world_size` workers (`nccl.md`, commit 030ea52effcb).
- `IPCTrainerInitInfo(rank=0, packed=...)`; both on the same GPU, and the server with
  `VLLM_ALLOW_INSECURE_SERIALIZATION=1`, since handles are pickled by vLLM's own client (`ipc.md`).

`benchmarks/gpu_async.py` runs it where there is a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.policies.engines.dialects import Greeting
from etude.policies.engines.vllm import VLLM
from etude.policies.engines.wire import Wire

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

SENDS = (0, 28)
"""The first version with these engines of the trainer."""
HOME = "vllm.distributed.weight_transfer"


class TransferringVLLM(VLLM):
    """vLLM that takes weights by NCCL or IPC.

    Args:
        transport: 'nccl' or 'ipc', as the server's `--weight-transfer-config` says.
    """

    def __init__(self, wire: Wire, transport: str) -> None:
        super().__init__(wire)
        self.transport = transport
        self.sender: Any = None

    def greet(self) -> Greeting:
        """Raises ConfigError for a version without engines of the trainer, or where vLLM cannot be imported."""
        greeting = super().greet()
        self.sender = None
        if self.numbers[:2] < SENDS:
            raise ConfigError(
                f"vLLM takes weights by {self.transport} from a trainer's engine from 0.28 on, and this is "
                f"{greeting.version}: leave out +{self.transport}, and weights travel as files."
            )
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                f"Weights by {self.transport} are sent by vLLM's own package, which is not installed beside etude: "
                f"install etude into vLLM's environment, or leave out +{self.transport}, and weights travel as files."
            )
        return greeting

    def give(self, policy: LanguagePolicy, mark: str) -> None:
        if policy.has_adapter:
            raise ConfigError(
                f"Weights by {self.transport} are those of a whole model, and this run trains an adapter: leave out "
                f"+{self.transport}, and it travels folded in, as files."
            )
        if self.sender is None:
            self.sender = self._begun(policy)
        self.sender.send_weights()
        self._name(mark)

    def _begun(self, policy: LanguagePolicy) -> Any:
        """The engine of the trainer, which has met that of the server."""
        transfer = importlib.import_module(HOME)
        told: dict[str, Any] = {"rank": 0, "packed": True}
        if self.transport == "nccl":
            workers = int(self.wire.get("/get_world_size")["world_size"])
            told |= {"master_address": self._own_host(), "master_port": _free_port(), "world_size": 1 + workers}
            kind = importlib.import_module(f"{HOME}.nccl_engine").NCCLTrainerInitInfo
        else:
            kind = importlib.import_module(f"{HOME}.ipc_engine").IPCTrainerInitInfo
        return transfer.WeightTransferTrainerFactory.trainer_init(
            init_info=kind(**told), client=transfer.HTTPVLLMWeightSyncClient(self.wire.address.url),
            source=transfer.ModuleSource(policy.model),
        )  # fmt: skip

    def _own_host(self) -> str:
        """The address under which the engine reaches this process."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.wire.address.host, self.wire.address.port))  # nothing is sent
            return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
