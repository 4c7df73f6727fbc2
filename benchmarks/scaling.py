"""Cost per token as the vocabulary and the group grow: flat, where the usual way is not.

Vocabulary: log-probability and entropy, forward and backward, by the chunked head and by full logits; nanoseconds per
token per vocabulary entry and the most memory held. Group: one prompt of 256 tokens answered by G completions of 32
tokens each; microseconds per completion token of sampling and of the update, with prompts shared and repeated.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VOCABULARIES = (1_000, 8_000, 32_000, 150_000)
GROUPS = (4, 8, 16, 32, 64)
TOKENS, HIDDEN = 1024, 256


def processor_time(call: Any, repeats: int = 3) -> float:
    """Least processor seconds of a call: other processes on the machine do not count."""
    taken = []
    for _ in range(repeats):
        begun = time.process_time()
        call()
        taken.append(time.process_time() - begun)
    return min(taken)


def head(vocabulary: int, chunked: bool) -> dict[str, float]:
    """Time and memory of one head, measured in this process alone."""
    import torch

    from etude.policies.logprobs import token_logprobs

    torch.set_num_threads(1)
    hidden = torch.randn(TOKENS, HIDDEN, requires_grad=True)
    weight = (torch.randn(vocabulary, HIDDEN) / HIDDEN**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (TOKENS,))

    def chunks() -> None:
        logp, entropy = token_logprobs(hidden, weight, None, targets, entropy=True)
        (logp.sum() + entropy.sum()).backward()  # type: ignore[union-attr]

    def full() -> None:
        z = (hidden @ weight.T).log_softmax(-1)
        (z.gather(1, targets[:, None]).sum() - (z.exp() * z).sum()).backward()

    token_logprobs(hidden[:2].detach(), weight[:8].detach(), None, targets[:2] % 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = processor_time(chunks if chunked else full)
    return {
        "ns_per_token_and_entry": round(1e9 * seconds / TOKENS / vocabulary, 3),
        "us_per_token": round(1e6 * seconds / TOKENS, 1),
        "MiB": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
    }


def group(size: int, folder: str) -> dict[str, float]:
    """Time of sampling a group and of one forward and backward pass over it."""
    import torch

    from etude.core.draws import Draw
    from etude.core.episodes import Episode, Problem, Segment
    from etude.core.rows import to_batch
    from etude.policies.language import LanguagePolicy
    from etude.policies.sampling import Sampling

    torch.set_num_threads(1)
    policy = LanguagePolicy.load(folder, device="cpu")
    policy.model.generation_config.eos_token_id = policy.tokenizer.eos_token_id = 2  # practically never drawn
    prompt = torch.randint(3, 500, (256,), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = Sampling(max_tokens=32)
    draws = [Draw.at(0, row) for row in range(size)]
    said = policy.generate([prompt] * size, sampling, draws)
    count = sum(len(s.tokens) for s in said)

    def episode(tokens: list[int], logp: list[float]) -> Episode:
        asked = Segment("user", "", prompt, [0] * len(prompt), [0.0] * len(prompt))
        return Episode(Problem("p", ""), [asked, Segment("assistant", "", tokens, [1] * len(tokens), logp)])

    batch = to_batch([episode(s.tokens, s.logp) for s in said], 0, 1.0, policy.device)

    def update(share: bool) -> None:
        policy.share_prompts = share
        policy.evaluate(batch).logp.sum().backward()

    times = {
        "sampling": processor_time(lambda: policy.generate([prompt] * size, sampling, draws)),
        "update_shared": processor_time(lambda: update(True)),
        "update_repeated": processor_time(lambda: update(False)),
    }
    return {f"{k}_us_per_token": round(1e6 * v / count, 1) for k, v in times.items()}


def alone(*arguments: str) -> dict[str, float]:
    """One measurement in a process of its own, so that its peak memory is its own."""
    done = subprocess.run([sys.executable, "-W", "ignore", __file__, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", nargs=2, metavar=("VOCABULARY", "KIND"), help=argparse.SUPPRESS)
    parser.add_argument("--group", nargs=2, metavar=("SIZE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    if chosen.head:
        print(json.dumps(head(int(chosen.head[0]), chosen.head[1] == "chunked")))
        return
    if chosen.group:
        print(json.dumps(group(int(chosen.group[0]), chosen.group[1])))
        return
    from _cases import CASES, make_model

    result: dict[str, Any] = {"vocabulary": {}, "group": {}}
    for size in VOCABULARIES:
        result["vocabulary"][size] = {k: alone("--head", str(size), k) for k in ("chunked", "full")}
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_model(CASES["long-0.8M"], Path(scratch))
        for size in GROUPS:
            result["group"][size] = alone("--group", str(size), str(folder))
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
