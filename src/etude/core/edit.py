"""Changing a method from text: `--set objective.high=0.28`, `--with kl-to-reference`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import parse
from etude.core.kind_names import all_slots
from etude.core.method import Method
from etude.core.part import Part, hints, part_class, part_classes, part_types, together
from etude.core.registry import compositions, files, get_method, load_attribute, parent_of, reference


def set_value(method: Method, assignment: str) -> Method:
    """The method with one field set, as in `optimizer.lr=3e-4`, `objective=policy-gradient` or `filters=none`.

    A path that begins with what parts of several slots have, as `network.hidden`, sets it in all of them.

    Raises ConfigError in a sentence: nearest valid names for an unknown path, range and type for a bad value.
    """
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set takes PATH=VALUE, as in optimizer.lr=3e-4; got {assignment!r}.")
    names = path.strip().split(".")
    if names[0] not in method.slot_names() and (taking := method.taking(assignment.strip())) is not None:
        return taking
    if names[0] == "optimizer" and names[0] not in method.slot_names() and names[1:]:
        return _in_every_optimizer(method, ".".join(names[1:]), text)
    if names[0] not in method.slot_names():
        if not (slots := _holding(method, names[0])):
            known = "`etude methods show ID` lists them."
            raise UnknownNameError(f"slot of {method.id}", names[0], _paths(method), known)
        for slot in slots:
            method = set_value(method, f"{slot}.{assignment.strip()}")
        return method
    hint = hints(type(method))[names[0]]
    value = _edited(getattr(method, names[0]), hint, names[1:], text.strip(), f"{method.id}: {names[0]}", names[0])
    return method.replace(**{names[0]: value})


def _in_every_optimizer(method: Method, rest: str, text: str) -> Method:
    """The method with a field of the optimizer of each of its learners set: of a kind that has no other optimizer."""
    paths = [path for path in method.parts() if path.endswith(".learning.optimizer")]
    if not paths:
        raise UnknownNameError(f"slot of {method.id}", "optimizer", _paths(method), "Nothing in it learns.")
    for path in paths:
        method = set_value(method, f"{path}.{rest}={text}")
    return method


def _holding(method: Method, name: str) -> list[str]:
    """The slots whose part has a part of its own by this name: `network` is one of the policy's and the critic's."""
    own = {slot: hints(type(part)) for slot, part in method.slots().items() if isinstance(part, Part)}
    return [slot for slot, fields in own.items() if name in fields and part_types(fields[name])[0]]


def set_values(method: Method, changes: Sequence[str] | Mapping[str, Any]) -> Method:
    """Several assignments, given as text or as `{path: value}`; all are made, then the parts are checked.

    Raises ConfigError as `set_value` does; what contradicts itself within a part of a part is named by its path.
    """
    with together():
        told = assignments(changes)
        for number, item in enumerate(told):
            try:
                method = set_value(method, item)
            except UnknownNameError:
                _check_order(item, told[number + 1 :])
                raise
    for path, part in method.parts().items():
        try:
            part.check()
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}" if "." in path else str(error)) from None
    return method


def _check_order(item: str, later: Sequence[str]) -> None:
    """Raise ConfigError if what has this field is set only later."""
    path = item.partition("=")[0]
    part = next((each for each in later if path.startswith(each.partition("=")[0] + ".")), None)
    if part is not None:
        raise ConfigError(f"{item} is set before {part}, which has that field or not: say the part first.")


def assignments(changes: str | Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Changes as the command line writes them: `{"task.levels": (2, 3)}` is `["task.levels=2,3"]`."""
    if isinstance(changes, str):
        return [changes]
    return [f"{k}={_text(k, v)}" for k, v in changes.items()] if isinstance(changes, Mapping) else list(changes)


