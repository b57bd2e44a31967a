"""The table of matchers, and how a matcher is described, built, saved and loaded."""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import reduce
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeVar, get_type_hints

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from calligram.checksums import check_listed, file_parts, folder_parts
from calligram.errors import UserError, unknown, wrong_folder
from calligram.features.inputs import Inputs
from calligram.files import parts_hash
from calligram.lazy import Catalog, entry_points_of, reference_to
from calligram.models.matcher import Matcher
from calligram.records import anything, map_of, number, optional, read_object, record, text
from calligram.vectors import tensor_parts

M = TypeVar("M", bound=Matcher)


class MatcherEntry(NamedTuple):
    """A matcher class and its settings class."""

    matcher: type[Matcher]
    settings: type[Any] | None
    """a dataclass; None for a matcher that is built without arguments"""


class MatcherCatalog(Catalog[MatcherEntry]):
    """Matchers by name; the module of a matcher is imported when its entry is read.

    A reference is ``"module:MatcherClass:SettingsClass"``, and an entry point ``"module:MatcherClass"``.
    The decorator ``matcher`` adds classes that are defined elsewhere.
    """

    def __getitem__(self, name: str) -> MatcherEntry:
        if name not in self.references:
            return super().__getitem__(name)
        module, matcher, settings = self.references[name].split(":")
        found = import_module(module)
        return MatcherEntry(getattr(found, matcher), getattr(found, settings))

    def _resolve(self, reference: str) -> MatcherEntry:
        found = resolve_name(reference)
        return MatcherEntry(found, settings_class(found))

    def _defined(self, value: MatcherEntry) -> type[Matcher]:
        return value.matcher

    def name_of(self, matcher: Matcher) -> str:
        """Return the name of a matcher's class. Imports nothing.

        Raises:
            UserError: when the class is not in the table.
        """
        for name, entry in self._registered.items():
            if entry.matcher is type(matcher):
                return name
        path = f"{type(matcher).__module__}:{type(matcher).__qualname__}"
        for name, reference in self.references.items():
            if reference.rpartition(":")[0] == path:
                return name
        for name, reference in entry_points_of(self.group).items():
            if reference == path:
                return name
        raise UserError(
            f"the matcher class {path.replace(':', '.')} has no name, so it cannot be saved; write "
            '@calligram.matcher("NAME") above the class'
        )

    def name_of_settings(self, settings_type: type[Any]) -> str:
        """Return the name of the matcher that has this settings class.

        Raises:
            UserError: when no matcher of the table has it.
        """
        for name, entry in self._registered.items():
            if entry.settings is settings_type:
                return name
        for name, reference in self.references.items():
            module, _, own = reference.split(":")
            if (module, own) == (settings_type.__module__, settings_type.__qualname__):
                return name
        for name in entry_points_of(self.group):
            if self[name].settings is settings_type:
                return name
        raise UserError(f"no matcher has the settings class {settings_type.__qualname__}")


def matcher(name: str, *, settings: type[Any] | None = None) -> Callable[[type[M]], type[M]]:
    """Return a class decorator that makes a ``Matcher`` known under a name, so that it can be saved and loaded.

    Args:
        settings: dataclass that the constructor takes. By default the class that the annotation ``settings`` of the
            matcher class names. A matcher without both is built without arguments.
    """

    def register(matcher_class: type[M]) -> type[M]:
        MATCHERS.register(name, MatcherEntry(matcher_class, settings or settings_class(matcher_class)))
        return matcher_class

    return register


def settings_class(matcher_class: type[Matcher]) -> type[Any] | None:
    """Return the settings dataclass of a matcher class; None if its constructor takes no arguments.

    It is the annotation ``settings`` of the class, or else of the argument ``settings`` of its constructor.

    Raises:
        UserError: when the constructor takes arguments, and no annotation names a dataclass of the module.
    """
    owners = [owner for owner in matcher_class.__mro__ if issubclass(owner, Matcher) and owner is not Matcher]
    written = (inspect.get_annotations(owner).get("settings") for owner in owners)
    annotation = next((found for found in written if found is not None), None)
    arguments = [
        argument
        for argument in inspect.signature(matcher_class).parameters.values()
        if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)  # those of nn.Module
    ]
    if annotation is None and arguments and arguments[0].annotation is not arguments[0].empty:
        annotation = arguments[0].annotation
    if annotation is None and all(argument.default is not argument.empty for argument in arguments):
        return None
    for owner in owners:
        found = annotation
        if isinstance(annotation, str):
            found = reduce(lambda scope, part: getattr(scope, part, None), annotation.split("."), _module(owner))
        if isinstance(found, type) and is_dataclass(found):
            return found
    raise UserError(
        f"the settings class of {matcher_class.__qualname__} is not known; write the annotation 'settings: CLASS' with "
        "a dataclass of the same module into the class, or give it with @calligram.matcher(NAME, settings=CLASS)"
    )


