"""vLLM's routes, as its documentation and source say them; vLLM itself was not run with this file.

- `POST /v1/completions` takes token ids as `prompt`; with `return_token_ids` it says those of the answer, `logprobs` 0
  gives the sampled token's log-probability alone, and `seed` has 64 bits with a sign
  (`entrypoints/openai/completion/protocol.py`, commit 002032ee2b18).
- `--logprobs-mode processed_logprobs` says log-probabilities after temperature, top-k and top-p; the default,
  `raw_logprobs`, before them (`config/model.py`, commit 0052a5b81898).
- `GET /version` (`version`) and `GET /v1/models` (`max_model_len`): the OpenAI server.
- The routes of weights are there with `VLLM_SERVER_DEV_MODE=1` (documentation of 0.16, 0.29 and 0.32).
- `POST /pause?mode=wait`, `POST /resume`: `entrypoints/serve/dev/rlhf/api_router.py`, commit 0100a2129224.
- `POST /collective_rpc` with `reload_weights` and `weights_path` reads weights from a folder; without a path it gave
  cached ones in 0.14 (issue 32718).
- `init_weight_transfer_engine`, `start_weight_update`, `update_weights`, `finish_weight_update`: pull request 39212, in
  use by others from 0.22 on; 0.16 to 0.21 had two of them. `start_weight_update` takes `is_checkpoint_format` up to
  0.23, nothing from 0.24 on (44353).
- Trainer-side engines with one `send_weights()`, which take any object with these four as their client, and are told
  `packed` at init: 0.28 on (50902; documentation of 0.29 and 0.32).
- A name for weights (`finish_weight_update`, `POST /update_weight_version`), told by `GET /weight_info`: 49040. In
  which release it came is not known here, so the route is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from etude.policies.engines.dialects import (
    Asked,
    Greeting,
    Said,
    Turn,
    ask_each,
    known,
    model_folder,
    plain,
    whole,
    why_ended,
)
from etude.policies.engines.wire import Refused, Wire
from etude.policies.sampling import Completion, Sampling

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

VERSIONS = (("0.22", "0.33"),)
NO_FORMAT = (0, 24)
"""From this version on `start_weight_update` is told nothing."""
TOGETHER = 64
"""Requests at a time; the engine puts them into batches of its own."""


class VLLM:
    """Asks vLLM for one row in each request, many requests at a time, weights as files."""

    name: ClassVar[str] = "vLLM"
    setting: ClassVar[str] = "--gpu-memory-utilization or --max-num-seqs"

    def __init__(self, wire: Wire) -> None:
        self.wire, self.together = wire, TOGETHER
        self.numbers: tuple[int, ...] = ()
        self.model: str | None = None
        self.tags = False

    def greet(self) -> Greeting:
        """Raises ConfigError for a version that the table does not have."""
        version = str(self.wire.get("/version").get("version", ""))
        self.numbers = known(self.name, version, VERSIONS)
        models = self.wire.get("/v1/models").get("data") or [{}]
        self.model, context = models[0].get("id"), models[0].get("max_model_len")
        self.tags = self._tag() is not None
        return Greeting(version, context, self.tags)

    def lacks(self, sampling: Sampling) -> str | None:
        return plain(sampling)

    # Rows

    def complete(self, rows: Sequence[Asked], turn: Turn) -> Said:
        before = self.held()
        said = ask_each(
            rows, lambda r: self._one(r, turn), self.together, lambda r, answer: read(r, turn, answer["choices"][0])
        )
        said.marks = {mark for mark in (before, self.held()) if mark is not None}
        return said

    def _one(self, row: Asked, turn: Turn) -> Any:
        most = min(row.room, turn.sampling.max_tokens)
        return self.wire.post(
            "/v1/completions",
            {**parameters(turn, self.model), "prompt": list(row.tokens), "max_tokens": most, "seed": row.key},
        )

    # Weights

    def give(self, policy: LanguagePolicy, mark: str) -> None:
        with model_folder(policy) as folder:
            self.wire.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        self._name(mark)

    def _name(self, mark: str) -> None:
        """Name the weights that it has, where it keeps a name."""
        if self.tags:
            self.wire.post("/update_weight_version", {"new_version": mark})

    def held(self) -> str | None:
        return self._tag() if self.tags else None

    def pause(self) -> None:
        self.wire.post("/pause?mode=wait")

    def resume(self) -> None:
        self.wire.post("/resume")

    def _tag(self) -> str | None:
        try:
            return str(self.wire.get("/weight_info")["weight_version"])
        except Refused as error:
            if error.status == 404:
                return None
            raise

    # The four phases of vLLM's own transfer; its trainer-side engines take any object with these

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Tell the engine how weights will come."""
        self.wire.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin an update."""
        old = self.numbers and self.numbers[:2] < NO_FORMAT
        self.wire.post("/start_weight_update", {"is_checkpoint_format": True} if old else {})

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Take weights, all or some of them."""
        self.wire.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update; only then is it what is sampled from, under this name."""
        named = {} if weight_version is None or not self.tags else {"weight_version": weight_version}
        self.wire.post("/finish_weight_update", named)


def parameters(turn: Turn, model: str | None) -> dict[str, Any]:
    """How tokens are drawn, in vLLM's words."""
    how = turn.sampling
    return {
        **({} if model is None else {"model": model}), "temperature": how.temperature, "top_p": how.top_p,
        "top_k": how.top_k, "stop": list(how.stop), "stop_token_ids": list(turn.end_ids), "logprobs": 0,
        "return_token_ids": True, "include_stop_str_in_output": True, "skip_special_tokens": False,
    }  # fmt: skip


def read(row: Asked, turn: Turn, choice: dict[str, Any]) -> Completion | None:
    """The completion that a choice is; None for one that was ended from outside."""
    if choice.get("finish_reason") in (None, "abort"):
        return None
    tokens, logp = choice.get("token_ids") or [], (choice.get("logprobs") or {}).get("token_logprobs") or []
    stopped, reason = choice["finish_reason"] == "stop", choice.get("stop_reason")
    stop = why_ended(row, turn, tokens, stopped, stopped and isinstance(reason, str))
    return whole(row, turn, tokens, logp, stop)
