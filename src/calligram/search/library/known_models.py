"""Dual encoders that search photographs without training: the default, and where their files are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from calligram.errors import UserError
from calligram.hub import hub_answers

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


class KnownModel(NamedTuple):
    """A dual encoder of transformers on the Hugging Face hub."""

    name: str
    licence: str
    megabytes: int
    """of the download"""
    about: str


KNOWN_MODELS = (
    KnownModel("openai/clip-vit-base-patch32", "MIT", 605, "small and fast; English"),
    KnownModel("google/siglip-base-patch16-224", "Apache-2.0", 813, "196 patches of a picture instead of 49; English"),
    KnownModel("openai/clip-vit-large-patch14", "MIT", 1710, "large and slow; English"),
)
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