def _module(owner: type) -> Any:
    return sys.modules[owner.__module__]


MATCHERS = MatcherCatalog(
    {
        "vse": "calligram.models.vse:VSE:VSESettings",
        "pretrained": "calligram.models.pretrained:Pretrained:PretrainedSettings",
        "cca": "calligram.models.cca:CCA:CCASettings",
        "weighted": "calligram.models.ensemble:SentencePhraseMatcher:SentencePhraseSettings",
        "ensemble": "calligram.models.ensemble:Ensemble:EnsembleSettings",
        "scan": "calligram.models.scan:SCAN:SCANSettings",
        "bfan": "calligram.models.bfan:BFAN:BFANSettings",
        "vsrn": "calligram.models.vsrn:VSRN:VSRNSettings",
        "a3vse": "calligram.models.a3vse:A3VSE:A3VSESettings",
        "mmca": "calligram.models.mmca:MMCA:MMCASettings",
        "tags": "calligram.models.tags:TagMatcher:TagSettings",
        "two-branch": "calligram.models.two_branch:TwoBranchEmbedding:TwoBranchSettings",
        "two-branch-similarity": "calligram.models.two_branch:TwoBranchSimilarity:TwoBranchSimilaritySettings",
    },
    "calligram.matchers",
)
"""all matchers, by the name in ``matcher.json``"""


def describe(matcher: Matcher) -> dict[str, object]:
    """Return the name and the settings of a matcher, as JSON takes them; also the class if it is from outside."""
    name = MATCHERS.name_of(matcher)
    settings = getattr(matcher, "settings", None)
    outside = {} if name in MATCHERS.references else {"class": reference_to(type(matcher))}
    return {"matcher": name, **outside, "settings": {} if settings is None else asdict(settings)}


def build(description: Mapping[str, Any]) -> Matcher:
    """Build a matcher with random weights from the output of ``describe``, also of older versions.

    Imports nothing that the description names.

    Raises:
        UserError: when the matcher or a setting is unknown.
    """
    name = str(description.get("matcher"))
    outside = name not in MATCHERS.references
    entry = MATCHERS.find(name, "matcher", str(description.get("class", ""))) if outside else MATCHERS[name]
    if entry.settings is None:
        return entry.matcher()
    settings = description["settings"]
    if not outside and not any(isinstance(value, Mapping) for value in settings.values()):
        from calligram.models.old_settings import nested_settings

        settings = nested_settings(name, settings)
    return entry.matcher(_read_settings(entry.settings, settings, name))


def _read_settings(kind: type[Any], content: Mapping[str, Any], matcher: str) -> Any:
    """Build a settings dataclass from JSON content, with its nested dataclasses; lists become tuples."""
    known = {field.name for field in fields(kind)}
    # Not every class from outside has annotations that can be resolved, so they are read where they are needed.
    types = get_type_hints(kind) if any(isinstance(value, Mapping) for value in content.values()) else {}
    found: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            raise unknown(f"setting of matcher {matcher}", key, known)
        if isinstance(value, Mapping) and is_dataclass(types[key]):
            found[key] = _read_settings(types[key], value, matcher)
        else:
            found[key] = tuple(value) if isinstance(value, list) else value
    return kind(**found)


def save(matcher: Matcher, description_file: Path, weights_file: Path) -> None:
    """Write the description as JSON and the weights as safetensors."""
    description_file.write_text(json.dumps(describe(matcher), indent=1) + "\n", encoding="utf-8")
    save_file({k: v.detach().cpu().contiguous() for k, v in matcher.state_dict().items()}, weights_file)


def load(description_file: Path, weights_file: Path) -> Matcher:
    """Read a matcher that ``save`` wrote, in evaluation mode.

    Raises:
        UserError: when a file is damaged, or describes no matcher.
    """
    for file in (description_file, weights_file):
        check_listed(file.parent, [file.name], RESTORE)
    try:
        matcher = build(read_object(description_file, RESTORE, DESCRIPTION_SCHEMA))
        matcher.load_state_dict(load_file(weights_file))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"no matcher could be read from {weights_file} ({error})") from error
    except Exception as error:  # settings of any content reach the constructors of any class
        raise UserError(f"no matcher could be read from {weights_file} ({_first_line(error)}); {RESTORE}") from error
    return matcher.eval()


