"""What being a rank leaves behind in a process."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from etude.runtime.ranks import Gloo


def test_a_child_of_one_that_was_a_rank_ends(tmp_path: Path) -> None:
    """A group that lies in a cycle, as FSDP2 leaves it, has threads, and a forked child has none to wait for."""
    import torch.distributed as dist

    ranks = Gloo(tmp_path / "meeting", 0, 1)
    kept: list[object] = [dist.group.WORLD]
    kept.append(kept)
    ranks.close()
    del kept
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    due = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > due:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("it waits for ever")
        time.sleep(0.01)
    assert ended[1] == 0
    gc.collect()


def test_errors_look_as_they_did(tmp_path: Path) -> None:
    hook = sys.excepthook
    Gloo(tmp_path / "meeting", 0, 1).close()
    assert sys.excepthook is hook