def _text(path: str, value: object) -> str:
    """A value as text. Raises ConfigError for an object, which no file of a run could hold."""
    if isinstance(value, (tuple, list)):
        if any(isinstance(item, str) and "," in item for item in value):
            return json.dumps(value)  # where commas alone would not tell the items apart
        return ",".join(map(str, value)) or "none"
    if isinstance(value, type):
        return _importable(value)
    if callable(value):
        raise ConfigError(
            f"{path} is set to text, a number or a class, so that the run can be repeated; got an object of "
            f"{type(value).__name__}. Give the class of a network of your own (of all members one is made), or put a "
            "part into the method itself, by its replace()."
        )
    return str(value)


def _importable(cls: type) -> str:
    """A class of somebody's own as 'module:Class'. Raises ConfigError for one that no other process can import."""
    if (name := reference(cls)) is None:
        raise ConfigError(
            f"{cls.__qualname__} is only known here, so a run could not be resumed: put it at the top level of a file "
            f"and name it as file.py:{cls.__name__}."
        )
    return name


def with_field(part: Part, assignment: str) -> Any:
    """A part with one field set, as in `width=4` or `guide.samples=2`; raises as `set_value`."""
    path, equals, text = assignment.partition("=")
    if not equals:
        raise ConfigError(f"A field is set as in {next(iter(part.fields()), 'field')}=VALUE; got {assignment!r}.")
    return _edited(part, type(part), path.strip().split("."), text.strip(), part.name)


def part_named(name: str, kind: type[Part], where: str) -> Part:
    """The part of this kind that is called so, with its default values; raises UnknownNameError with the nearest."""
    return _one((kind,), name, where)


def _edited(value: object, hint: object, rest: list[str], text: str, where: str, path: str = "") -> Any:
    """`value` with what `rest` leads to replaced by what `text` means; `path`: where it stands in the method."""
    classes, many = part_types(hint)
    if not rest:
        return _parts(classes, many, hint, text, where) if classes else parse(where, hint, text)
    if not classes:
        raise ConfigError(
            f"{where} is a value, so it has no field {rest[0]!r}; set it as in {where.split(': ')[-1]}=VALUE."
        )
    if many and isinstance(value, tuple):
        places = _places(value, rest[0], where)
        if rest[1:]:
            deep, inside = f"{where}.{rest[0]}", f"{path}.{rest[0]}"
            return tuple(
                _edited(part, type(part), rest[1:], text, deep, inside) if i in places else part
                for i, part in enumerate(value)
            )
        before, after = value[: places[0]], value[places[0] + 1 :]
        return (*before, *_parts(classes, True, hint, text, where), *after)
    if not isinstance(value, Part):
        raise ConfigError(
            f"{where} is empty, so it has no field {rest[0]!r}; set the part first, as in {where.split(': ')[-1]}=NAME."
        )
    fields = hints(type(value))
    if rest[0] not in fields:
        listed = f"{path if '.' in path else 'It'} has: {', '.join(fields) or 'none'}."  # the policy's, or the critic's
        how = _inside(value, rest[0], path) or _others(classes, rest[0], where, value)
        raise UnknownNameError(f"field of {type(value).__name__}", rest[0], fields, listed + how)
    name, deep = f"{type(value).__name__}.{rest[0]}", f"{path}.{rest[0]}".lstrip(".")
    name = f"{path}: {name}" if "." in path else name  # an MLP is the policy's or the critic's
    inner = _edited(value.fields()[rest[0]], fields[rest[0]], rest[1:], text, name, deep)
    return value.replace(**{rest[0]: inner})


def _inside(part: Part, field: str, path: str) -> str:
    """Which of its parts have the field, by their paths."""
    having = [k for k, v in part.fields().items() if isinstance(v, Part) and field in hints(type(v))]
    return f" There is {' and '.join(f'{path}.{k}.{field}' for k in having)}." if having else ""


