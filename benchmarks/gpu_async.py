"""An engine on a GPU as a run uses it: one JSON with what it agrees on, how weights travel, and how fast it samples.

    etude engine start vllm --env ENV --model MODEL --dtype bfloat16 [--transport nccl|ipc]
    python benchmarks/gpu_async.py --engine vllm:http://127.0.0.1:8000 [vllm+nccl:http://127.0.0.1:8001 ...] \
        --model MODEL --dtype bfloat16 [--rounds 5] [--output FILE]

For each engine, with the trainer's policy on a GPU: the mean gap of log-probabilities at two temperatures, before and
after weights that moved; seconds of a transfer; tokens per second of the engine and of etude's own decoder for the same
rows, in turn; and what a run says of three steps with it. nccl and ipc need vLLM's package beside etude's: install
etude into its environment. An engine that fails is a row with the sentence. `--device cpu` tries the script with
etude's own engine on the CPU, and measures nothing of use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import etude
from etude.core.draws import Draw
from etude.core.errors import EtudeError

ROWS, PROMPT, TOKENS = 64, 32, 128


def seconds(work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Median, smallest and largest of so many times."""
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return {"median": statistics.median(taken), "min": min(taken), "max": max(taken)}


def moved(policy: Any) -> str:
    """Change all weights a little, and return their new mark."""
    import torch

    from etude.policies import snapshots

    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1 + 2**-7)
    policy.updated()
    return snapshots.mark(snapshots.weights(policy))


def measured(address: str, policy: Any, rounds: int, run: Callable[[str], Any]) -> dict[str, Any]:
    """What was found for one engine."""
    import torch

    from etude.policies import snapshots
    from etude.policies.sampling import Sampling
    from etude.runs import engines

    engine = engines.connect(address)
    found: dict[str, Any] = {"version": engine.greeting.version, "tags": engine.greeting.tags}
    for when in ("as it began", "after an update"):
        mark = snapshots.mark(snapshots.weights(policy)) if when == "as it began" else moved(policy)
        found[f"gap {when}"] = {t: engines.gap(engine, policy, mark, t) for t in engines.TEMPERATURES}
    found["bytes"] = sum(p.nbytes for p in policy.model.parameters())
    found["transfer"] = seconds(lambda: engine.converse(policy, moved(policy)), rounds)
    how = Sampling(max_tokens=TOKENS)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, int(policy.config.vocab_size), (ROWS, PROMPT), generator=generator).tolist()
    draws, tokens = [Draw.at(0, row) for row in range(ROWS)], {"engine": 0, "native": 0}

    def sampled(name: str, conversation: Any) -> None:
        said = conversation.sample(conversation.open(prompts), how, draws, last=True)
        tokens[name] += sum(len(c.tokens) for c in said)

    mark, taken = snapshots.mark(snapshots.weights(policy)), {"engine": [], "native": []}
    for _ in range(rounds):
        for name, conversation in (("engine", engine.converse(policy, mark)), ("native", policy.converse())):
            taken[name].append(seconds(lambda n=name, c=conversation: sampled(n, c), 1)["median"])  # type: ignore[misc]
    found["tokens per second"] = {name: tokens[name] / sum(taken[name]) for name in tokens}
    found["run"] = run(address)
    return found


def three_steps(arguments: argparse.Namespace, folder: Path, device: str) -> Callable[[str], Any]:
    """A run of three steps with an engine, where it waits for the rows and where it runs ahead."""

    def run(address: str) -> Any:
        found = {}
        for name, more in (("waits", {}), ("bound 1", {"on": "processes", "bound": 1})):
            own = ["objective=decoupled-surrogate"] if more else []
            done = etude.train(
                "grpo", "compose", engine=address, model=arguments.model, dtype=arguments.dtype, device=device, steps=3,
                evaluate=0, quiet=True, preset=False, out=str(folder / f"{len(list(folder.iterdir()))}"),
                set=["problems=8", "experience.size=8", *own], **more,
            )  # fmt: skip
            read = ("logp_gap", "logp_gap_bound", "seconds/experience", "seconds/update", "lag")
            found[name] = [{k: m[k] for k in read if k in m} for m in done.metrics]
        return found

    return run


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=[])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()

    import torch

    from etude.policies.language import LanguagePolicy

    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(
            "There is no CUDA device here, and this measures engines on one: run it where there is. --device cpu tries "
            "the script alone, with etude's own engine."
        )
    if chosen.device.startswith("cuda") and not chosen.engine:
        raise SystemExit("Say which engines are there, as in --engine vllm:http://127.0.0.1:8000.")
    own = {"device": chosen.device, "dtype": chosen.dtype}
    where = {"device": torch.cuda.get_device_name() if chosen.device.startswith("cuda") else "cpu"}
    result: dict[str, Any] = {"machine": {**where, "torch": torch.__version__}, "model": chosen.model, "engines": {}}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not chosen.engine:
            chosen.engine = [stack.enter_context(served(LanguagePolicy.load(chosen.model, **own)))]
        for address in chosen.engine:
            policy = LanguagePolicy.load(chosen.model, **own)
            try:
                steps = three_steps(chosen, scratch, chosen.device)
                result["engines"][address] = measured(address, policy, chosen.rounds, steps)
            except EtudeError as error:
                result["engines"][address] = {"failed": str(error)}
    text = json.dumps(result, indent=1)
    if chosen.output:
        chosen.output.write_text(text + "\n")
    print(text)


class served:
    """etude's own engine in a thread, for as long as the block; its address."""

    def __init__(self, policy: Any) -> None:
        from etude.experience.engine import ServedEngine
        from etude.experience.engine_server import EngineServer

        self.server = EngineServer(ServedEngine(policy))

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.server.url

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    main()
