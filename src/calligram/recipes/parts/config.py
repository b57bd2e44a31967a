"""Settings of runs: frozen dataclasses whose values come from a preset, a TOML file, ``key=value`` or Python.

The type of a field holds its one-line description, ``Annotated[int, "number of epochs"]``. ``calligram show PRESET``
prints it. A pair of numbers after the description gives the smallest and the largest value. ``RARE`` after it marks a
setting that few users change.

Two kinds of fields hold more than a value. A field of components holds settings of matchers or of terms: their names
are its value, as in ``terms=infonce,instance``, and the settings of each have its name, as in ``instance.weight=0.5``.
Several matchers of one name have these settings in common; a number names one of them, as in ``scan.2.direction=i2t``.
A field of stages holds changes to the other settings, as in ``stages.2.lr=0.0001``.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields, is_dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from calligram.errors import UserError, unknown
from calligram.models.old_settings import present_key
from calligram.recipes.parts.run_settings import (
    STAGE_KEYS,
    STAGES,
    Setting,
    StageSettings,
    declared_settings,
    flatten,
    parse,
    read_toml,
)

S = TypeVar("S")


class SettingsTable(dict[str, type[Any]]):
    """A small catalogue of settings classes by name."""

    def name_of(self, settings: Any) -> str:
        """Return the name of a settings object."""
        return next(name for name, own in self.items() if type(settings) is own)


def components(catalog: Any, kind: str, default: tuple[Any, ...] = ()) -> Any:
    """Return a dataclass field that holds settings of a catalogue.

    Args:
        catalog: settings classes by name; ``name_of`` returns the name of a settings object.
        kind: the word for one of them in error messages.
    """
    return field(default=default, metadata={"components": catalog, "kind": kind})


def settings_fields(settings: object, prefix: str = "", *, mark_inert: bool = False) -> list[Setting]:
    """List all settings of a dataclass instance; nested ones have the key ``outer.inner``.

    Args:
        mark_inert: mark settings without effect.
    """
    found: list[Setting] = []
    inert: frozenset[str] = getattr(settings, "inert", frozenset()) if mark_inert else frozenset()
    taken = {item.name for item in fields(settings)}  # type: ignore[arg-type]
    for item, setting in declared_settings(settings, prefix):
        value = getattr(settings, item.name)
        if "components" in item.metadata:
            names = component_names(item, value)
            check_component_names(item.metadata["kind"], names, taken)
            taken |= set(names)
            found.append(replace(setting, default=names))
            found += _component_settings(names, value, mark_inert=mark_inert)
        elif item.name == STAGES:
            everywhere = keys_of_all_stages(settings)
            of_stages = _stage_fields(value, {s.key: s for s in found})
            # A setting that every stage changes has no effect itself.
            found = [*(replace(s, inert=s.inert or s.key in everywhere) for s in found), *of_stages]
        elif is_dataclass(value):
            hidden = item.name in inert
            inner = settings_fields(value, f"{prefix}{item.name}.", mark_inert=mark_inert)
            found += [replace(s, inert=s.inert or hidden) for s in inner]
        else:
            found.append(replace(setting, inert=item.name in inert))
    return found


def check_component_names(kind: str, names: Iterable[str], taken: Iterable[str]) -> None:
    """Refuse a component whose name another setting has, because its keys begin with its name."""
    for name in sorted({*names} & {*taken}):
        raise UserError(f"a {kind} cannot have the name '{name}', because a setting has this name; choose another name")


def _component_settings(names: Sequence[str], value: Sequence[Any], *, mark_inert: bool) -> Iterator[Setting]:
    """Yield the settings of components. If two have the same name, only settings that differ are yielded twice."""
    first: dict[str, dict[str, object]] = {}
    for place, (name, component) in enumerate(zip(names, value, strict=True)):
        annotated = {f.name for f, s in declared_settings(component) if s.description}
        own = [s for s in settings_fields(component, mark_inert=mark_inert) if s.key.split(".")[0] in annotated]
        of_first = first.get(name, {})
        number = f"{names[: place + 1].count(name)}." if name in first else ""
        first.setdefault(name, {s.key: s.default for s in own})
        for each in own:
            if not number or each.default != of_first[each.key]:
                yield replace(each, key=f"{name}.{number}{each.key}")


def shown_settings(
    settings: object, defaults: object, *, given: Iterable[str] = (), rare: bool = False
) -> list[Setting]:
    """Return the settings that have an effect.

    Args:
        defaults: of the recipe; a rare setting that differs from them is always shown.
        given: keys that a preset sets; they are shown too.
        rare: also return all settings that few users change.
    """
    given, before = set(given), _values_before(settings, defaults)
    return [
        s
        for s in settings_fields(settings, mark_inert=True)
        if not s.inert and (rare or not s.rare or s.key in given or s.default != before.get(s.key, s.default))
    ]


def _values_before(settings: S, defaults: S) -> dict[str, object]:
    """Return default values by key; components that the defaults do not have get the defaults of their classes."""
    of_classes = {
        item.name: tuple(type(each)() for each in getattr(settings, item.name)) for item in component_fields(settings)
    }
    own = unchecked(replace_stages(settings), of_classes)
    return {s.key: s.default for each in (own, defaults) for s in settings_fields(each)}


def _stage_fields(stages: Sequence[StageSettings], known: Mapping[str, Setting]) -> list[Setting]:
    found = []
    for number, each in enumerate(stages, 1):
        own = [s for _, s in declared_settings(each) if s.key in STAGE_KEYS and s.default]
        changed_ = [
            replace(known[key], default=value, inert=False, rare=False) for key, value in each.changes if key in known
        ]
        if not own and not changed_:  # so that a stage without any change is written too
            own = [s for _, s in declared_settings(each) if s.key == "name"]
        found += [replace(s, key=f"{STAGES}.{number}.{s.key}") for s in (*own, *changed_)]
    return found


def keys_of_all_stages(settings: object) -> set[str]:
    """Return the keys that every stage changes, so that their values outside of stages have no effect."""
    of_stages = [{key for key, _ in each.changes} for each in getattr(settings, STAGES, ())]
    return set.intersection(*of_stages) if of_stages else set()


def component_fields(settings: object) -> list[Field[Any]]:
    """Return the fields that hold components."""
    return [item for item in fields(settings) if "components" in item.metadata]  # type: ignore[arg-type]


def component_names(item: Field[Any], value: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the components of a field."""
    return tuple(item.metadata["components"].name_of(each) for each in value)


