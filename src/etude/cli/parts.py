"""`etude parts`: what can fill a slot."""

from __future__ import annotations


def parts(slot: str | None = None) -> None:
    """List every part by slot, with its fields: what `--with NAME` and `--set SLOT=NAME` accept.

    Parameters
    ----------
    slot
        Only this slot.
    """
    from rich.console import Console

    from etude.core.errors import UnknownNameError
    from etude.core.fields import describe
    from etude.core.kinds import all_slots
    from etude.core.part import hints, part_classes

    console = Console(highlight=False)
    classes = sorted((c for c in part_classes().values() if c.slot in all_slots()), key=lambda c: (c.slot, c.name))
    slots = {c.slot for c in classes}
    if slot is not None and slot not in slots:
        raise UnknownNameError("slot", slot, slots, f"There are: {', '.join(sorted(slots))}.")
    for name in sorted(slots if slot is None else {slot}):
        console.print(f"[bold]{name}[/]")
        for cls in (c for c in classes if c.slot == name):
            doc = (cls.__doc__ or "").split("\n", 1)[0]
            console.print(f"  {cls.name:<22} {doc}", markup=False, soft_wrap=True)
            for field, hint in hints(cls).items():
                default = cls.__dataclass_fields__[field].default  # type: ignore[attr-defined]
                console.print(
                    f"      {field} = {default!r}: {describe(hint)}", markup=False, style="dim", soft_wrap=True
                )