def _others(classes: tuple[type[Part], ...], field: str, where: str, part: Part) -> str:
    """Which parts that could stand in this place have the field, and how to put one there, or into the part."""
    having = [n for n, c in part_classes().items() if issubclass(c, classes) and field in hints(c)]
    if not having:
        return ""
    has = f"{' and '.join(having)} {'has' if len(having) == 1 else 'have'} it"
    place = where.split(".")[-1]
    inner = next((k for k, hint in hints(type(part)).items() if part_types(hint)[0] == classes), None)
    return f" {has}: first set {place}={having[0]}{f', or {place}.{inner}={having[0]}' if inner else ''}."


def _places(parts: Sequence[Part], name: str, where: str) -> list[int]:
    """Of the part with this column or of this function, or at this place, or of all parts with this name."""
    columns, names = [getattr(p, "column", "") or getattr(p, "called", p.name) for p in parts], [p.name for p in parts]
    for known in (columns, names):
        if name in known:
            return [i for i, n in enumerate(known) if n == name]
    if name.isdigit() and int(name) < len(parts):
        return [int(name)]
    raise UnknownNameError(f"part in {where}", name, columns, f"It holds: {', '.join(columns) or 'nothing'}.")


def _parts(classes: tuple[type[Part], ...], many: bool, hint: object, text: str, where: str) -> Any:
    if text.lower() == "none":
        if not many and type(None) not in get_args(hint):
            raise ConfigError(f"{where} cannot be empty.")
        return () if many else None
    return tuple(_one(classes, t.strip(), where) for t in text.split(",")) if many else _one(classes, text, where)


def _one(classes: tuple[type[Part], ...], name: str, where: str) -> Part:
    fitting = [n for n, c in part_classes().items() if issubclass(c, classes)]
    if name not in fitting and ":" not in name:
        raise UnknownNameError(f"part for {where}", name, fitting, f"There are: {', '.join(sorted(fitting))}.")
    wrapper = next((cls.foreign for cls in classes if cls.foreign), "")
    if wrapper and ":" in name and not _is_part(name):
        return part_class(wrapper)(name)  # type: ignore[call-arg]  # its first field
    return _made(name)


def _is_part(name: str) -> bool:
    thing = load_attribute(name)
    return isinstance(thing, type) and issubclass(thing, Part)


def _made(name: str) -> Part:
    """The part called `name`, with its default values; 'module:Part' and 'file.py:Part' are those of users."""
    thing = part_class(name)
    try:
        return thing()
    except TypeError:
        needed = [f.name for f in dataclasses.fields(thing) if f.default is f.default_factory is dataclasses.MISSING]
        raise ConfigError(
            f"{name} needs a value for {' and '.join(needed)}, which text cannot give; give it from Python, or in a "
            "method file of your own. For a reward function there is --reward."
        ) from None


def _paths(method: Method) -> list[str]:
    return [*method.slot_names(), *(f"{p}.{f}" for p, part in method.parts().items() for f in part.fields())]


def stack(method: Method, names: str | Sequence[str]) -> Method:
    """The method with parts, or what other methods of its kind changed against their parents, stacked on it.

    A part that is held by others (`level-std`, `memory-and-chunk`) takes its place in the one that holds such a part,
    once all slots are filled.

    Raises ConfigError if two of them want the same single slot or place, if one has an experience of its own and the
    method too, if one fills none of this kind of method, or if there are several places for it.
    Whether the parts go together is for `Method.check` to say, once everything is set.
    """
    owner, inside = dict[str, str](), list[str]()
    for name in [names] if isinstance(names, str) else names:
        changes = _method_changes(name, method) if (whole := _stacks(name, method)) else _part_change(name, method)
        if not changes and not whole:
            inside.append(name)
        for slot, (removed, added) in changes.items():
            before = getattr(method, slot)
            if isinstance(before, tuple) and all(isinstance(p, Part) for p in (*before, *added)):
                kept = tuple(p for p in before if p.name not in {r.name for r in (*removed, *added)})
                after: Any = (*kept, *added)
            else:
                if owner.get(slot, name) != name and before != added:
                    raise ConfigError(
                        f"--with {owner[slot]} and --with {name} both set {slot}, which holds one value: "
                        f"{_name(before)} or {_name(added)}. Keep one of them."
                    )
                if slot == "experience" and whole and not _makes_room(before, removed, added):
                    raise ConfigError(
                        f"{method.id} samples by {_name(before)}, and --with {name} would put {_name(added)} in its "
                        f"place: a method has one experience. Leave out --with {name}, or train {name} itself."
                    )
                owner[slot], after = name, added
            method = method.replace(**{slot: after})
    for name in inside:
        place = _place(name, method)
        if owner.setdefault(place, name) != name:
            raise ConfigError(
                f"--with {owner[place]} and --with {name} both set {place}, which holds one part. Keep one of them."
            )
        method = set_value(method, f"{place}={name}")
    return method