def flat_values(settings: object) -> dict[str, Any]:
    """Return all settings as JSON values, by dotted key."""
    values = {s.key: s.default for s in settings_fields(settings)}
    return json.loads(json.dumps(values))  # type: ignore[no-any-return]


def resolve(defaults: S, changes: Sequence[str] = (), file: Path | None = None) -> S:
    """Return settings: the defaults, then a TOML file, then ``key=value`` changes.

    Raises:
        UserError: for an unknown or renamed key, a key that every stage changes, a value of the wrong type, or a change
            without ``=``.
    """
    given = [*(read_toml(file) if file else []), *(_split(change) for change in changes)]
    settings = with_values(defaults, given)
    for key in (key for key, _ in given if key in keys_of_all_stages(settings)):
        raise UserError(f"setting {key} has no effect, because every stage has its own; give {STAGES}.1.{key}=VALUE")
    return settings


def with_values(defaults: S, given: Sequence[tuple[str, object]], *, strict: bool = True) -> S:
    """Return settings with other values by dotted key; a later value replaces an earlier one.

    Args:
        strict: refuse unknown keys; otherwise they are ignored.
    """
    settings = defaults
    if strict and not hasattr(settings, STAGES) and any(key.split(".")[0] == STAGES for key, _ in given):
        raise UserError("this recipe has no stages; leave stages out")
    of_stages = [(key, raw) for key, raw in given if key.startswith(f"{STAGES}.")]
    plain = [(key, raw) for key, raw in given if not key.startswith(f"{STAGES}.")]
    names = {item.name: item for item in component_fields(settings)}
    chosen = {key: raw for key, raw in plain if key in names}
    settings = unchecked(
        settings, {key: _components(names[key], getattr(settings, key), raw) for key, raw in chosen.items()}
    )
    known = {s.key: s for s in settings_fields(settings) if not s.key.startswith(f"{STAGES}.")}
    values: dict[str, object] = {}
    for key, raw in plain:
        of_all = _without_number(settings, key)
        if of_all in known and key not in names:
            values[key] = parse(raw, replace(known[of_all], key=key))
        elif key not in names and strict:
            raise _unknown_key(key, known, settings)
    settings = _replace(settings, values)
    return _with_stages(settings, of_stages, strict=strict) if hasattr(settings, STAGES) else settings


