"""etude's own server: vLLM's routes, and beside them what makes a run with it the run without it.

    whole turns   rows of a turn come in one request, so that they are computed together as they would be here
    draws         each row says where its random numbers come from
    sessions      rows stay open between turns
    marks         an answer says the fingerprint of the weights that it was computed with, bit by bit
    file          a backend of the four phases: a safetensors file, taken only with the mark that was told

Its version is etude's own, which must be the same on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from etude.core.errors import ConfigError
from etude.policies.engines.dialects import Asked, Greeting, Said, Turn
from etude.policies.engines.vllm import VLLM, parameters, read
from etude.policies.engines.wire import Wire
from etude.policies.sampling import Sampling
from etude.runtime.environment import version

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

PLAIN = tuple(f.name for f in dataclasses.fields(Sampling) if f.name not in ("within", "tilt", "tilts", "stop"))
"""Fields of `Sampling` that travel as they are."""


class Native(VLLM):
    """Asks etude's own server."""

    name: ClassVar[str] = "etude"
    setting: ClassVar[str] = "--rows"

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.together = 1 << 30

    def greet(self) -> Greeting:
        """Raises ConfigError for a server that is none of etude's, or of another version."""
        said = self.wire.get("/version")
        if said.get("engine") != "etude":
            raise ConfigError(
                f"The engine at {self.wire.address.url} is not etude's own: it says {said!r}. Name its kind, as in "
                f"--engine vllm:{self.wire.address.url}."
            )
        if said["version"] != (own := version("etude")):
            raise ConfigError(
                f"The engine at {self.wire.address.url} is etude {said['version']}, and this is {own}: take "
                "the same version on both sides."
            )
        self.model, self.tags = said["model"], True
        return Greeting(str(said["version"]), said["context"], True)

    def lacks(self, sampling: Sampling) -> str | None:
        if sampling.within is not None:
            return "tokens that are allowed one by one are not asked for over HTTP"
        if sampling.tilt is not None:
            return "logits that are tilted token by token are not asked for over HTTP"
        return "it sends no hidden states" if sampling.hidden else None

    def complete(self, rows: Sequence[Asked], turn: Turn) -> Said:
        how, left = {name: getattr(turn.sampling, name) for name in PLAIN}, [r.number for r in rows[self.together :]]
        rows = rows[: self.together]
        own = {
            "session": turn.session, "rows": [r.number for r in rows], "others": [*turn.others, *left],
            "draws": [r.key for r in rows], "begun": [r.begun for r in rows], "last": turn.last, "sampling": how,
        }  # fmt: skip
        body = {"prompt": [list(r.tokens) for r in rows], "max_tokens": turn.sampling.max_tokens, "etude": own}
        answer = self.wire.post("/v1/completions", {**parameters(turn, self.model), **body})
        choices, beside = answer["choices"], answer["etude"]
        said = Said({}, {beside["mark"]}, beside["work"])
        for row, choice, entropy in zip(rows, choices, beside["entropy"], strict=True):
            if (completion := read(row, turn, choice)) is not None:
                completion.entropy = entropy
                said.completions[row.number] = completion
        return said

    def give(self, policy: LanguagePolicy, mark: str) -> None:
        from etude.policies.snapshots import Snapshot

        snapshot = Snapshot(sampled_weights(policy), policy.version)
        try:
            self.init_weight_transfer_engine({"backend": "file"})  # it may be another than before
            self.start_weight_update()
            self.update_weights({"file": str(snapshot.file), "mark": mark})
            self.finish_weight_update(mark)
        finally:
            snapshot.close()


def sampled_weights(policy: LanguagePolicy) -> dict[str, Any]:
    """All weights that the policy samples from, by the names that a plain model of its kind has."""
    return {name: p.detach() for name, p in policy.merged().named_parameters()}