def _makes_room(before: Part, removed: Part, added: Part) -> bool:
    """Whether nothing is lost where an experience takes this one's place: it is what was replaced, or a plainer one."""
    return type(before) in (type(removed), type(added)) or isinstance(added, type(before))


def _place(name: str, method: Method) -> str:
    """The path of the only field in which a part of this method holds one such as this."""
    part, found = _made(name), list[str]()
    for path, each in method.parts().items():
        for field, hint in hints(type(each)).items():
            classes, many = part_types(hint)
            if isinstance(part, classes) and not many:
                found.append(f"{path}.{field}")
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{name} has several places in {method.id} ({', '.join(found)}): say which, as in --set {found[0]}={name}."
        )
    raise ConfigError(f"{name} cannot be stacked on {method.id}: no part of it holds such a part.")


def _name(value: object) -> str:
    return value.name if isinstance(value, Part) else str(value)


def _part_change(name: str, method: Method) -> dict[str, tuple[Any, Any]]:
    """The slot that a part fills; none where others hold it."""
    known = {**part_classes(), **{n: None for n in files("methods")}}
    if name not in known and ":" not in name:
        raise UnknownNameError("part or method to stack", name, known, "`etude parts` and `etude methods` list them.")
    part = _made(name)
    if part.slot not in method.slot_names():
        if not (holders := [k.__name__ for k in all_slots().get(part.slot, ())]):
            return {}  # it is held by another part
        raise ConfigError(
            f"{name} cannot be stacked on {method.id}, a {type(method).__name__}: its slot {part.slot} is one of "
            f"{' and '.join(holders)}."
        )
    many = part_types(hints(type(method))[part.slot])[1]
    return {part.slot: ((), (part,)) if many else (None, part)}


def _stacks(name: str, method: Method) -> bool:
    """Whether `name` means a method whose difference can be stacked; a part may have the name of one that cannot."""
    if name not in files("methods"):
        return False
    if any(type(m) is type(method) for m in compositions(name)):
        return True
    if name in part_classes():
        return False
    raise ConfigError(
        f"{name} is a {type(get_method(name)).__name__} and {method.id} a {type(method).__name__}: its difference "
        "means nothing here."
    )


def _method_changes(name: str, onto: Method) -> dict[str, tuple[Any, Any]]:
    """What a method changed against its parent: slot -> (parts taken out, parts put in), or (old value, new value)."""
    method = next(m for m in compositions(name) if type(m) is type(onto))
    parent, changes = parent_of(method), {}
    if parent is None:
        raise ConfigError(f"{name} has no parent, so there is no difference to stack; train it by its own name.")
    for slot, mine in method.slots().items():
        theirs = getattr(parent, slot)
        if mine == theirs:
            continue
        if isinstance(mine, tuple) and all(isinstance(p, Part) for p in (*mine, *theirs)):
            changes[slot] = (tuple(p for p in theirs if p not in mine), tuple(p for p in mine if p not in theirs))
        else:
            changes[slot] = (theirs, mine)
    return changes
