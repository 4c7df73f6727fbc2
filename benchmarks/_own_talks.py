"""etude's arm of `multi_turn_vs_trl.py`: the episodes of a row for every line on standard input, one JSON line back."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from _cases import GROUP
from _talk_task import Talking
from _talks import TALKS


def main() -> None:
    """Play until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("talk", choices=TALKS)
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--greedy", action="store_true")
    chosen = parser.parse_args()
    import torch

    import etude  # noqa: F401  # asks for reproducible kernels
    from etude.core.slots import Context
    from etude.core.streams import Stream
    from etude.experience.rollout import fresh, rollout
    from etude.policies.language import LanguagePolicy
    from etude.policies.sampling import Sampling

    torch.set_num_threads(chosen.threads)
    talk = TALKS[chosen.talk]
    task = Talking(talk=talk.name, workers=chosen.workers, max_turns=talk.turns)
    policy = LanguagePolicy.load(chosen.folder, device="cpu")
    sampling = Sampling(temperature=0.0 if chosen.greedy else 1.0, max_tokens=talk.answer)
    problems = task.problems("train")
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        stream = Stream(0).split("step", number)
        policy.work.clear()
        begun, used = time.perf_counter(), time.process_time()
        episodes = rollout(fresh(problems, GROUP, stream), Context(task, policy, stream), sampling)
        found: dict[str, Any] = {
            "seconds": time.perf_counter() - begun, "processor": time.process_time() - used,
            "episodes": len(episodes), "sampled": sum(e.action_count for e in episodes),
            "read": policy.work["prefilled_tokens"],
        }  # fmt: skip
        assert found["sampled"] == talk.completions * talk.said
        print(json.dumps({**found, "tokens": [e.tokens for e in episodes]} if chosen.greedy else found), flush=True)


if __name__ == "__main__":
    main()
