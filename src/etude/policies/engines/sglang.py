"""SGLang's routes, as its documentation and source say them; SGLang itself was not run with this file.

- `POST /generate` takes `input_ids`, `return_logprob` and `sampling_params` (`max_new_tokens`, `stop_token_ids`,
  `top_k` -1 for none, `no_stop_trim`), and answers `output_ids` and `meta_info` with `output_token_logprobs`
  (log-probability, token, text) and `finish_reason` (`type`, `matched`) (`docs/basic_usage/sampling_params.md`, commit
  0a0dd3590799).
- `meta_info.weight_version`, `GET /get_weight_version`, `GET /get_server_info` (`version`), which newer documentation
  calls `/server_info`, and `POST /update_weights_from_disk` (`model_path`, `weight_version`, `flush_cache`), which
  answers `success` and `message`: `srt/entrypoints/http_server.py`, commit 0025436eab05.
- Log-probabilities are after temperature and before top-k and top-p, unless `SGLANG_RETURN_ORIGINAL_LOGPROB` is set:
  then before temperature, too (`srt/layers/sampler.py`, as others quote it).
- `sampling_seed` is heeded with `--enable-deterministic-inference`.
- Generation is paused (`POST /pause_generation`) before an update and goes on (`POST /continue_generation`) behind it
  (`docs/advanced_features/sglang_for_rl.md`, commit 067bfe936626).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from etude.core.errors import InvariantError
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
from etude.policies.engines.vllm import TOGETHER
from etude.policies.engines.wire import Refused, Wire
from etude.policies.sampling import Completion, Sampling

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

VERSIONS = (("0.5.4", "0.5.23"),)
SEEDS = (1 << 31) - 1
"""Largest seed that is sent: what is known to be taken is an int of 32 bits."""


class SGLang:
    """Asks SGLang for one row in each request, many requests at a time, weights as files."""

    name: ClassVar[str] = "SGLang"
    setting: ClassVar[str] = "--mem-fraction-static or --max-running-requests"

    def __init__(self, wire: Wire) -> None:
        self.wire, self.together = wire, TOGETHER

    def greet(self) -> Greeting:
        """Raises ConfigError for a version that the table does not have."""
        try:
            said = self.wire.get("/server_info")
        except Refused as error:
            if error.status != 404:
                raise
            said = self.wire.get("/get_server_info")
        version = str(said.get("version", ""))
        known(self.name, version, VERSIONS)
        return Greeting(version, said.get("context_length"), True)

    def lacks(self, sampling: Sampling) -> str | None:
        if sampling.truncates_distribution:
            return "it says log-probabilities before top-k and top-p, which are not those of what was drawn"
        return plain(sampling)

    def complete(self, rows: Sequence[Asked], turn: Turn) -> Said:
        marks = set[str]()

        def read(row: Asked, answer: Any) -> Completion | None:
            marks.add(str(answer["meta_info"].get("weight_version")))
            return _read(row, turn, answer)

        said = ask_each(rows, lambda row: self._one(row, turn), self.together, read)
        said.marks = marks
        return said

    def _one(self, row: Asked, turn: Turn) -> Any:
        how = turn.sampling
        return self.wire.post(
            "/generate", {"input_ids": list(row.tokens), "return_logprob": True, "sampling_params": {
                "temperature": how.temperature, "max_new_tokens": min(row.room, how.max_tokens), "stop": list(how.stop),
                "stop_token_ids": list(turn.end_ids), "top_p": 1.0, "top_k": -1, "no_stop_trim": True,
                "skip_special_tokens": False, "sampling_seed": row.key & SEEDS,
            }},
        )  # fmt: skip

    def give(self, policy: LanguagePolicy, mark: str) -> None:
        with model_folder(policy) as folder:
            asked = {"model_path": str(folder), "weight_version": mark, "flush_cache": True}
            said = self.wire.post("/update_weights_from_disk", asked)
        if not said.get("success"):
            raise InvariantError(f"SGLang did not take the weights {mark}: {said.get('message')}")

    def held(self) -> str | None:
        return str(self.wire.get("/get_weight_version")["weight_version"])

    def pause(self) -> None:
        self.wire.post("/pause_generation", {"mode": "abort"})

    def resume(self) -> None:
        self.wire.post("/continue_generation")


def _read(row: Asked, turn: Turn, answer: dict[str, Any]) -> Completion | None:
    """The completion that an answer is; None for one that was ended from outside."""
    about = answer["meta_info"]
    ended = about.get("finish_reason") or {}
    if ended.get("type") not in ("stop", "length"):
        return None
    tokens = answer.get("output_ids") or []
    stopped = ended["type"] == "stop"
    stop = why_ended(row, turn, tokens, stopped, stopped and isinstance(ended.get("matched"), str))
    return whole(row, turn, tokens, [entry[0] for entry in about.get("output_token_logprobs") or []], stop)
