"""Share a run on the Hugging Face hub: its model card, the folder that is uploaded, upload and download."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from calligram.checksums import LIST_FILE, check_listed
from calligram.errors import UserError, command
from calligram.evaluation.compare import last_round_metrics
from calligram.files import NEW_FOLDER, move_folder, replace_json, scratch_folder
from calligram.hub import hub_answers
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, check_run_folder
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import as_plain
from calligram.training.loggers import LOGGERS_KEY, flat_entries
from calligram.training.runs import METRICS_FILE, Run

CARD_FILE = "README.md"
SHARED_FILES = (RUN_FILE, MATCHER_FILE, WEIGHTS_FILE, LIST_FILE, METRICS_FILE, "curves.png")
PRIVATE_ENTRIES = ("command", "collection folder", LOGGERS_KEY)
"""entries of ``run.json`` that name places on the machine of the training"""
METRIC_NAMES = {
    **{f"i2t_r{k}": f"texts for an image, R@{k}" for k in (1, 5, 10)},
    **{f"t2i_r{k}": f"images for a text, R@{k}" for k in (1, 5, 10)},
    **{f"r{k}": f"localization, R@{k}" for k in (1, 5, 10)},
    "rsum": "sum of the six recalls",
}


class MeasuredSplit(NamedTuple):
    """Metrics of a run on a split, by the names of ``METRIC_NAMES``."""

    collection: str
    split: str
    metrics: Mapping[str, float]


def best_on_dev(run: Run) -> MeasuredSplit | None:
    """The metrics of the epoch whose weights are stored; None for a run that was not measured."""
    pointer = run.folder / "state" / "LATEST"
    best: Mapping[str, float] = {}
    if pointer.is_file():
        state = pointer.with_name(pointer.read_text(encoding="utf-8").strip())
        best = json.loads((state / "position.json").read_text(encoding="utf-8"))["best"]
    elif dev := last_round_metrics(run.metrics()):  # the state was deleted, or the run was downloaded
        best = max(dev, key=lambda metrics: metrics.get("rsum", metrics.get("r1", 0.0)))
    return MeasuredSplit(str(run.about.get("collection", "")), "dev", best) if best else None


def model_card(run: Run, name: str, tests: tuple[MeasuredSplit, ...] = (), licence: str = "") -> str:
    """The model card of a run: what it is, its results, how to use it, how it was trained."""
    from huggingface_hub import EvalResult, ModelCardData

    measured = [found for found in (best_on_dev(run), *tests) if found is not None]
    results = [
        EvalResult(
            task_type="image-text-retrieval", dataset_type=found.collection, dataset_name=found.collection,
            dataset_split=found.split, metric_type=key, metric_name=METRIC_NAMES[key], metric_value=round(value, 2),
        )
        for found in measured for key, value in found.metrics.items() if key in METRIC_NAMES
    ]  # fmt: skip
    about = run.about
    data = ModelCardData(
        library_name="calligram", tags=["image-text-retrieval", "calligram", str(about.get("preset", ""))],
        license=licence or None, model_name=name if results else None, eval_results=results or None,
    )  # fmt: skip
    parts = (_introduction(run, name), _results(measured), _use(name), _training(run))
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def _introduction(run: Run, name: str) -> str:
    about = run.about
    ended = "" if run.complete else " Its training has not ended; these are the best weights so far."
    origin = f"the preset `{about.get('preset')}` of Calligram on the collection `{about.get('collection')}`"
    use = "It compares images with texts, so that texts find images and images find texts."
    return f"# {name.rpartition('/')[2]}\n\nA matcher of images and texts, trained with {origin}.{ended} {use}"


def _results(measured: list[MeasuredSplit]) -> str:
    if not measured:
        return ""
    keys = [key for key in METRIC_NAMES if any(key in found.metrics for found in measured)]
    heads = [f"{found.collection}, {found.split}" for found in measured]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for key in keys:
        values = [f"{found.metrics[key]:.1f}" if key in found.metrics else "" for found in measured]
        lines.append(f"| {METRIC_NAMES[key]} | {' | '.join(values)} |")
    note = "Recalls are in percent. The split dev selected the epoch, so its values are a little too good."
    return "## Results\n\n" + "\n".join(lines) + f"\n\n{note}"


def _use(name: str) -> str:
    return (
        f"## Use\n\n```\ncalligram pull {name} --out run\ncalligram index run PHOTOS --out library\n"
        'calligram search library "two dogs on a beach"\n```\n\n```python\nimport calligram as cg\n\n'
        'run = cg.load("run")  # run.matcher, run.inputs\n```'
    )


def _training(run: Run) -> str:
    about = run.about
    lines = [f"- {name}: {about[name]}" for name in ("calligram", "torch", "python", "device") if name in about]
    if "seconds" in about:
        lines.append(f"- training time: {about['seconds']:.0f} s")
    changed = changed_settings(about)
    if changed:
        lines.append("- settings that differ from the preset:")
        lines += [f"  - `{key}={_shown(value)}`" for key, value in changed.items()]
    return "## Training\n\n" + "\n".join(lines)


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def changed_settings(about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from its preset, by dotted key; all of them if the preset is unknown here."""
    own = flat_entries(without_paths(about.get("settings", {})))
    try:
        preset = flat_entries(json.loads(json.dumps(as_plain(find_preset(str(about.get("preset"))).defaults))))
    except UserError:
        preset = {}
    return {key: value for key, value in own.items() if key not in preset or preset[key] != value}


