"""The verb export: a trained policy as others use it, without etude."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError
from etude.core.worlds import World
from etude.runs.saved import locate
from etude.runs.training import compose_task
from etude.runs.worlds import world_of
from etude.runtime import disk


def export(
    checkpoint: str | Path,
    out: str | Path | None = None,
    *,
    member: int = 0,
    merge: bool = False,
    push: str | None = None,
    private: bool = False,
) -> Path | str:
    """Write a policy so that it runs without etude, and upload it if that is asked for.

    Of language a plain Hugging Face folder, or the folder of an adapter as peft reads it; of control a member's policy,
    with its normaliser, as a `torch.export` program.

    Args:
        checkpoint: a run folder (its newest checkpoint), or a checkpoint in it.
        out: the folder, or in control the file, by custom `.pt2`: `torch.export.load(out).module()` maps observations
            to actions. It may be left out with `push`.
        merge: fold an adapter into its base, and write the whole model.
        push: upload it to the Hugging Face hub under this name, with a card made from the run.
        private: where only you see it.

    Returns: where it was written, or its address on the hub.

    Raises: ConfigError for what is no run, for a member or an adapter that it does not have, or if uploading fails.
    """
    place, config = locate(checkpoint)
    if "task" not in config:
        raise ConfigError(f"{checkpoint} is no run, nor a checkpoint in one.")
    if push is None:
        if out is None or private:
            what = "--private" if out is not None else "Leaving out where to write it"
            raise ConfigError(f"{what} is for uploading: give --push NAME{'' if out else ', or a folder'}.")
        world_of(_world(config)).export(place, config, Path(out), member, merge)
        return Path(out)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model" if out is None else Path(out)
        return _pushed(Path(place), config, folder, member, merge, push, private)


def _pushed(
    place: Path, config: Mapping[str, Any], out: Path, member: int, merge: bool, name: str, private: bool
) -> str:  # fmt: skip
    from etude.policies.adapters import base_of, is_adapter
    from etude.runs import push

    world = _world(config)
    if world == World.LANGUAGE:
        world_of(world).export(str(place), config, out, member, merge)
    else:
        disk.make_folder(out)
        world_of(world).export(str(place), config, out / "policy.pt2", member, merge)
    adapter = is_adapter(out)
    if adapter and Path(base_of(out)).exists():
        raise ConfigError(
            f"The adapter's base is {base_of(out)} on this machine, which nobody else has: upload the whole model "
            "with --merge."
        )
    written = push.card(name, place.parent.parent, place, {**config, "world": str(world)}, adapter)
    (out / "README.md").write_text(written, encoding="utf-8")
    return push.push(out, name, private)


def _world(config: Mapping[str, Any]) -> World:
    return World(config["world"]) if "world" in config else compose_task(config["task"], config["task_fields"]).world
