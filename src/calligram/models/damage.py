"""Find damage in collections and run folders, and mend what can be made again."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from calligram.checksums import DamagedFileError, check_files, check_listed, file_record, read_list
from calligram.data.collection import MANIFEST, Collection
from calligram.errors import UnknownClassError, UserError, command
from calligram.features.store import read_part
from calligram.files import replace_file
from calligram.models.catalog import INPUTS_FOLDER, RUN_FILE, WEIGHTS_FILE, load_from_run, read_run_file
from calligram.records import anything, integer, map_of, number, read_object, record

log = logging.getLogger(__name__)

METRICS_FILE, STATE_FOLDER, LATEST_FILE, POSITION_FILE = "metrics.jsonl", "state", "LATEST", "position.json"
_COUNT = integer(0)
POSITION = record(
    {
        **dict.fromkeys(("stage", "epoch", "batch", "step", "average_steps", "metrics_bytes"), _COUNT),
        **{"best": map_of(number), "seconds": number, "scaler": map_of(anything)},
    }
)
"""schema of the position that a state continues from"""


class Damage(NamedTuple):
    """Something that is damaged, and what can be done."""

    path: Path
    why: str
    cost: str
    """what is lost, or what mending it takes"""
    mend: Callable[[], None] | None = None
    """makes it again, or drops it; None where only the user can do something"""


def file_damage(folder: Path, records: dict[str, str | list[str]], cost: str, *, missing: bool = False) -> list[Damage]:
    """Files that differ from their checksums; all of them are read."""
    found = []
    for name, accepted in records.items():
        try:
            check_files(folder, {name: accepted}, "", missing=missing, again=True)
        except DamagedFileError as error:
            found.append(Damage(error.file, error.why, cost))
        except OSError as error:
            found.append(Damage(folder / name, error.strerror or str(error), cost))
    return found


# Collections.


def collection_damage(folder: Path) -> list[Damage]:
    """What is damaged in a collection."""
    cost = "import it again; captions that people added are lost with the tables captions and matches"
    try:
        collection = Collection.open(folder)
    except UserError as error:
        return [Damage(folder / MANIFEST, str(error), "import the collection again")]
    records, counts = collection.manifest.get("files", {}), collection.manifest.get("counts", {})
    assert isinstance(records, dict)
    assert isinstance(counts, dict)
    found = file_damage(folder, records, cost)
    damaged = {damage.path for damage in found}
    for name in counts:
        try:
            table = collection.table(name)
            if len(table) != counts[name]:
                found.append(Damage(folder / MANIFEST, f"{name} has {len(table)} rows, not {counts[name]}", cost))
        except DamagedFileError as error:
            if error.file not in damaged:
                found.append(Damage(error.file, error.why, cost))
        except UserError as error:
            found.append(Damage(folder / name, str(error), cost))
    if not found:
        found += _picture_damage(collection)
    return found + list(_cache_damage(folder / "cache"))


def _picture_damage(collection: Collection) -> Iterator[Damage]:
    """Picture files that are missing or have another size; their content is not read."""
    images = collection.table("images")
    for row in images.select(["id", "path", "shard", "bytes"]).to_pylist():
        if row["path"] is None or (row["shard"] is not None and row["shard"] >= 0):
            continue
        file = collection.folder / row["path"]
        try:
            size = file.stat().st_size
        except OSError as error:
            yield Damage(file, error.strerror or str(error), f"image {row['id']} cannot be used; import it again")
            continue
        if size != row["bytes"]:
            why = f"it has {size:,} bytes, not {row['bytes']:,}"
            yield Damage(file, why, f"image {row['id']} is another picture; import it again")


def _cache_damage(cache: Path) -> Iterator[Damage]:
    for keys_file in sorted(cache.glob("*/*.json")):
        if not keys_file.stem.isdigit():
            continue
        try:
            read_part(keys_file)
        except UserError as error:
            cost = "these features are computed again when they are needed"
            yield Damage(keys_file, str(error), cost, partial(_drop_part, keys_file))


def _drop_part(keys_file: Path) -> None:
    for file in (keys_file, keys_file.with_suffix(".npy")):
        file.unlink(missing_ok=True)


# Run folders.


def run_damage(folder: Path) -> list[Damage]:
    """What is damaged in a run folder."""
    cost, found = "train again into another folder, or restore it from a copy", []
    try:
        complete = "seconds" in read_run_file(folder)
    except UserError as error:
        return [Damage(folder / RUN_FILE, str(error), cost)]
    for place in (folder, folder / INPUTS_FOLDER):
        try:
            records = read_list(place)
        except DamagedFileError as error:
            found.append(Damage(error.file, error.why, "without it, files are not checked", error.file.unlink))
            continue
        found += file_damage(place, {**records}, cost)
    found = [_mendable_weights(folder, damage) for damage in found]
    if not found and (folder / WEIGHTS_FILE).is_file():
        try:
            load_from_run(folder)
        except UnknownClassError as error:
            log.warning("the files of %s are whole; the matcher was not loaded: %s", folder, error)
        except UserError as error:
            found.append(Damage(folder, str(error), cost))
    found += _state_damage(folder, complete)
    return found + _metrics_damage(folder / METRICS_FILE)


def _mendable_weights(folder: Path, damage: Damage) -> Damage:
    """The best weights can be copied from the state, if the last epoch was the best."""
    if damage.path != folder / WEIGHTS_FILE:
        return damage
    accepted = read_list(folder)[WEIGHTS_FILE]
    for file in sorted((folder / STATE_FOLDER).glob("*/*.safetensors")):
        if file_record(file) in accepted:
            return damage._replace(cost=f"it is copied from {file}", mend=partial(_copy, file, damage.path))
    return damage


def _copy(source: Path, target: Path) -> None:
    with replace_file(target) as partial:
        shutil.copyfile(source, partial)


def _state_damage(folder: Path, complete: bool) -> list[Damage]:
    """A damaged state is dropped: a complete run does not need it."""
    states = folder / STATE_FOLDER
    cost = "nothing, because the run is complete" if complete else "training starts again from its first step"
    try:
        latest_state(folder, again=True)
    except UserError as error:
        file, why = (error.file, error.why) if isinstance(error, DamagedFileError) else (states, str(error))
        return [Damage(file, why, f"the state is dropped; it costs {cost}", lambda: shutil.rmtree(states))]
    return []


def latest_state(run: Path, *, again: bool = False) -> tuple[Path, dict[str, Any]] | None:
    """The folder and the position of the state that a run continues from, compared with checksums and schema.

    Args:
        run: folder of the run.
        again: read all files, also files with an earlier check.

    Returns:
        None if there is no state.

    Raises:
        UserError: when the state is damaged; it names the file, and the field of the position.
    """
    pointer, mends = run / STATE_FOLDER / LATEST_FILE, _mends_state(run)
    if not pointer.is_file():
        return None
    name = pointer.read_bytes()[:100].decode("utf-8", "replace").strip()
    state = pointer.parent / name if re.fullmatch(r"[0-9]+", name) else None
    if state is None or not (state / POSITION_FILE).is_file():
        raise DamagedFileError(pointer, "it names no state", mends)
    check_listed(state, None, mends, again=again)
    return state, read_object(state / POSITION_FILE, mends, POSITION)


@contextmanager
def state_errors(run: Path) -> Iterator[None]:
    """Report tensors of a state that do not fit the matcher, or are no tensors, as a damaged state."""
    try:
        yield
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError, IndexError, SafetensorError) as error:
        if "out of memory" in str(error):
            raise
        why = " ".join(str(error).split())[:200]
        raise DamagedFileError(run / STATE_FOLDER, f"its tensors do not fit: {why}", _mends_state(run)) from error


def _mends_state(run: Path) -> str:
    return f"{command('calligram', 'check', run, '--repair')} drops the state, and the run starts again"


def _metrics_damage(file: Path) -> list[Damage]:
    lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
    kept = [line for line in lines if line.endswith(b"\n") and _is_json(line)]
    wrong = sum(line.endswith(b"\n") for line in lines) - len(kept)
    if not wrong:
        return []
    why, cost = f"{wrong} lines cannot be read", "curves lack these points"
    return [Damage(file, why, cost, lambda: _write(file, b"".join(kept)))]


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _write(file: Path, content: bytes) -> None:
    with replace_file(file) as partial:
        partial.write_bytes(content)
