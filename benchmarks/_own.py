"""etude's arm: one training step of `grpo` for every line on standard input, one JSON line back.

Savings can be switched off one at a time (`--without`), to see what each gives. `preallocation` is that of
transformers' cache, so removing it removes `native-decoding` too: compare the two rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any
from unittest import mock

from _cases import ALL_CASES, GROUP, RATE, memory, prompts, reward

SAVINGS = (
    "shared-prefill",
    "native-decoding",
    "dropping",
    "preallocation",
    "shared-update",
    "planned-prompts",
    "prompt-blocks",
    "answer-pieces",
    "skipping",
    "sorting",
)


def build(
    case_name: str, folder: str, micro_tokens: int | None, autocast: bool, shadow: bool, device: str = "cpu"
) -> Any:
    """The loop, ready to step."""
    from etude.core.registry import get_method
    from etude.core.task import LanguageTask, Problem
    from etude.experience.groups import Groups
    from etude.loops.language import LanguageLoop
    from etude.optimizers.adam import AdamW
    from etude.policies.language import LanguagePolicy

    case = ALL_CASES[case_name]

    class Words(LanguageTask):
        """Random words, rewarded by checksum."""

        max_tokens = case.answer

        def problems(self, split: str) -> list[Problem]:
            return [Problem(str(i), text) for i, text in enumerate(prompts(case))]

        def score(self, problem: Problem, completion: str) -> float:
            return reward(completion, case.success)

    method = get_method("grpo").replace(
        problems=case.completions // GROUP, experience=Groups(size=GROUP), optimizer=AdamW(lr=RATE)
    )
    options: dict[str, Any] = {} if micro_tokens is None else {"micro_tokens": micro_tokens}
    policy = LanguagePolicy.load(folder, device=device, autocast=autocast, shadow=shadow or None)
    return LanguageLoop(method, Words(), policy, seed=0, steps=1000, **options)


def remove(saving: str, loop: Any) -> None:
    """Switch one saving off, from outside: the library itself has no such switches.

    Raises AttributeError where the library has no longer what is replaced.
    """
    import torch
    from transformers import DynamicCache

    from etude.core import micro_batches as planning
    from etude.loops import update
    from etude.policies import conversation, micro_batches, native, prompts, sampling

    match saving:
        case "shared-prefill":
            instead(conversation, "distinct_prompts", lambda prompts: ([*map(list, prompts)], [*range(len(prompts))]))
        case "dropping":
            instead(sampling, "COMPACT_BELOW", -1.0)
        case "preallocation":
            remove("native-decoding", loop)  # which allocates its own buffers
            instead(conversation, "decoding_cache", lambda config, capacity: DynamicCache(config=config))
        case "native-decoding":
            instead(native, "supported", lambda backbone, config: False)
        case "shared-update":
            instead(loop.policy, "share_prompts", False)
        case "planned-prompts":  # every row counts its prompt, and a group is cut
            instead(micro_batches, "sharing", lambda policy: None)
        case "prompt-blocks":  # every row gets a copy of its prompt's keys and values
            for owner in (prompts, micro_batches):
                instead(owner, "in_blocks", lambda backbone, config: False)
        case "answer-pieces":
            instead(planning, "MIN_CUT", 1 << 60)
        case "skipping":
            instead(update, "useful_rows", lambda method, batch: torch.arange(len(batch)))
        case "sorting":
            instead(update, "micro_batches", unsorted)
        case _:
            raise SystemExit(f"There is no saving {saving!r}; there are {', '.join(SAVINGS)}.")


def instead(owner: Any, name: str, value: Any) -> None:
    """Put something in the place of what is there."""
    mock.patch.object(owner, name, value).start()


def unsorted(policy: Any, batch: Any, budget: int, whole_groups: bool = False) -> list[Any]:
    """Rows in the order they came, cut where the widest row of all times the count reaches the budget."""
    import torch

    count = max(1, budget // batch.tokens.shape[1])
    return list(torch.arange(len(batch)).split(count))


def main() -> None:
    """Answer one line with one step until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-tokens", type=int)
    parser.add_argument("--dtype", choices=("float32", "autocast"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shadow", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    chosen = parser.parse_args()
    import torch

    torch.set_num_threads(chosen.threads)
    autocast = chosen.dtype == "autocast"
    loop = build(chosen.case, chosen.folder, chosen.micro_tokens, autocast, chosen.shadow, chosen.device)
    for saving in chosen.without:
        remove(saving, loop)
    print("ready", flush=True)
    for _ in sys.stdin:
        begun, used = time.perf_counter(), time.process_time()
        metrics = loop.step().metrics
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        answers = metrics["completion_length"] * metrics["rows"]
        total = metrics["tokens_per_second"] * (metrics["seconds/experience"] + metrics["seconds/update"])
        answer = {
            "seconds": seconds, "processor": used, "completion_tokens": round(answers), "total_tokens": round(total),
            "generate": metrics["seconds/experience"], "update": metrics["seconds/update"],
            "reward": metrics["reward"], "length": metrics["completion_length"], **memory(chosen.device),
        }  # fmt: skip
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