def _without_number(settings: object, key: str) -> str:
    """Return the key for all components of a name, from the key for one of them such as ``scan.2.direction``."""
    name, number, own = [*key.split(".", 2), "", ""][:3]
    names = [n for item in component_fields(settings) for n in component_names(item, getattr(settings, item.name))]
    return f"{name}.{own}" if number.isdigit() and 1 <= int(number) <= names.count(name) else key


def unchecked(settings: S, values: Mapping[str, object]) -> S:
    """Return settings with other values of fields that are not checked against each other; further values may come."""
    other = copy.copy(settings)
    for name, value in values.items():
        object.__setattr__(other, name, value)
    return other


def _components(item: Field[Any], present: Sequence[Any], raw: object) -> tuple[Any, ...]:
    """Return the components with these names; present ones keep their settings."""
    catalog, kind = item.metadata["components"], item.metadata["kind"]
    names = parse(raw, Setting(item.name, tuple[str, ...], (), ""))
    assert isinstance(names, tuple)
    present_names = component_names(item, present)
    found = []
    for place, name in enumerate(names):
        kept = [each for each, own in zip(present, present_names, strict=True) if own == name][
            : 1 + names[:place].count(name)
        ]
        try:
            found.append(kept[-1] if kept else catalog[name]())
        except KeyError:
            raise unknown(kind, name, catalog) from None
    return tuple(found)


def _with_stages(settings: S, given: Sequence[tuple[str, object]], *, strict: bool) -> S:
    known = {s.key: s for s in settings_fields(replace_stages(settings))}
    own = {s.key: s for _, s in declared_settings(StageSettings()) if s.key in STAGE_KEYS}
    stages: list[StageSettings] = list(getattr(settings, STAGES))
    for full, raw in given:
        _, number, key = full.split(".", 2) if full.count(".") > 1 else (full, "", "")
        if not number.isdigit() or not 1 <= int(number) <= len(stages) + 1:
            present = f"has the stages 1 to {len(stages)}" if stages else "has no stages yet"
            raise UserError(
                f"setting {full}: this run {present}; give stages.NUMBER.KEY=VALUE, "
                f"where NUMBER {len(stages) + 1} adds a stage"
            )
        if int(number) > len(stages):
            stages.append(StageSettings())
        place = int(number) - 1
        if key in own:
            change: dict[str, Any] = {key: parse(raw, replace(own[key], key=full))}
            stages[place] = replace(stages[place], **change)
        elif key in known and _changes_in_stages(settings, key):
            value = parse(raw, replace(known[key], key=full))
            stages[place] = replace(stages[place], changes=(*_without_key(stages[place].changes, key), (key, value)))
        elif strict:
            raise _unknown_in_stage(settings, key, full)
    return replace(settings, **{STAGES: tuple(stages)})  # type: ignore[type-var]


def _unknown_in_stage(settings: object, key: str, full: str = "") -> UserError:
    """Return the error for a key that a stage cannot change."""
    known = {s.key: s for s in settings_fields(replace_stages(settings))}
    if key in known:
        return UserError(
            f"setting {full or key}: {key} holds for the whole run, so a stage cannot change it; give {key}=VALUE "
            "without a stage"
        )
    error = _unknown_key(key, known, settings)
    if not str(error).startswith("unknown"):
        return error
    return unknown("setting of a stage", key, {*STAGE_KEYS, *(k for k in known if _changes_in_stages(settings, k))})


def _changes_in_stages(settings: object, key: str) -> bool:
    """Whether a stage can change a setting: the settings class names it, or it belongs to a term."""
    terms = {term.name for term in getattr(settings, "terms", ())}
    return key.partition(".")[0] in terms or any(fnmatch(key, each) for each in getattr(settings, "in_stages", ()))


def _without_key(changes: Iterable[tuple[str, object]], key: str) -> tuple[tuple[str, object], ...]:
    return tuple((each, value) for each, value in changes if each != key)


