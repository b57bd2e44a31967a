"""Defaults of commands that name no model or no library: a small dual encoder, and libraries in the data folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from calligram.errors import UserError, command
from calligram.files import text_hash
from calligram.hub import hub_answers
from calligram.search.library.manifest import MANIFEST, read_manifest

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


class KnownModel(NamedTuple):
    """A dual encoder of transformers on the Hugging Face hub."""

    name: str
    licence: str
    megabytes: int
    """of the download"""
    about: str
    flickr8k: tuple[float, float] | None = None
    """published R@5 on the test split of Flickr8k without training on it: texts for images, images for texts"""


KNOWN_MODELS = (
    KnownModel("openai/clip-vit-base-patch32", "MIT", 605, "small and fast; English", (91.4, 80.5)),
    KnownModel("google/siglip-base-patch16-224", "Apache-2.0", 813, "196 patches of a picture instead of 49; English"),
    KnownModel("openai/clip-vit-large-patch14", "MIT", 1710, "large and slow; English"),
)
PUBLISHED_IN = "the table of CLIP_benchmark (LAION): ViT-B-32 openai"
"""source of ``KnownModel.flickr8k``"""
DEFAULT_MODEL = KNOWN_MODELS[0]
"""the matcher of ``calligram index`` where no other is given"""


def cached_folder(name: str) -> Path | None:
    """The folder of a model in the cache of the Hugging Face hub; None where it is not complete."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    folder = Path(found).parent if isinstance(found, str) else None
    if folder is None or not any((folder / file).is_file() for file in WEIGHT_FILES):
        return None
    return folder


def folder_bytes(folder: Path) -> int:
    """The size of the files of a model."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def default_matcher(*, offline: bool) -> tuple[str, bool]:
    """The name of the default model, and whether it must be downloaded.

    Raises:
        UserError: with three ways on, when it is not on this machine and cannot be downloaded.
    """
    name = DEFAULT_MODEL.name
    if cached_folder(name) is not None:
        return name, False
    if offline or not hub_answers():
        why = "--offline was given" if offline else "the Hugging Face hub cannot be reached"
        raise UserError(
            f"no matcher is given, the default {name} is not on this machine, and {why}. Three ways on: "
            f"(1) run the command again with a network connection, which downloads {DEFAULT_MODEL.megabytes} MB once; "
            f'(2) download the model elsewhere ("hf download {name} --local-dir FOLDER"), copy the folder, and run '
            '"calligram index FOLDER PICTURES"; (3) train a matcher here, as "calligram demo --no-serve" does, and run '
            '"calligram index RUN PICTURES"'
        )
    return name, True


# Libraries that "calligram index FOLDER" makes, and that commands without a library find.


def data_folder() -> Path:
    """The folder for data of this program, by the rules of the system."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "calligram"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME"
    given = Path(os.environ.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / ".local" / "share") / "calligram"


def library_of(source: Path) -> Path:
    """The folder of the library of a source for which none is named: the name of the source, and a hash of its path."""
    place = source.resolve()
    name = re.sub(r"[^\w.-]+", "-", place.name).strip(".-") or "pictures"
    return data_folder() / "libraries" / f"{name[:60]}-{text_hash(str(place), 4)}"


def default_libraries() -> list[Path]:
    """The libraries in the data folder, by name."""
    folder = data_folder() / "libraries"
    return sorted(place for place in folder.iterdir() if (place / MANIFEST).is_file()) if folder.is_dir() else []


def find_library(given: Path | None = None) -> Path:
    """The library that a command means: the given one, that of the present folder, or the only one.

    Raises:
        UserError: when there is none, or several could be meant.
    """
    if given is not None:
        return given
    known = default_libraries()
    here = [library for library in known if _holds(library, Path.cwd().resolve())]
    for found in (here, known):
        if len(found) == 1:
            return found[0]
    if not known:
        raise UserError(
            f"no library is given, and there is none in {data_folder()}; make one with "
            f"{command('calligram', 'index', 'FOLDER')}"
        )
    listed = "; ".join(f"{library} ({', '.join(_roots(library))})" for library in known)
    raise UserError(f"several libraries could be meant; give the folder of one as LIBRARY: {listed}")


def _roots(library: Path) -> list[str]:
    try:
        return [source.root for source in read_manifest(library).sources]
    except UserError:
        return ["it cannot be read"]


def _holds(library: Path, folder: Path) -> bool:
    """Whether a folder belongs to a source of a library."""
    return any(folder.is_relative_to(root) for root in _roots(library))
