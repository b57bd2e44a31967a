"""Settings of recipes: frozen dataclasses whose values come from defaults, a preset, a TOML file and ``key=value``.

The type of a field holds its one-line description, ``Annotated[int, "number of epochs"]``. ``calligram list RECIPE``
prints it. A pair of numbers after the description gives the smallest and the largest value.
"""

from __future__ import annotations

import json
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from calligram.errors import UserError, unknown

S = TypeVar("S")
FINITE = (-1e300, 1e300)
"""bounds of a number without bounds of its own; comparisons with NaN are false, so NaN is refused too"""

RENAMED_SETTINGS: Mapping[str, str] = {
    "average": "ema_decay",
    "blank": "word_dropout",
    "text.blank": "text.word_dropout",
    "image.hide": "image.region_dropout",
    "mmca.hide": "mmca.region_dropout",
    "optim.parts": "optim.lr_scale",
    "first.optim.parts": "first.optim.lr_scale",
    "second.optim.parts": "second.optim.lr_scale",
    "follow": "distillation_weight",
    "of_teacher": "teacher_temperature",
    "pairs": "infonce_weight",
    "hard.texts": "mined.texts",
    "hard.images": "mined.images",
    "hard.spread": "mined.spread",
    "offline.hard.texts": "offline.mined.texts",
    "offline.hard.images": "offline.mined.images",
    "offline.hard.spread": "offline.mined.spread",
    "pseudo.said": "pseudo.sources",
    "pseudo.of": "pseudo.images",
    "pseudo.most": "pseudo.max_regions",
    "pseudo.least": "pseudo.min_score",
    "pseudo.label_least": "pseudo.min_label_score",
    "pseudo.learnt_least": "pseudo.min_word_images",
    "pseudo.found": "pseudo.retrieved",
    "pseudo.source": "pseudo.region_source",
    "least": "min_probability",
    "members": "ensemble_members",
    "classifier.start": "classifier.init",
    "vsrn.captions": "vsrn.caption_weight",
    "vsrn.writer": "vsrn.decoder_dim",
    "chunks": "chunker_captions",
    "region.finder": "region.proposer",
}
"""Old key of each setting that was renamed, and its present key.

Users get an error that names the present key. Files written before the change are translated when they are read.
"""


@dataclass(frozen=True)
class Setting:
    """One setting of a recipe."""

    key: str
    """dotted, such as ``image.crop``"""
    type: Any
    default: object
    description: str
    bounds: tuple[float, float] | None = None
    """smallest and largest value"""


def settings_fields(settings: object, prefix: str = "") -> list[Setting]:
    """List all settings of a dataclass instance; nested ones have the key ``outer.inner``."""
    hints = get_type_hints(type(settings), include_extras=True)
    found: list[Setting] = []
    for item in fields(settings):  # type: ignore[arg-type]
        value, hint, description, bounds = getattr(settings, item.name), hints[item.name], "", None
        if get_origin(hint) is Annotated:
            hint, description, *rest = get_args(hint)
            bounds = rest[0] if rest else None
        if is_dataclass(value):
            found += settings_fields(value, f"{prefix}{item.name}.")
        else:
            found.append(Setting(prefix + item.name, hint, value, description, bounds))
    return found


def resolve(defaults: S, changes: Sequence[str] = (), file: Path | None = None) -> S:
    """Return settings: the defaults, then a preset, then a TOML file, then ``key=value`` changes.

    A recipe with ``presets`` has a setting that names one of them: ``preset``, or the setting named by ``preset_by``.

    Raises:
        UserError: for an unknown or renamed key, a value of the wrong type, or a change without ``=``.
    """
    known = {setting.key: setting for setting in settings_fields(defaults)}
    values: dict[str, object] = {}
    given = [*_read_toml(file), *(_split(change) for change in changes)]
    for key, raw in [*_preset_values(defaults, given), *given]:
        if key not in known:
            if RENAMED_SETTINGS.get(key) in known:
                raise UserError(f"setting {key} is now called {RENAMED_SETTINGS[key]}")
            raise unknown("setting", key, known)
        values[key] = _parse(raw, known[key])
    return _replace(defaults, values)


