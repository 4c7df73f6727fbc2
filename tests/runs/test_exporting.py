"""Exported policies: plain Hugging Face folders, adapters, merged models, and what is uploaded with them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import etude
from etude.core.errors import ConfigError
from etude.policies.adapters import Adapter
from etude.policies.language import LanguagePolicy

SMALL = {"problems": 2, "experience.size": 4, "optimizer.lr": 1e-2}
TOLD: dict[str, Any] = {"steps": 2, "evaluate": 2, "evaluate_samples": 2, "quiet": True, "set": SMALL}
IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return etude.train("grpo", out=tmp_path_factory.mktemp("whole") / "run", **TOLD).folder


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapted")
    return etude.train("grpo", out=root / "run", adapter=Adapter(rank=2), **TOLD).folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS).logits
    return found


@pytest.mark.slow
def test_a_whole_model_is_a_plain_folder(whole: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert etude.export(whole, tmp_path / "model") == tmp_path / "model"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    kept = LanguagePolicy.load(str(whole / "checkpoints" / "step-2" / "model"), device="cpu")
    assert torch.equal(logits(model), logits(kept.model))
    assert AutoTokenizer.from_pretrained(tmp_path / "model").decode(kept.encode("f1:ab")) == "f1:ab"
    with pytest.raises(ConfigError, match=r"model is there already: name a folder that is empty"):
        etude.export(whole, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"holds the whole model, and no adapter to fold into it: leave out --merge"):
        etude.export(whole, tmp_path / "other", merge=True)
    with pytest.raises(ConfigError, match=r"--member is for populations of control"):
        etude.export(whole, tmp_path / "other", member=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_alone_and_merged(adapted: Path, tmp_path: Path) -> None:
    """The merged model, in plain transformers, says what peft says with the adapter on the base."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    etude.export(adapted, tmp_path / "adapter")
    etude.export(adapted, tmp_path / "merged", merge=True)
    assert not list((tmp_path / "merged").glob("adapter*"))
    peft = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(logits(merged), logits(peft), rtol=1e-5, atol=1e-4)
    assert (logits(merged) - logits(LanguagePolicy.load("tiny", device="cpu").model)).abs().max() > 1e-3


# Uploading: the real client, and a stand-in for the hub on this machine


class Hub(BaseHTTPRequestHandler):
    """What of the hub's interface an upload needs; remembers what was uploaded."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, Any]]] = []
    refuses: ClassVar[bool] = False

    def log_message(self, *words: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer({"id": "me/mine", "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.refuses:
            self._answer({"error": "You may not write there."}, 403)
        elif self.path == "/api/repos/create":
            self.asked.append((self.headers["Authorization"], json.loads(body)))
            self._answer({"url": f"http://{self.headers['Host']}/me/mine", "name": "me/mine"})
        elif self.path.endswith("/preupload/main"):
            named = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._answer({"files": named})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            host = self.headers["Host"]
            self._answer({"commitUrl": f"http://{host}/me/mine/commit/0", "commitOid": "0" * 40, "success": True})
        else:
            self._answer({"errors": [], "warnings": []})

    def _answer(self, value: object, code: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_test")
    monkeypatch.setattr(Hub, "files", {})
    monkeypatch.setattr(Hub, "asked", [])
    yield Hub
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_model_is_uploaded_with_what_its_run_measured(whole: Path, hub: type[Hub]) -> None:
    address = etude.export(whole, push="me/mine", private=True)
    assert str(address).endswith("/me/mine")
    authorization, asked = hub.asked[0]
    assert authorization == "Bearer hf_of_this_test" and asked["name"] == "mine"
    assert asked.get("private") or asked.get("visibility") == "private"
    kept = whole / "checkpoints" / "step-2" / "model" / "model.safetensors"
    assert hub.files["model.safetensors"] == kept.read_bytes() and "config.json" in hub.files
    card = hub.files["README.md"].decode()
    assert "library_name: transformers" in card and "base_model" not in card, "tiny is on no hub"
    assert "# mine" in card and "trained by `grpo` (arXiv:2402.03300) on `compose` from tiny: 2 training steps" in card
    scores = json.loads((whole / "evaluation.json").read_text())
    before, after = (scores[when]["test"]["pass@1"] for when in ("before", "after"))
    cells = [
        f"{x['value']:.3f}" + f" [{x['low']:.3f}, {x['high']:.3f}]" * (x["low"] < x["high"]) for x in (before, after)
    ]
    assert any("[" in cell for cell in cells)
    assert f"| test | pass@1 | {cells[0]} | {cells[1]} |" in card


@pytest.mark.slow
def test_a_checkpoint_that_was_not_evaluated_has_no_numbers(whole: Path, hub: type[Hub]) -> None:
    etude.export(whole / "checkpoints" / "step-0", push="me/mine")
    card = hub.files["README.md"].decode()
    assert "0 training steps" in card and "Its run did not evaluate it at this step." in card and "|" not in card


@pytest.mark.slow
def test_an_adapter_is_uploaded_whole_where_its_base_is_on_this_machine(adapted: Path, hub: type[Hub]) -> None:
    with pytest.raises(ConfigError, match=r"The adapter's base is .*tiny on this machine, which nobody else has"):
        etude.export(adapted, push="me/mine")
    assert not hub.asked
    etude.export(adapted, push="me/mine", merge=True)
    assert "model.safetensors" in hub.files and str(Path.home()) not in hub.files["README.md"].decode()


@pytest.mark.slow
def test_a_policy_of_control_is_uploaded(tmp_path: Path, hub: type[Hub]) -> None:
    sizes = {"experience.environments": 2, "experience.steps": 8, "policy.network.hidden": "8"}
    run = etude.train("ppo", "cartpole", steps=32, seeds=2, evaluate=2, set=sizes, out=tmp_path / "run", quiet=True)
    etude.export(run.folder, push="me/mine", member=1)
    assert set(hub.files) == {"policy.pt2", "README.md"}
    assert "| test | return | " in hub.files["README.md"].decode()
    with pytest.raises(ConfigError, match=r"--merge is for adapters of language models, and .* is a run of control"):
        etude.export(run.folder, tmp_path / "p.pt2", merge=True)


def test_what_the_hub_refuses_is_said(whole: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "refuses", True)
    with pytest.raises(ConfigError, match=r"me/mine could not be uploaded: .*403.*Log in with `hf auth login`"):
        etude.export(whole, push="me/mine")
    with pytest.raises(ConfigError, match=r"a name/that/is/none could not be uploaded: "):
        etude.export(whole, push="a name/that/is/none")


def test_what_is_missing_or_too_much(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Leaving out where to write it is for uploading: give --push NAME, or a"):
        etude.export(whole)
    with pytest.raises(ConfigError, match=r"--private is for uploading: give --push NAME."):
        etude.export(whole, tmp_path / "x", private=True)
    with pytest.raises(ConfigError, match=r"tiny is no run, nor a checkpoint in one."):
        etude.export("tiny", tmp_path / "x")
