"""`etude parts`: what can fill a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from etude.core.part import Part

OF_VERBS = ("search",)
"""Slots that are no method's: `etude evaluate --search`."""


def parts(slot: str | None = None) -> None:
    """List every part by slot, with its fields: what `--with NAME` and `--set SLOT=NAME` accept.

    Parts that are fields of other parts follow, under the name of the field and of those who have it:
    `--set advantages.centre=leave-one-out`.

    Parameters
    ----------
    slot
        Only this slot.
    """
    from rich.console import Console

    from etude.core.errors import UnknownNameError
    from etude.core.kind_names import all_slots
    from etude.core.part import part_classes

    console = Console(highlight=False)
    known, named = part_classes().values(), {*all_slots(), *OF_VERBS}
    inside, before = dict[str, list[str]](), -1
    while len(inside) > before:  # fields of parts, fields of those, and so on
        before, inside = len(inside), fields_of(c for c in known if c.slot in {*named, *inside})
    classes = sorted((c for c in known if c.slot in named or c.slot in inside), key=lambda c: (c.slot, c.name))
    slots = sorted({c.slot for c in classes}, key=lambda name: (name in inside, name))
    if slot is not None and slot not in slots:
        raise UnknownNameError("slot", slot, slots, f"There are: {', '.join(slots)}.")
    for name in slots if slot is None else [slot]:
        console.print(f"[bold]{name}[/]" + (f" of {', '.join(inside[name])}" if name in inside else ""), soft_wrap=True)
        for cls in (c for c in classes if c.slot == name):
            _show(cls)


def fields_of(classes: Iterable[type[Part]]) -> dict[str, list[str]]:
    """Slots that are no method's but a field of these parts: the names of those that have it."""
    from etude.core.kind_names import all_slots
    from etude.core.part import hints, part_types

    holders: dict[str, list[str]] = {}
    for cls in sorted(classes, key=lambda c: c.name):
        held = {held.slot for hint in hints(cls).values() for held in part_types(hint)[0]}
        for slot in sorted(held - {"", *all_slots()}):
            holders.setdefault(slot, []).append(cls.name)
    return holders


def _show(cls: type[Part]) -> None:
    """Its name, its first line, its fields."""
    from dataclasses import MISSING

    from rich.console import Console

    from etude.core.fields import describe
    from etude.core.part import hints

    console = Console(highlight=False)
    doc = (cls.__doc__ or "").split("\n", 1)[0]
    console.print(f"  {cls.name:<22} {doc}", markup=False, soft_wrap=True)
    for field, hint in hints(cls).items():
        default = cls.__dataclass_fields__[field].default
        usual = ", to be given" if default is MISSING else f" = {default!r}"
        console.print(f"      {field}{usual}: {describe(hint)}", markup=False, style="dim", soft_wrap=True)
