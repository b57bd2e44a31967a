"""A matcher as it lies on disk, ready for use: a run folder, or a dual encoder of ``transformers``."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from calligram.errors import UserError
from calligram.features.inputs import Inputs
from calligram.files import file_parts, folder_parts, parts_hash, tensor_parts
from calligram.models import catalog
from calligram.models.matcher import Matcher
from calligram.models.pretrained import load_dual_encoder
from calligram.models.two_branch import use_training_statistics

log = logging.getLogger(__name__)

# Files and folders inside a run folder.
RUN_FILE = "run.json"
"""recipe, settings, collection and versions"""
INPUTS_FOLDER = "inputs"
"""folder: how images and texts are prepared for the matcher"""
MATCHER_FILE = "matcher.json"
"""name and settings of the matcher"""
WEIGHTS_FILE = "best.safetensors"
"""weights of the best epoch"""


@dataclass(frozen=True)
class StoredMatcher:
    """A matcher ready for inference, with everything a query needs."""

    matcher: Matcher
    inputs: Inputs
    fingerprint: str
    """a hash of weights, architecture and preprocessing: equal only where encodings are"""
    source: str
    """what it was loaded from; a folder as an absolute path"""

    def to(self, device: torch.device | str) -> StoredMatcher:
        """The same, with the matcher and what prepares its inputs on a device."""
        self.matcher.to(device)
        self.inputs.to(device)
        return self


def load_matcher(source: str | os.PathLike[str]) -> StoredMatcher:
    """The matcher of a run folder, or of a dual encoder of ``transformers`` by folder or hub name.

    Raises:
        UserError: when there is none, or it has no checkpoint yet.
    """
    name = os.fspath(source)
    folder = Path(name).expanduser()
    if (folder / RUN_FILE).is_file():
        matcher, inputs = load_from_run(folder)
        if use_training_statistics(matcher):
            log.warning(
                "%s was measured with batch statistics (statistics=batch), which a single query does not have; "
                "the statistics of its training are used instead",
                folder,
            )
        return StoredMatcher(matcher, inputs, run_fingerprint(folder), str(folder.resolve()))
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is neither a run (it has no {RUN_FILE}) nor a dual encoder of transformers "
            '(it has no config.json); make a run with "calligram train"'
        )
    if not folder.is_dir() and (folder.is_absolute() or folder.parent.is_dir()):
        # A dual encoder's hub name has one slash; without it, or where a folder is before it, a folder was meant.
        raise UserError(
            f'there is no folder {folder}; make a run with "calligram train", or give a hub name as OWNER/NAME'
        )
    if folder.is_dir():
        name = str(folder.resolve())
    matcher, inputs, _ = load_dual_encoder(name)
    return StoredMatcher(matcher.eval(), inputs, _hash_of_matcher(matcher, inputs), name)


def load_from_run(folder: Path) -> tuple[Matcher, Inputs]:
    """The best matcher of a run folder and its inputs."""
    check_run_folder(folder)
    return catalog.load(folder / MATCHER_FILE, folder / WEIGHTS_FILE), Inputs.read(folder / INPUTS_FOLDER)


def read_run_file(folder: Path) -> dict[str, Any]:
    """What a run folder says of its recipe, settings, collection and versions."""
    try:
        content: dict[str, Any] = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{folder / RUN_FILE} is damaged ({error}); put it back, or train anew into another folder"
        ) from error
    return content


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that is no run, or has no matcher yet."""
    if not (folder / RUN_FILE).is_file():
        raise UserError(f'{folder} is not a run (it has no {RUN_FILE}); make one with "calligram train"')
    if not (folder / WEIGHTS_FILE).is_file():
        raise UserError(f"{folder} has no checkpoint yet; let it finish an epoch, or go on with --resume")


def run_fingerprint(folder: Path) -> str:
    """Of the files that inference reads; settings, metrics and dates do not count."""
    files = (file_parts(folder / name, name) for name in (MATCHER_FILE, WEIGHTS_FILE))
    return parts_hash(chain(*files, folder_parts(folder / INPUTS_FOLDER)), 12)


def _hash_of_matcher(matcher: Matcher, inputs: Inputs) -> str:
    """Of what is in memory: a model from the hub may lie in any cache, in several files."""
    described = json.dumps(catalog.describe(matcher), sort_keys=True).encode()
    with tempfile.TemporaryDirectory() as folder:
        inputs.save(Path(folder))
        parts = chain([described], tensor_parts(matcher.state_dict()), folder_parts(Path(folder)))
        return parts_hash(parts, 12)