def without_paths(value: Any) -> Any:
    """JSON values with only the last part of each absolute path, so that no folder of a machine is named."""
    if isinstance(value, Mapping):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    is_path = isinstance(value, str) and (os.path.isabs(value) or value.startswith("~"))
    return Path(value).name if is_path else value


def write_shared_folder(
    run: Path, name: str, target: Path, *, tests: tuple[MeasuredSplit, ...] = (), licence: str = ""
) -> None:
    """Write the folder that is uploaded: the matcher, its inputs, the metrics and the model card.

    The state for ``--resume`` and logs are left out. Entries of ``run.json`` that name places on this machine too.

    Raises:
        UserError: when the folder is no run, or the target exists.
    """
    check_run_folder(run)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists; give the name of a new folder")
    opened = Run.open(run)
    with scratch_folder(target) as scratch:
        new = scratch / NEW_FOLDER
        new.mkdir()
        for file in SHARED_FILES:
            if (run / file).is_file() and file != RUN_FILE:
                shutil.copyfile(run / file, new / file)
        shutil.copytree(run / INPUTS_FOLDER, new / INPUTS_FOLDER)
        about = {key: value for key, value in opened.about.items() if key not in PRIVATE_ENTRIES}
        replace_json(new / RUN_FILE, without_paths(about), indent=1)
        (new / CARD_FILE).write_text(model_card(opened, name, tests, licence), encoding="utf-8")
        if target.exists():
            target.rmdir()
        move_folder(new, target)


def push_run(
    run: Path, name: str, *, private: bool = False, endpoint: str | None = None,
    tests: tuple[MeasuredSplit, ...] = (), licence: str = "",
) -> str:  # fmt: skip
    """Upload a run with its model card, and return the address; the repository is made if it does not exist.

    Raises:
        UserError: when the folder is no run, or the hub refuses or does not answer.
    """
    from huggingface_hub import HfApi

    _check_name(name)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        write_shared_folder(run, name, folder, tests=tests, licence=licence)
        _require_hub(name, endpoint)
        api = HfApi(endpoint=endpoint)
        try:
            url = api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Run of Calligram with its model card")
        except Exception as error:  # of the transport, of permissions, of a missing login
            todo = (
                'log in with "hf auth login", and check the name and your rights; --out FOLDER writes the folder alone'
            )
            raise UserError(f"'{name}' could not be uploaded ({_first_line(error)}); {todo}") from error
    return str(url)


def pull_run(name: str, out: Path, *, revision: str | None = None, endpoint: str | None = None) -> Path:
    """Download a run to a new folder, compare it with its checksums, and return the folder. No code of it is run.

    Raises:
        UserError: when the folder exists, the hub does not answer, or the repository holds no run.
    """
    from huggingface_hub import snapshot_download

    _check_name(name)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists; give the name of a new folder")
    _require_hub(name, endpoint)
    with scratch_folder(out) as scratch:
        new = scratch / NEW_FOLDER
        try:
            snapshot_download(
                name, revision=revision, local_dir=new, endpoint=endpoint,
                allow_patterns=[*SHARED_FILES, f"{INPUTS_FOLDER}/*", CARD_FILE],
            )  # fmt: skip
        except Exception as error:  # of the transport, of permissions, of an unknown name
            todo = 'check the name; for a private repository log in with "hf auth login"'
            raise UserError(f"'{name}' could not be downloaded ({_first_line(error)}); {todo}") from error
        shutil.rmtree(new / ".cache", ignore_errors=True)
        again = command("calligram", "pull", name, "--out", out)
        try:
            check_run_folder(new)
        except UserError:
            raise UserError(f"'{name}' holds no run of Calligram (no {RUN_FILE} with {WEIGHTS_FILE})") from None
        for folder in (new, new / INPUTS_FOLDER):
            check_listed(folder, None, f"run {again} again")
        if out.exists():
            out.rmdir()
        move_folder(new, out)
    return out


def _check_name(name: str) -> None:
    owner, _, repository = name.partition("/")
    if not owner or not repository or "/" in repository:
        raise UserError(f"'{name}' is no name of a repository on the hub; give OWNER/NAME")


def _require_hub(name: str, endpoint: str | None) -> None:
    if endpoint is None and not hub_answers():
        raise UserError(f"the Hugging Face hub does not answer, so '{name}' cannot be reached; check the network")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
