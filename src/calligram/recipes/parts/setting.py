"""One setting with its type and bounds, one stage of a schedule, and how values are read from text and TOML files."""

from __future__ import annotations

import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from calligram.errors import UserError

FINITE = (-1e300, 1e300)
"""bounds of a number without bounds of its own; comparisons with NaN are false, so NaN is refused too"""
RARE = "rare"
"""marks a setting that few users change; ``calligram show`` prints it with ``--all`` only"""


STAGES = "stages"
"""name of the field that holds stages"""


@dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    key: str
    """dotted, such as ``image.crop``"""
    type: Any
    default: object
    description: str
    bounds: tuple[float, float] | None = None
    """smallest and largest value"""
    rare: bool = False
    """whether few users change it"""
    inert: bool = False
    """whether it has no effect with the present values of other settings"""


@dataclass(frozen=True)
class StageSettings:
    """One stage of a schedule: the terms that it leaves out, what happens at its start, and changes to settings."""

    name: Annotated[str, "name of the stage in logs"] = ""
    without: Annotated[tuple[str, ...], "terms that this stage does not train"] = ()
    on_start: Annotated[
        tuple[Literal["mine", "restart"], ...],
        "what happens at the start: mine offline negatives with the best matcher so far (mine); set all weights back "
        "to their initial values (restart)",
    ] = ()
    resets_best: Annotated[bool, "select the best epoch from this stage on, without earlier stages"] = False
    changes: tuple[tuple[str, object], ...] = ()
    """other settings, by dotted key"""


STAGE_KEYS = tuple(f.name for f in fields(StageSettings) if f.name != "changes")


def stage(
    name: str = "",
    *,
    without: Sequence[str] = (),
    on_start: Sequence[Literal["mine", "restart"]] = (),
    resets_best: bool = False,
    changes: Mapping[str, object] | None = None,
    **more: object,
) -> StageSettings:
    """Return a stage; settings that it changes are keyword arguments, or dotted keys in ``changes``.

    >>> stage("stage II", epochs=8, changes={"image.train": True}).changes
    (('image.train', True), ('epochs', 8))
    """
    both = {**(changes or {}), **more}
    return StageSettings(name, tuple(without), tuple(on_start), resets_best, tuple(both.items()))


def parse(raw: object, setting: Setting) -> object:
    """Return the value of a setting from text, or from a value of TOML or JSON; a UserError says what is accepted."""
    low, high = setting.bounds or FINITE
    try:
        value = convert(raw, setting.type)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float | int) and not low <= number <= high:
                raise ValueError
    except (ValueError, TypeError, OverflowError):
        range_ = f" from {low:g} to {high:g}" if setting.bounds else ""
        raise UserError(f"setting {setting.key} takes {_type_name(setting.type)}{range_}, got {raw!r}") from None
    return value


def convert(raw: object, kind: Any) -> object:
    """Convert text, or a value of TOML or JSON, to a type; raise ValueError or TypeError where that is impossible."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if raw is None or (isinstance(raw, str) and raw.lower() in ("none", "")):
            return None
        return convert(raw, next(k for k in inside if k is not type(None)))
    if origin is Literal:
        if raw not in inside:
            raise ValueError
        return raw
    if origin is tuple:
        items = [i for i in raw.strip("()[] ").split(",") if i.strip()] if isinstance(raw, str) else list(raw)  # type: ignore[call-overload]
        kinds = [inside[0]] * len(items) if inside[-1] is Ellipsis else list(inside)
        if len(kinds) != len(items):
            raise ValueError
        return tuple(convert(i.strip() if isinstance(i, str) else i, k) for i, k in zip(items, kinds, strict=True))
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


def _type_name(kind: Any) -> str:
    """Describe the accepted values of a type, for an error message."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(str, inside))
    if origin is tuple:
        several = {int: "whole numbers", float: "numbers"}.get(inside[0], "words")
        if get_origin(inside[0]) is Literal:
            several += f" ({', '.join(map(str, get_args(inside[0])))})"
        return f"{several if inside[-1] is Ellipsis else f'{len(inside)} {several}'} separated by commas"
    if origin in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else _type_name(k) for k in inside)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, str(kind))


def read_toml(file: Path) -> list[tuple[str, object]]:
    """Read a TOML file as values by dotted key."""
    try:
        return flatten(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"settings file {file} could not be read: {error}") from error


def flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Return nested values by dotted key; a list of tables has the numbers of its entries, from 1, in the keys."""
    out: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out += flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value, 1):
                # A stage without any setting exists too.
                out += flatten(each, f"{prefix}{key}.{number}.") or [(f"{prefix}{key}.{number}.name", "")]
        else:
            out.append((prefix + key, value))
    return out
