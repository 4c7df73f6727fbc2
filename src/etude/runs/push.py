"""Uploading an exported policy to the Hugging Face hub, with a card that says only what its run measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError
from etude.runtime import checkpoints, environment
from etude.runtime.jsonl import JsonLines

HEADER = "| split | metric | before | after |\n|---|---|---|---|"


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload a folder as a model of the hub, made if it is not there; returns its address.

    Raises: ConfigError, with what the hub said, if that fails.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        address = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message="Upload with etude")
    except Exception as error:  # the transport's own differ by version
        said = " ".join(str(error).split())
        raise ConfigError(
            f"{name} could not be uploaded: {said}. Log in with `hf auth login` as somebody who may write there; "
            "`etude export` without --push writes the same folder."
        ) from None
    return str(address)


def card(name: str, run: Path, checkpoint: Path, config: Mapping[str, Any], adapter: bool) -> str:
    """The page of an uploaded policy: what it is, how it was made, and what its run measured of this very checkpoint.

    Args:
        adapter: whether it is an adapter alone.
    """
    method = json.loads((run / "method.json").read_text())
    step, language = checkpoints.step_of(checkpoint), config["world"] == "language"
    base = str(config["model"]) if language else ""
    known = {"library_name": "peft" if adapter else "transformers"} if language else {}
    known |= {"base_model": base} if language and _of_the_hub(base) else {}
    lines = [f"{k}: {v}" for k, v in known.items()]
    lines += ["tags:", *(f"- {tag}" for tag in ("etude", "reinforcement-learning", method["id"]))]
    paper = f" ({method['paper']})" if method.get("paper") else ""
    start = f" from {_shown(base)}" if language else ""
    what = "An adapter" if adapter else "A policy"
    said = [
        f"# {name.rpartition('/')[2]}",
        f"{what} trained by `{method['id']}`{paper} on `{_shown(str(config['task']))}`{start}: {step} training steps, "
        f"seed {config['seed']}, with etude {environment.version('etude')}.",
        *_measured(run, step),
    ]
    front = "\n".join(["---", *lines, "---"])
    return "\n\n".join([front, *said]) + "\n"


def _measured(run: Path, step: int) -> list[str]:
    """The table of what was measured at the start and at this step, or that nothing was."""
    from etude.evaluation.report_evaluation import measured

    path = run / "evaluation.json"
    scores = json.loads(path.read_text()) if path.is_file() else {}
    last = max((line["step"] for line in JsonLines.read(run / "metrics.jsonl")), default=0)
    after = measured(scores.get("after")) if step == last else _looked(run, step)
    before = measured(scores.get("before"))
    if not after:
        return ["Its run did not evaluate it at this step."]
    rows = [f"| {s} | {m} | {_cell(before.get((s, m)))} | {_cell(found)} |" for (s, m), found in after.items()]
    return ["\n".join([HEADER, *rows]), "In brackets 95% bootstrap intervals, as measured by the run itself."]


def _looked(run: Path, step: int) -> dict[tuple[str, str], tuple[float, float, float]]:
    """What an evaluation in the middle of training found at this step."""
    from etude.evaluation.report_evaluation import measured

    path = run / "evaluations.jsonl"
    lines = JsonLines.read(path) if path.is_file() else iter(())
    return next((measured({k: v for k, v in x.items() if k != "step"}) for x in lines if x["step"] == step), {})


def _cell(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return ""
    value, low, high = found
    return f"{value:.3f}" if low == high == value else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _of_the_hub(model: str) -> bool:
    from etude.policies.loading import is_shipped

    return not is_shipped(model) and not Path(model).exists()


def _shown(name: str) -> str:
    """A name for others: of a path of this machine its last part."""
    return Path(name).name if Path(name).exists() or Path(name).is_absolute() else name
