"""Settings of recipes: frozen dataclasses, changed by a TOML file and by ``key=value``.

A field's one-line description stands in its type, ``Annotated[int, "passes over the training pairs"]``, so that
``calligram list RECIPE`` can print it; a pair after it gives the smallest and the largest value.
"""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from calligram.errors import UserError, unknown

S = TypeVar("S")
_ANY = (-1e300, 1e300)
"""neither infinite nor NaN, whose comparisons are false"""


@dataclass(frozen=True)
class Field:
    """One setting, by its dotted key."""

    key: str
    type: Any
    default: object
    about: str
    bounds: tuple[float, float] | None = None
    """smallest and largest value"""


def settings_fields(settings: object, prefix: str = "") -> list[Field]:
    """All settings of a dataclass instance, nested ones as ``outer.inner``."""
    hints = get_type_hints(type(settings), include_extras=True)
    found: list[Field] = []
    for item in fields(settings):  # type: ignore[arg-type]
        value, hint, about, bounds = getattr(settings, item.name), hints[item.name], "", None
        if get_origin(hint) is Annotated:
            hint, about, *rest = get_args(hint)
            bounds = rest[0] if rest else None
        if is_dataclass(value):
            found += settings_fields(value, f"{prefix}{item.name}.")
        else:
            found.append(Field(prefix + item.name, hint, value, about, bounds))
    return found


def resolve(defaults: S, changes: Sequence[str] = (), file: Path | None = None) -> S:
    """Settings with a TOML file's values and then ``key=value`` changes laid over the defaults.

    Where a recipe has ``presets``, that of the setting ``preset``, or of the one that ``preset_by`` names, is laid over
    the defaults first.

    Raises:
        UserError: for an unknown key (naming the nearest), a value of the wrong type, or a line that is neither.
    """
    known = {f.key: f for f in settings_fields(defaults)}
    values: dict[str, object] = {}
    given = [*_from_file(file), *(_split(change) for change in changes)]
    for key, raw in [*_of_preset(defaults, given), *given]:
        if key not in known:
            raise unknown("setting", key, known)
        values[key] = _parse(raw, known[key])
    return _replace(defaults, values)


def as_plain(settings: object) -> dict[str, object]:
    """Settings as JSON holds them."""
    plain: dict[str, object] = json.loads(json.dumps(asdict(settings)))  # type: ignore[call-overload]
    return plain


def changed(settings: object, defaults: object) -> dict[str, object]:
    """The settings that differ from the defaults, by dotted key."""
    before = {f.key: f.default for f in settings_fields(defaults)}
    return {f.key: f.default for f in settings_fields(settings) if f.default != before.get(f.key)}


def from_plain(defaults: S, plain: Mapping[str, Any]) -> S:
    """Settings from what ``as_plain`` gave."""
    known = {f.key: f for f in settings_fields(defaults)}
    values = {key: _parse(raw, known[key]) for key, raw in _flat(plain) if key in known}
    return _replace(defaults, values)


def _split(change: str) -> tuple[str, object]:
    key, sign, value = change.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set takes key=value, got '{change}'")
    return key.strip(), value.strip()


def _of_preset(defaults: object, given: Sequence[tuple[str, object]]) -> list[tuple[str, object]]:
    """What the preset named last says; nothing where there is none, or none of that name."""
    presets: Mapping[object, Sequence[str]] = getattr(defaults, "presets", {})
    named = [raw for key, raw in given if key == getattr(defaults, "preset_by", "preset")]
    return [_split(change) for change in presets.get(named[-1], ())] if named else []


def _from_file(file: Path | None) -> list[tuple[str, object]]:
    if file is None:
        return []
    try:
        return _flat(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"settings file {file} could not be read: {error}") from error


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    out: list[tuple[str, object]] = []
    for key, value in tree.items():
        nested = isinstance(value, Mapping)
        out += _flat(value, f"{prefix}{key}.") if nested else [(prefix + key, value)]
    return out


def _replace(settings: S, values: Mapping[str, object]) -> S:
    own = {f.name: getattr(settings, f.name) for f in fields(settings)}  # type: ignore[arg-type]
    for name, current in own.items():
        if is_dataclass(current):
            inner = {k.partition(".")[2]: v for k, v in values.items() if k.partition(".")[0] == name}
            own[name] = _replace(current, inner)
        elif name in values:
            own[name] = values[name]
    return type(settings)(**own)


def _parse(raw: object, item: Field) -> object:
    try:
        value = _as(raw, item.type)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float | int) and not (item.bounds or _ANY)[0] <= number <= (item.bounds or _ANY)[1]:
                raise ValueError
    except (ValueError, TypeError, OverflowError):
        range_ = f" from {item.bounds[0]:g} to {item.bounds[1]:g}" if item.bounds else ""
        raise UserError(f"setting {item.key} takes {_name(item.type)}{range_}, got {raw!r}") from None
    return value


def _as(raw: object, kind: Any) -> object:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if raw is None or (isinstance(raw, str) and raw.lower() in ("none", "")):
            return None
        return _as(raw, next(k for k in inside if k is not type(None)))
    if origin is Literal:
        if raw not in inside:
            raise ValueError
        return raw
    if origin is tuple:
        items = [i for i in raw.strip("()[] ").split(",") if i.strip()] if isinstance(raw, str) else list(raw)  # type: ignore[call-overload]
        kinds = [inside[0]] * len(items) if inside[-1] is Ellipsis else list(inside)
        if len(kinds) != len(items):
            raise ValueError
        return tuple(_as(i.strip() if isinstance(i, str) else i, k) for i, k in zip(items, kinds, strict=True))
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return raw if isinstance(raw, bool) else words[str(raw).lower()] if str(raw).lower() in words else _refuse()
    if kind is int:
        return int(raw) if not isinstance(raw, bool) and float(raw) == int(float(raw)) else _refuse()  # type: ignore[arg-type,call-overload]
    if kind is float:
        return float(raw)  # type: ignore[arg-type]
    return str(raw)


def _refuse() -> object:
    raise ValueError


def _name(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(str, inside))
    if origin is tuple:
        several = {int: "whole numbers", float: "numbers"}.get(inside[0], "words")
        if get_origin(inside[0]) is Literal:
            several += f" ({', '.join(map(str, get_args(inside[0])))})"
        return f"{several if inside[-1] is Ellipsis else f'{len(inside)} {several}'} separated by commas"
    if origin in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else _name(k) for k in inside)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, str(kind))