def as_plain(settings: object) -> dict[str, object]:
    """Return settings as JSON values, nested."""
    plain: dict[str, object] = json.loads(json.dumps(asdict(settings)))  # type: ignore[call-overload]
    return plain


def from_plain(defaults: S, plain: Mapping[str, Any]) -> S:
    """Return settings from the output of ``as_plain``, also of an earlier version; unknown keys are ignored."""
    known = {setting.key: setting for setting in settings_fields(defaults)}
    translated = with_present_keys(dict(_flatten(plain)))
    return _replace(defaults, {key: _parse(raw, known[key]) for key, raw in translated.items() if key in known})


def changed(settings: object, defaults: object) -> dict[str, object]:
    """Return the settings that differ from the defaults, by dotted key."""
    before = {setting.key: setting.default for setting in settings_fields(defaults)}
    return {s.key: s.default for s in settings_fields(settings) if s.default != before.get(s.key)}


def with_present_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the old keys of settings, given by dotted key."""
    return {RENAMED_SETTINGS.get(key, key): value for key, value in flat.items()}


def with_present_changes(changes: Iterable[str]) -> tuple[str, ...]:
    """Translate the old keys of ``key=value`` lines that a file holds."""
    split = (change.partition("=") for change in changes)
    return tuple(f"{RENAMED_SETTINGS.get(key, key)}{sign}{value}" for key, sign, value in split)


def translate_run(about: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the old keys of the settings in a ``run.json``."""
    nested: dict[str, Any] = {}
    for key, value in with_present_keys(dict(_flatten(about.get("settings", {})))).items():
        *outer, name = key.split(".")
        place = nested
        for step in outer:
            place = place.setdefault(step, {})
        place[name] = value
    return {**about, "settings": nested}


def _split(change: str) -> tuple[str, object]:
    key, sign, value = change.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set takes key=value, got '{change}'")
    return key.strip(), value.strip()


def _preset_values(defaults: object, given: Sequence[tuple[str, object]]) -> list[tuple[str, object]]:
    """Return the values of the preset that was named last; none where no preset of that name exists."""
    presets: Mapping[object, Sequence[str]] = getattr(defaults, "presets", {})
    named = [raw for key, raw in given if key == getattr(defaults, "preset_by", "preset")]
    return [_split(change) for change in presets.get(named[-1], ())] if named else []


def _read_toml(file: Path | None) -> list[tuple[str, object]]:
    if file is None:
        return []
    try:
        return _flatten(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"settings file {file} could not be read: {error}") from error


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    out: list[tuple[str, object]] = []
    for key, value in tree.items():
        nested = isinstance(value, Mapping)
        out += _flatten(value, f"{prefix}{key}.") if nested else [(prefix + key, value)]
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


def _parse(raw: object, setting: Setting) -> object:
    low, high = setting.bounds or FINITE
    try:
        value = _convert(raw, setting.type)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float | int) and not low <= number <= high:
                raise ValueError
    except (ValueError, TypeError, OverflowError):
        range_ = f" from {low:g} to {high:g}" if setting.bounds else ""
        raise UserError(f"setting {setting.key} takes {_type_name(setting.type)}{range_}, got {raw!r}") from None
    return value


def _convert(raw: object, kind: Any) -> object:
    """Convert text, or a value of TOML or JSON, to a type; raise ValueError or TypeError where that is impossible."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if raw is None or (isinstance(raw, str) and raw.lower() in ("none", "")):
            return None
        return _convert(raw, next(k for k in inside if k is not type(None)))
    if origin is Literal:
        if raw not in inside:
            raise ValueError
        return raw
    if origin is tuple:
        items = [i for i in raw.strip("()[] ").split(",") if i.strip()] if isinstance(raw, str) else list(raw)  # type: ignore[call-overload]
        kinds = [inside[0]] * len(items) if inside[-1] is Ellipsis else list(inside)
        if len(kinds) != len(items):
            raise ValueError
        return tuple(_convert(i.strip() if isinstance(i, str) else i, k) for i, k in zip(items, kinds, strict=True))
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
