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
    """Switch one saving off, from outside: the library itself has no such switches."""
    from etude.core import micro_batches as planning
    from etude.loops import update
    from etude.policies import cache, conversation, language, micro_batches, native, prompts, sampling

    match saving:
        case "shared-prefill":
            conversation.distinct_prompts = lambda prompts: ([list(p) for p in prompts], list(range(len(prompts))))
        case "dropping":
            sampling.COMPACT_BELOW = -1.0
        case "preallocation":
            remove("native-decoding", loop)  # which allocates its own buffers
            conversation.decoding_cache = lambda config, capacity: cache.DynamicCache(config=config)
        case "native-decoding":
            native.supported = lambda backbone, config: False
        case "shared-update":
            loop.policy.share_prompts = False
        case "planned-prompts":  # every row counts its prompt, and a group is cut
            micro_batches.sharing = lambda policy: None
        case "prompt-blocks":  # every row gets a copy of its prompt's keys and values
            prompts.in_blocks = micro_batches.in_blocks = lambda backbone, config: False
        case "answer-pieces":
            planning.MIN_CUT = 1 << 60
        case "skipping":
            update.Updater._useful = lambda self, method, batch: language.torch.arange(len(batch))
        case "sorting":
            update.micro_batches = unsorted
        case _:
            raise SystemExit(f"There is no saving {saving!r}; there are {', '.join(SAVINGS)}.")


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