def _first_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# Load a trained matcher from a run folder, or a dual encoder of ``transformers``, for inference.

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
RESTORE = "restore it from a copy, or train again into another folder"
DESCRIPTION_SCHEMA = record({"matcher": text()}, {"class": text(), "settings": map_of(anything)}, closed=False)
"""of ``matcher.json``"""
RUN_SCHEMA = record(
    {},
    {
        **{"recipe": text(), "preset": text(), "settings": map_of(anything), "collection": text(), "content": text()},
        **{"collection folder": optional(text()), "teachers": map_of(anything), "command": text(), "seconds": number},
        **{"calligram": text(), "torch": text(), "python": text(), "device": text(), "class": text()},
    },
    closed=False,
)
"""of ``run.json``; programs add their own entries"""


@dataclass(frozen=True)
class StoredMatcher:
    """A matcher in evaluation mode, with the inputs that prepare images and texts for it."""

    matcher: Matcher
    inputs: Inputs
    fingerprint: str
    """hash of weights, architecture and preprocessing; two matchers with equal fingerprints give equal encodings"""
    source: str
    """where it was loaded from: an absolute path, or a hub name"""

    def to(self, device: torch.device | str) -> StoredMatcher:
        """Move the matcher and its inputs to a device."""
        self.matcher.to(device)
        self.inputs.to(device)
        return self


def load_matcher(source: str | os.PathLike[str]) -> StoredMatcher:
    """Load the matcher of a run folder, or a dual encoder of ``transformers`` by folder or hub name.

    Raises:
        UserError: when there is no matcher, or the run has no checkpoint yet.
    """
    name = os.fspath(source)
    folder = Path(name).expanduser()
    if (folder / RUN_FILE).is_file():
        matcher, inputs = load_from_run(folder)
        if use_training_statistics(matcher):
            log.warning(
                "%s was evaluated with batch statistics (statistics=batch), which a single query does not have; "
                "the training statistics are used instead",
                folder,
            )
        return StoredMatcher(matcher, inputs, run_fingerprint(folder), str(folder.resolve()))
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is neither a run (it has no {RUN_FILE}) nor a dual encoder of transformers "
            '(it has no config.json); make a run with "calligram train"'
        )
    if not folder.is_dir() and (folder.is_absolute() or folder.parent.is_dir()):
        # A hub name is OWNER/NAME. Without a slash, or when OWNER is an existing folder, the user means a folder.
        raise UserError(
            f'there is no folder {folder}; make a run with "calligram train", or give a hub name as OWNER/NAME'
        )
    if folder.is_dir():
        name = str(folder.resolve())
    from calligram.models.pretrained import load_dual_encoder  # imports transformers, which run folders do not need

    matcher, inputs, _ = load_dual_encoder(name)
    return StoredMatcher(matcher.eval(), inputs, _hash_of_matcher(matcher, inputs), name)


def use_training_statistics(matcher: nn.Module) -> bool:
    """Make batch norm use its training statistics, so that an encoding does not depend on the rest of the batch.

    Changes modules with ``statistics="batch"``, such as ``BranchNorm``.

    Returns:
        Whether any module was changed.
    """
    changed = [module for module in matcher.modules() if getattr(module, "statistics", None) == "batch"]
    for norm in changed:
        norm.statistics = "training"  # type: ignore[assignment]
    return bool(changed)


def load_from_run(folder: Path) -> tuple[Matcher, Inputs]:
    """Load the best matcher of a run folder, and its inputs."""
    check_run_folder(folder)
    return load(folder / MATCHER_FILE, folder / WEIGHTS_FILE), Inputs.read(folder / INPUTS_FOLDER)


def read_run_file(folder: Path) -> dict[str, Any]:
    """Read recipe, preset, settings, collection and versions from the ``run.json`` of a run folder."""
    return read_object(folder / RUN_FILE, RESTORE, RUN_SCHEMA)


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that is not a run, or that has no checkpoint yet."""
    if not (folder / RUN_FILE).is_file():
        raise wrong_folder(folder, "run")
    if not (folder / WEIGHTS_FILE).is_file():
        raise UserError(
            f"{folder} has no checkpoint yet; wait until its first epoch ends, or continue it with --resume"
        )


def run_fingerprint(folder: Path) -> str:
    """Hash the files of a run folder that inference reads. Settings, metrics and dates do not count."""
    files = (file_parts(folder / name, name) for name in (MATCHER_FILE, WEIGHTS_FILE))
    return parts_hash(chain(*files, folder_parts(folder / INPUTS_FOLDER)), 12)


def _hash_of_matcher(matcher: Matcher, inputs: Inputs) -> str:
    """Hash a matcher in memory: the files of a hub model may be in any cache folder, and in several files."""
    described = json.dumps(describe(matcher), sort_keys=True).encode()
    with tempfile.TemporaryDirectory() as folder:
        inputs.save(Path(folder))
        parts = chain([described], tensor_parts(matcher.state_dict()), folder_parts(Path(folder)))
        return parts_hash(parts, 12)
