"""``calligram train``, ``list``, ``show`` and ``copy``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich.table import Table

from calligram.cli.main import fast_imports, import_pyarrow_for_command
from calligram.cli.screen import INTERRUPTED_STATUS, console, progress_bar, show_spinner
from calligram.errors import UserError, command
from calligram.files import replace_text

if TYPE_CHECKING:
    from calligram.recipes.model_card import MeasuredSplit
    from calligram.recipes.parts.run_settings import Setting


def train(
    preset: Annotated[
        str, typer.Argument(help='Name of a preset; "calligram list" lists them. Or a TOML file of "calligram copy".')
    ],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    out: Annotated[Path, typer.Option(help="Folder for the run.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting, as key=value; may be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; --set has priority.")] = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the run in --out. Without --set and --config, with the same settings.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROGRAM",
            help="Log metrics also to wandb (offline, into the run folder; wandb=PROJECT) or to mlflow (into mlflow.db "
            "of the run folder; mlflow=ADDRESS of a server). Repeatable.",
        ),
    ] = None,
) -> None:
    """Train a matcher. The run folder gets the settings, metrics, curves, the best matcher and the last state."""
    with fast_imports():
        import_pyarrow_for_command()
        from calligram.data.collection import Collection
        from calligram.device import device_named
        from calligram.models.catalog import RUN_FILE
        from calligram.recipes.catalog import find_preset
        from calligram.recipes.parts.config import resolve
        from calligram.recipes.parts.run import RunContext, run_preset
        from calligram.training.distributed import Processes
        from calligram.training.runs import Run, draw_curves

    drawn = Run(out).complete and (out / "curves.png").is_file()
    chosen = find_preset(preset)
    if resume and not set_ and config is None and (out / RUN_FILE).is_file():
        started_by = str(Run(out).about.get("command") or "")
        if " train " not in started_by:
            raise UserError(
                f'{out} was not started by "calligram train": give its settings with --set or --config, or continue a '
                "run of Python there with resume=True"
            )
        set_, config = given_settings(started_by)
        if config is not None and not config.is_file():
            raise UserError(
                f"{out} was started with --config {config}, which is not here: resume in the folder in which it was "
                "started, or give --config"
            )
    settings = resolve(chosen.defaults, set_ or [], config)
    chosen_device = device_named(device)
    processes = Processes.join(chosen_device)
    context = RunContext(chosen_device, processes, progress_bar, tuple(log or ()))
    try:
        best = run_preset(chosen, settings, Collection.open(collection), out, resume=resume, context=context)
    except KeyboardInterrupt:
        if processes.first and (out / "state").is_dir():
            console.print(f"stopped; the same command with --resume continues {out}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED_STATUS) from None
    if processes.first:
        if not drawn:
            draw_curves(out)
        if not best.keys() - {"epoch", "step"}:
            console.print(f"the matcher is in {out}")
            return
        measured = f"rsum {best['rsum']:.1f}" if "rsum" in best else f"localization R@1 {best['r1']:.1f}"
        chosen_by = (
            f"best on dev: {measured} in epoch {best['epoch'] + 1:.0f}" if best["epoch"] >= 0 else f"on dev: {measured}"
        )
        console.print(f"{chosen_by}; the matcher is in {out}")
        measure = shlex.join(["calligram", "evaluate", str(out), str(collection), "--split", "test"])
        console.print(f"measure it with {measure}", soft_wrap=True)


def given_settings(started_by: str) -> tuple[list[str], Path | None]:
    """Return the values of --set and --config in the command that started a run.

    >>> given_settings("calligram train vse photos --out run --set dim=64 --set=batch=8")
    (['dim=64', 'batch=8'], None)
    """
    found: dict[str, list[str]] = {"--set": [], "--config": []}
    words = iter(shlex.split(started_by))
    for word in words:
        option, equals, value = word.partition("=")
        if option in found:
            found[option].append(value if equals else next(words, ""))
    return found["--set"], Path(found["--config"][-1]) if found["--config"] else None


def list_(
    word: Annotated[str, typer.Argument(help="Only names and descriptions with this word.", show_default=False)] = "",
) -> None:
    """List presets, matchers, terms, data formats and papers."""
    from calligram.data.readers.catalog import READERS
    from calligram.errors import unknown
    from calligram.models.catalog import MATCHERS
    from calligram.recipes.catalog import PRESETS
    from calligram.recipes.parts.terms import TERMS
    from calligram.studies.catalog import STUDIES

    rows = [("preset", name, preset.description) for name, preset in PRESETS.items()]
    rows += [("matcher", name, _first_line(kind.matcher)) for name, kind in MATCHERS.items()]
    rows += [("term", name, _first_line(term)) for name, term in TERMS.items()]
    rows += [("format", name, f"calligram import {name} SOURCE DEST") for name in READERS]
    rows += [
        ("paper", name, f"claims: {len(study.claims)}; run them with: calligram reproduce {name} COLLECTION")
        for name, study in STUDIES.items()
    ]
    wanted = word.casefold()
    # Names come before descriptions: "scan" is the matcher first, and what mentions it second.
    found = [row for row in rows if wanted in row[1]]
    found += [row for row in rows if wanted not in row[1] and wanted in row[2].casefold()]
    if not found:
        raise unknown("name", word, sorted({row[1] for row in rows}))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for wraps in (False, False, True):  # a name is typed again, so it stays in one piece
        table.add_column(no_wrap=not wraps, overflow="fold")
    for row in found:
        table.add_row(*row)
    console.print(table)


def _first_line(kind: type) -> str:
    return next(iter((kind.__doc__ or "").splitlines()), "")


def show(
    preset: Annotated[str, typer.Argument(help="Name of a preset, or a TOML file.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting, as key=value; may be repeated.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also show settings that few users change.")] = False,
) -> None:
    """Show the settings of a preset. Settings without effect at the present values are left out."""
    from calligram.recipes.catalog import find_preset
    from calligram.recipes.parts.config import resolve, shown_settings

    chosen = find_preset(preset)
    settings = resolve(chosen.defaults, set_ or [])
    defaults = chosen.recipe.settings_class()
    found = shown_settings(settings, defaults, given=chosen.given, rare=all_)
    console.print(f"{chosen.name}: {chosen.description}", soft_wrap=True)
    table = Table(title="--set KEY=VALUE", title_justify="left", box=None)
    for heading in ("key", "value", "meaning"):
        table.add_column(heading)
    for setting in found:
        table.add_row(*setting_row(setting))
    console.print(table)
    hidden = len(shown_settings(settings, defaults, rare=True)) - len(found)
    if hidden:
        console.print(f"{hidden} further settings: calligram show {preset} --all")


def setting_row(setting: Setting) -> tuple[str, str, str]:
    """Return key, value and meaning of a setting with its accepted values, as ``show`` and the website print them."""
    value = ",".join(map(str, setting.default)) if isinstance(setting.default, tuple) else str(setting.default)
    accepted = accepted_values(setting.type)
    return setting.key, value or "''", f"{setting.description}{accepted and f' ({accepted})'}"


def accepted_values(kind: Any) -> str:
    """Return the values of a setting that has few of them; empty for other settings.

    >>> accepted_values(Literal["one", "flip"]), accepted_values(bool), accepted_values(int)
    ('one, flip', 'true, false', '')
    """
    each = get_args(kind)[0] if get_origin(kind) is tuple else kind
    if get_origin(each) is Literal:
        return ", ".join(map(str, get_args(each)))
    return "true, false" if each is bool else ""


def copy(
    preset: Annotated[str, typer.Argument(help="Name of a preset.")],
    file: Annotated[Path, typer.Argument(help="TOML file to write; give it to calligram train.")],
) -> None:
    """Copy a preset into a TOML file of your own."""
    from calligram.errors import UserError
    from calligram.recipes.catalog import find_preset

    source = find_preset(preset).file
    if file.suffix != ".toml":
        raise UserError(f"{file} must end in .toml, so that calligram train reads it as a file")
    if file.exists():
        raise UserError(f"{file} exists already; give another name")
    assert source is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, source.read_text(encoding="utf-8"))
    console.print(f"{file} is a copy of {preset}; train it with: calligram train {file} COLLECTION --out RUN",
                  soft_wrap=True)  # fmt: skip


def export_onnx_files(run: Path, onnx: Path, *, int8: bool = False) -> None:
    """Write the encoders of a run as ONNX files, and compare them with the matcher."""
    with show_spinner("loading") as spinner:
        from calligram.models.export import export_onnx
        from calligram.training.runs import Run

        matcher, inputs = Run.open(run).load()
        spinner.update("writing ONNX files and comparing them with the run")
        about = export_onnx(matcher, inputs, onnx, int8=int8)
    for side in ("image", "text"):
        found = about[side]
        taken = ", ".join(f"{name} {given['type']} {_shape(given['shape'])}" for name, given in found["inputs"].items())
        given = _shape(found["output"]["vectors"]["shape"])
        console.print(
            f"{onnx / found['file']}: {taken} to vectors {given}; "
            + (f"cosine with the matcher's at least {found['smallest_cosine']:.3f}" if int8 else _difference(found)),
            soft_wrap=True,
        )


def _difference(found: dict[str, Any]) -> str:
    return f"largest difference {found['largest_difference']:.0e}"


def _shape(axes: list[object]) -> str:
    return f"({', '.join(map(str, axes))})"


def push(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    name: Annotated[str, typer.Argument(help="Name on the Hugging Face hub, OWNER/NAME.")],
    test: Annotated[
        Path | None,
        typer.Option(help="Collection whose split test is measured for the model card.", metavar="COLLECTION"),
    ] = None,
    licence: Annotated[str, typer.Option("--license", help="Licence for the model card, such as mit.")] = "",
    private: Annotated[bool, typer.Option(help="Make a repository that others cannot see.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the folder that would be uploaded, and upload nothing.")
    ] = None,
) -> None:
    """Upload a run to the Hugging Face hub, with a model card made from its results.

    The state for --resume, logs and paths of this machine are left out.
    """
    with show_spinner("reading the run"):
        from calligram.recipes.model_card import push_run, write_shared_folder

        tests = (_measured_test(run, test),) if test is not None else ()
    if out is not None:
        write_shared_folder(run, name, out, tests=tests, licence=licence)
        console.print(f"{out} holds what would be uploaded; README.md is the model card", soft_wrap=True)
        return
    with show_spinner(f"uploading to {name}"):
        address = push_run(run, name, private=private, tests=tests, licence=licence)
    console.print(f"uploaded: {address}", soft_wrap=True)


def _measured_test(run: Path, folder: Path) -> MeasuredSplit:
    """The recalls of a run on the split test of a collection."""
    from calligram.data.collection import Collection
    from calligram.evaluation.recall import recall_values
    from calligram.evaluation.retrieval import evaluate_retrieval
    from calligram.recipes.model_card import MeasuredSplit
    from calligram.training.runs import Run

    matcher, inputs = Run.open(run).load()
    collection = Collection.open(folder)
    found = evaluate_retrieval(matcher, inputs, collection.sentences("test")).retrieval
    return MeasuredSplit(collection.name, "test", recall_values(found.i2t, found.t2i))


def pull(
    name: Annotated[str, typer.Argument(help="Name on the Hugging Face hub, OWNER/NAME.")],
    out: Annotated[Path, typer.Option(help="New folder for the run.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit; by default the newest.")] = None,
) -> None:
    """Download a run that was uploaded with "calligram push". Its files are compared with their checksums."""
    with show_spinner(f"downloading {name}"):
        from calligram.recipes.model_card import pull_run

        pull_run(name, out, revision=revision)
    console.print(f"the run is in {out}; {command('calligram', 'index', out, 'PHOTOS', '--out', 'LIBRARY')} uses it",
                  soft_wrap=True)  # fmt: skip