def settings_of_stage(settings: S, each: StageSettings) -> S:
    """Return the settings that hold in a stage; unknown keys of a stage from Python are refused."""
    base = replace(settings, **{STAGES: ()})  # type: ignore[type-var]
    known = {s.key: s for s in settings_fields(base)}
    for key, _ in each.changes:
        # A change to a term that the run does not have has no effect: the terms of a preset may be replaced.
        absent = key not in known and key.split(".")[0] in _component_keys(base)
        if not absent and not (key in known and _changes_in_stages(base, key)):
            raise _unknown_in_stage(base, key)
    return _replace(base, {key: value for key, value in each.changes if key in known})


def _component_keys(settings: object) -> set[str]:
    return {name for item in component_fields(settings) for name in item.metadata["components"]}


def _unknown_key(key: str, known: Mapping[str, Setting], settings: object) -> UserError:
    """Return the error for an unknown key: it names the present key, or the component that has the setting."""
    new = present_key(key)
    # Some recipes have none of the settings of the present name.
    names = {f.name for f in fields(settings)} | _component_keys(settings)  # type: ignore[arg-type]
    if new and (key == "preset" or {word.split(".")[0] for word in re.findall(r"[\w.-]+", new)} & names):
        return UserError(f"setting {key} is now called {new}")
    first = key.partition(".")[0]
    for item in component_fields(settings):
        if first not in item.metadata["components"] or any(k.startswith(f"{first}.") for k in known):
            continue
        present = ",".join(map(str, known[item.name].default))  # type: ignore[call-overload]
        return UserError(
            f"setting {key} is for {item.name}={first}, and this run has {item.name}={present}; add {first} to "
            f"{item.name}=, or leave the setting out"
        )
    return unknown("setting", key, known, grouped=True)


def as_plain(settings: object) -> dict[str, Any]:
    """Return settings as JSON values, nested as in a TOML file."""
    nested: dict[str, Any] = {}
    for key, value in flat_values(settings).items():
        *outer, name = key.split(".")
        place = nested
        if outer and outer[0] == STAGES:
            number = int(outer[1])
            stages = place.setdefault(STAGES, [])
            stages += [{} for _ in range(number - len(stages))]
            place, outer = stages[number - 1], outer[2:]
        for step in outer:
            place = place.setdefault(step, {})
        place[name] = value
    return nested


def from_plain(defaults: S, plain: Mapping[str, Any]) -> S:
    """Return settings from the output of ``as_plain``; unknown keys are ignored."""
    return with_values(replace_stages(defaults), flatten(plain), strict=False)


def replace_stages(settings: S) -> S:
    """Return settings without stages."""
    return replace(settings, **{STAGES: ()}) if hasattr(settings, STAGES) else settings  # type: ignore[type-var]


def changed(settings: object, defaults: object) -> dict[str, object]:
    """Return the settings that differ from the defaults, by dotted key.

    The settings of a matcher or a term that the defaults do not have are compared with its own defaults.
    """
    before = _values_before(settings, defaults)
    return {s.key: s.default for s in settings_fields(settings) if s.key not in before or s.default != before[s.key]}


def _split(change: str) -> tuple[str, object]:
    key, sign, value = change.partition("=")
    if not sign or not key.strip():
        raise UserError(f"--set takes key=value, got '{change}'")
    return key.strip(), value.strip()


def _replace(settings: S, values: Mapping[str, object]) -> S:
    own: dict[str, Any] = {}
    for item in fields(settings):  # type: ignore[arg-type]
        name, current = item.name, getattr(settings, item.name)
        own[name] = current
        if "components" in item.metadata:
            names = component_names(item, current)
            own[name] = tuple(
                _replace(
                    each, _inner(values, own_name) | _inner(values, f"{own_name}.{names[: n + 1].count(own_name)}")
                )
                for n, (own_name, each) in enumerate(zip(names, current, strict=True))
            )
        elif is_dataclass(current) and (inner := _inner(values, name)):
            own[name] = _replace(current, inner)
        elif name in values:
            own[name] = values[name]
    return type(settings)(**own)


def _inner(values: Mapping[str, object], name: str) -> dict[str, object]:
    return {k.removeprefix(f"{name}."): v for k, v in values.items() if k.startswith(f"{name}.")}
