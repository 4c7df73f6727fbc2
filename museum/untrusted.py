"""Files and texts of others that do more than they should."""

from __future__ import annotations

import copy
import json
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from etude_museum.tiny import SMALL, Letters, policy
from transformers.utils.logging import disable_progress_bar

from etude.core.episodes import Problem
from etude.evaluation.exhibits import Exhibit, Report
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.runtime.checkpoints import COMPLETE, newest, save_json, write

given: dict[str, Any] = {}
"""What the attacker changed."""
ran: list[str] = []
"""Code of others that was run."""


@contextmanager
def giving(**faulty: Any) -> Iterator[None]:
    """A file or a text with something else in it."""
    given.update(faulty)
    ran.clear()
    try:
        yield
    finally:
        given.clear()


def note(what: str) -> None:
    """What an attack does."""
    ran.append(what)


class Attack:
    """Runs code when it is read."""

    def __reduce__(self) -> Any:
        return note, ("pickle",)


def loaded() -> Iterator[dict[str, float]]:
    """A folder with a model is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        disable_progress_bar()
        policy().save(Path(folder))
        if given.get("weights") == "pickle":
            for path in Path(folder).glob("*.safetensors"):
                path.unlink()
            (Path(folder) / "pytorch_model.bin").write_bytes(pickle.dumps(Attack()))
        if "code" in given:
            config = json.loads((Path(folder) / "config.json").read_text())
            own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnModel"}
            (Path(folder) / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": own}))
            (Path(folder) / "own.py").write_text("import etude_museum.untrusted as u\nu.note('own code')\n")
        LanguagePolicy.load(folder, device="cpu")
        yield {"ran": float(len(ran))}


TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
SPY = "{{ messages.__class__.__base__.__subclasses__() }}"
"""Where code begins that is hidden in a template: every class of the process, for what it can do."""


class Talks(Letters):
    """The same, asked in conversations."""

    id: ClassVar[str] = "talks"

    def problems(self, split: str) -> list[Problem]:
        return [replace(p, prompt=[{"role": "user", "content": str(p.prompt)}]) for p in super().problems(split)]


def talked() -> Iterator[Mapping[str, float]]:
    """A step of conversations, written by the template that came with the model."""
    asked = policy()
    asked.tokenizer = copy.deepcopy(asked.tokenizer)
    asked.tokenizer.chat_template = given.get("template", "") + TEMPLATE
    yield LanguageLoop(SMALL, Talks(), asked, seed=0, steps=10).step().metrics


def resumed() -> Iterator[str]:
    """The newest checkpoint of a run is read."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkpoints"
        root.mkdir()
        made = write(root, 1, lambda where: save_json(where / "state.json", {"finished": 1}))
        record = json.loads((made / COMPLETE).read_text())
        if "path" in given:
            record["files"][given["path"]] = record["files"].pop("state.json")
            (made / COMPLETE).write_text(json.dumps(record))
        if "torn" in given:
            (made / "state.json").write_text('{"finished')
        yield from newest(root)[1]


exhibits = (
    Exhibit(
        id="pickle-in-a-model",
        kind="security",
        report=Report(
            thread="DLR-RM/stable-baselines3#2281",
            title="Arbitrary Code Execution in stable-baselines3 model/replay-buffer loading via ungated pickle",
        ),
        says="Loading a policy, a replay or the statistics of a normaliser that somebody shared runs whatever code is "
        "in the file.",
        mechanism="the weights of a model are a pickle that calls a function.",
        inject=lambda: giving(weights="pickle"),
        run=loaded,
        expect="no file named model.safetensors",
    ),
    Exhibit(
        id="model-with-code",
        kind="security",
        report=Report(
            thread="xorbitsai/inference#5023",
            title="Remote Code Execution via Hardcoded trust_remote_code=True in Model Loaders",
        ),
        says="Every loader trusted the code that comes with a model: who may name a model runs code on the server.",
        mechanism="the model's configuration names a class in a file beside it.",
        inject=lambda: giving(code=True),
        run=loaded,
        expect="runs code of its own from the hub, which etude refuses",
    ),
    Exhibit(
        id="template-with-code",
        kind="security",
        report=Report(
            thread="guidance-ai/guidance#1475",
            title="fix: sandbox chat template rendering to prevent RCE via poisoned models",
            pull=True,
        ),
        says="The chat template in a model's files was rendered outside of the sandbox that it is written for: whoever "
        "shares a model runs code on every machine that loads it.",
        mechanism="the template asks for the classes of the process.",
        inject=lambda: giving(template=SPY),
        run=talked,
        expect="access to attribute '__class__' of 'list' object is unsafe",
    ),
    Exhibit(
        id="path-out-of-the-folder",
        kind="security",
        report=Report(
            thread="PaddlePaddle/Paddle#76899",
            title="[SECURITY] Critical Zip Slip / Tar Slip (Path Traversal) Vulnerabilities in paddle.hub and "
            "paddle.utils.download",
        ),
        says="Names in the archive of a model led out of its folder, so loading it wrote files anywhere.",
        mechanism="the list of a checkpoint's files names one three folders up.",
        inject=lambda: giving(path="../../../etc/passwd"),
        run=resumed,
        expect="is missing or unreadable",
    ),
    Exhibit(
        id="torn-checkpoint",
        kind="resume",
        report=Report(
            thread="vllm-project/speculators#739",
            title="fix(train): crash-safe checkpoints — completeness marker gating resume",
            pull=True,
        ),
        says="A run that was killed while it saved left a folder that looked like its newest checkpoint, and the next "
        "start read what was in it.",
        mechanism="one file of the newest checkpoint ends in the middle.",
        inject=lambda: giving(torn=True),
        run=resumed,
        expect="has \\d+ bytes instead of \\d+",
    ),
)
