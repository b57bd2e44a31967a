"""``calligram evaluate``, ``calligram reproduce`` and ``calligram report``."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calligram.cli.main import fast_imports, import_pyarrow_for_command
from calligram.cli.screen import (
    INTERRUPTED_STATUS,
    RowTable,
    console,
    errors,
    print_localization,
    print_report,
    print_unknown,
    progress_bar,
    show_spinner,
    styled,
)
from calligram.errors import UserError
from calligram.files import replace_file

if TYPE_CHECKING:
    import torch

    from calligram.data.collection import Collection
    from calligram.data.pairing import Pairing
    from calligram.evaluation.recall import EncodedPairing
    from calligram.evaluation.retrieval import Floats
    from calligram.evaluation.word_matching import UnknownFailures
    from calligram.features.inputs import Inputs
    from calligram.models.matcher import Matcher
    from calligram.training.runs import Run


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    split: Annotated[str, typer.Option(help="train, dev, test or all.")] = "test",
    folds: Annotated[
        int, typer.Option(min=1, help="Mean over this many equal folds of the images; 5 for the 1K protocol of COCO.")
    ] = 1,
    within: Annotated[bool, typer.Option(help="Also retrieve images by images and texts by texts.")] = False,
    identities: Annotated[
        bool | None,
        typer.Option(help="Match by identity (person search). The default is yes if the collection has identities."),
    ] = None,
    unknown: Annotated[bool, typer.Option(help="Also count the failures of texts with unknown words.")] = False,
    depth: Annotated[
        int | None,
        typer.Option(min=0, help="Score only this many candidates per query, found by vectors; 0 for all."),
    ] = None,
    first: Annotated[
        Path | None,
        typer.Option(help="A run whose vectors find the candidates. The default is RUN itself.", metavar="RUN"),
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16"], typer.Option(help="bf16 is for scores that compare pairs by attention.")
    ] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[
        Path | None, typer.Option(help="Draw queries with their first five images into this file.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="Draw figures into this folder: retrieved images and texts, ranks, overlap of scores, correlation, "
            "a t-SNE map, word importance."
        ),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Append the result to this .jsonl file.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Measure recall, ranks and precision of a matcher in both directions, or the localization of phrases."""
    options = EvaluateOptions(
        run, split, folds, within, identities, unknown, depth, first, precision, as_json, sheet, pictures, record
    )
    options.check()
    with show_spinner("loading"):
        with fast_imports():
            import_pyarrow_for_command()
            from calligram.data.collection import Collection
            from calligram.device import device_named
            from calligram.training.runs import Run

        opened, source = Run.open(run), Collection.open(collection)
        matcher, inputs = opened.load()
        matcher, inputs = matcher.to(device_named(device)), inputs.to(device_named(device))
    if inputs.images.region_input is not None:
        options.check_for_phrases()
        _phrases(options, opened, matcher, inputs, source)
    else:
        _whole_images(options, opened, matcher, inputs, source)


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of one evaluation."""

    run: Path
    split: str
    folds: int
    within: bool
    identities: bool | None
    unknown: bool
    depth: int | None
    first: Path | None
    precision: Literal["fp32", "bf16"]
    as_json: bool
    sheet: Path | None
    pictures: Path | None
    record: Path | None

    def check(self) -> None:
        """Refuse options that cannot be combined, before anything is loaded."""
        sheet, pictures, record = self.sheet, self.pictures, self.record
        if self.within and self.folds > 1:
            raise UserError("--within is measured over the whole split; leave out --folds")
        if sheet is not None and sheet.suffix.lower() not in (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp"):
            raise UserError(f"--sheet {sheet} must end in .png, .jpg, .webp, .svg or .pdf")
        if record is not None and record.is_dir():
            raise UserError(f"--record {record} is a folder; give a file, such as {record / 'results.jsonl'}")
        if pictures is not None and pictures.is_file():
            raise UserError(f"--pictures {pictures} is a file; give a folder")
        if self.depth is None and self.first is not None:
            raise UserError("--first needs the number of candidates; give it with --depth")
        if self.depth is not None and (sheet is not None or pictures is not None or self.unknown):
            raise UserError("--sheet, --pictures and --unknown need the scores of all pairs; leave out --depth")

    def check_for_phrases(self) -> None:
        """Refuse options that phrase localization does not have."""
        whole = (self.within, self.identities, self.unknown, self.folds > 1, self.sheet, self.pictures)
        if any(whole) or self.depth is not None or self.precision != "fp32":
            raise UserError(
                "this run localizes phrases; leave out --within, --identities, --unknown, --folds, --depth, "
                "--precision, --sheet and --pictures, which are for runs that retrieve images"
            )


def _whole_images(options: EvaluateOptions, run: Run, matcher: Matcher, inputs: Inputs, source: Collection) -> None:
    """Measure retrieval in both directions, and print, draw or record the result."""
    with show_spinner("measuring"):
        from calligram.device import device_of
        from calligram.evaluation.retrieval import evaluate_retrieval
        from calligram.studies.results import append_result, result_line

        by_identity = source.has_identities(options.split) if options.identities is None else options.identities
        pairing = source.identities(options.split) if by_identity else source.sentences(options.split)
        statistics = _ScoreStatistics(options, run, matcher, inputs, pairing)
        device = device_of(matcher)
        report = evaluate_retrieval(
            matcher,
            inputs,
            pairing,
            folds=options.folds,
            within_modality=options.within,
            on_scores=statistics,
            precision=options.precision,
            depth=options.depth,
            first=None if options.first is None else _encoded_by(options.first, pairing, device),
            alone=True,
            track=progress_bar,
        )
        if report.stages is not None and options.first is not None:
            report = replace(report, stages=replace(report.stages, first=options.first.resolve().name))
        by = "identities" if by_identity else ""
        if options.record is not None:
            unknown = statistics.counted[0] if statistics.counted else None
            line = result_line(run, source, options.split, report, by=by, unknown=unknown, pictures=statistics.drawn)
            append_result(options.record, line)
    if options.as_json:
        more = {"unknown": statistics.counted[0].as_dict()} if statistics.counted else {}
        typer.echo(json.dumps({**report.as_dict(), **({"by": by} if by else {}), **more}))
    else:
        print_report(report, f"{options.run} on {source.name}, {options.split}{', by identity' if by else ''}")
        statistics.print()


class _ScoreStatistics:
    """Counts and drawings from the scores of all pairs."""

    def __init__(self, options: EvaluateOptions, run: Run, matcher: Matcher, inputs: Inputs, pairing: Pairing) -> None:
        self.options, self.run, self.matcher, self.inputs, self.pairing = options, run, matcher, inputs, pairing
        self.drawn: list[Path] = [] if options.sheet is None else [options.sheet]
        self.counted: list[UnknownFailures] = []

    def __call__(self, encoded: EncodedPairing, scores: Floats) -> None:
        """Count and draw what the options select."""
        from calligram.evaluation.figures import draw_found_images, draw_pictures, sample_images, untrained_features
        from calligram.evaluation.word_matching import UnknownWords, unknown_failures

        options, pairing = self.options, self.pairing
        if options.unknown:
            unknown = UnknownWords(self.inputs.texts)
            self.counted.append(unknown_failures(scores, pairing.matches, pairing.texts.strings, unknown))
        if options.sheet is not None:
            draw_found_images(scores, pairing, options.sheet)
        if options.pictures is not None:
            chosen = pairing.visuals.select(sample_images(len(pairing.visuals)))
            before = untrained_features(self.run.about["settings"], self.inputs, chosen)
            self.drawn += draw_pictures(
                self.matcher, encoded, scores, pairing, options.pictures, before=before, track=progress_bar
            )
            self.drawn += self._draw_words(encoded, options.pictures / "words.png")

    def _draw_words(self, encoded: EncodedPairing, file: Path) -> list[Path]:
        """Draw the importance of each word for a few matching pairs; nothing if no text has two words."""
        from calligram.search.explain.drawing import draw_word_sheet
        from calligram.search.explain.word_importance import explain_random_pairs

        found = explain_random_pairs(self.matcher, self.inputs, encoded.images, self.pairing, track=progress_bar)
        if not found:
            return []
        sheet = draw_word_sheet([(self.pairing.visuals.open(image), words) for image, words in found])
        with replace_file(file, keep_suffix=True) as partial:
            sheet.save(partial)
        return [file]

    def print(self) -> None:
        """Print the counts and the paths of the pictures."""
        sheet, pictures = self.options.sheet, self.options.pictures
        for count in self.counted:
            print_unknown(count)
        if sheet is not None:
            console.print(f"queries with their first five images: {sheet}")
        if pictures is not None:
            console.print(f"pictures: {', '.join(file.name for file in self.drawn if file != sheet)} in {pictures}")


def _encoded_by(run: Path, pairing: Pairing, device: torch.device) -> EncodedPairing:
    """The vectors of a pairing by another run."""
    from calligram.evaluation.recall import encode_pairing, load_pairing
    from calligram.models.catalog import load_matcher

    stored = load_matcher(run).to(device)
    return encode_pairing(
        stored.matcher.eval(), stored.inputs, load_pairing(stored.inputs, pairing, progress_bar), progress_bar
    )


def _phrases(options: EvaluateOptions, run: Run, matcher: Matcher, inputs: Inputs, source: Collection) -> None:
    """Measure phrase localization, and print or record the result."""
    with show_spinner("measuring"):
        from calligram.evaluation.localization import evaluate_localization, load_phrases
        from calligram.studies.results import append_result, localization_line

        found = evaluate_localization(
            matcher, inputs, load_phrases(inputs, source, options.split, track=progress_bar), progress_bar
        )
        if options.record is not None:
            append_result(options.record, localization_line(run, source, options.split, found))
    if options.as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        print_localization(found, f"{run.folder} on {source.name}, {options.split}")


def reproduce(
    paper: Annotated[str, typer.Argument(help='A paper, or several separated by commas; "calligram list" shows them.')],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    budget_minutes: Annotated[
        float | None, typer.Option(min=0, help="Start no new row after this many minutes.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2 and so on.")] = 3,
    first_seed: Annotated[
        int, typer.Option(min=0, help="Leave out runs with smaller seeds, to divide seeds among machines.")
    ] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting for every row, as key=value. The settings of the row have priority."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only rows of this name or pattern, such as 'phrases*' or 'aoq: vse*', and rows they need. "
            "Repeatable."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Largest number of rows side by side, each in a process with one thread; 0 for one after another in "
            "this process. The default is one for each core. On a GPU rows wait until its memory is enough for them.",
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Run the rows that the claims of papers need side by side, skip finished rows, and judge the claims.

    The same command continues after a stop. A row that fails does not stop the others.
    """
    from calligram.data.collection import Collection
    from calligram.device import device_named
    from calligram.recipes.parts.run import RunContext
    from calligram.studies import reproduce as work
    from calligram.studies.catalog import find_study

    studies, source = (
        [find_study(name) for name in dict.fromkeys(map(str.strip, paper.split(",")))],
        Collection.open(collection),
    )
    try:
        with RowTable() as table:
            verdicts = work.reproduce_study(
                studies,
                source,
                results=results,
                runs=runs,
                seeds=seeds,
                first_seed=first_seed,
                budget_minutes=budget_minutes,
                changes=tuple(set_ or ()),
                only=tuple(only or ()),
                workers=workers,
                context=RunContext(device_named(device), track=progress_bar),
                say=table.print,
                watch=table.show,
            )
    except KeyboardInterrupt:
        console.print("stopped; the same command continues from here")
        raise typer.Exit(INTERRUPTED_STATUS) from None
    width = max((len(verdict.verdict) for verdict in verdicts), default=0)
    for verdict in verdicts:
        console.print(styled(f"{verdict.verdict:{width}}", "bold"), verdict.claim)
    elsewhere = "" if results == Path("results") else f" --results {shlex.quote(str(results))}"
    console.print(
        f'verdicts are in {results / "claims.jsonl"}; "calligram report{elsewhere}" writes the pages', soft_wrap=True
    )
    for row in table.failed:
        # The error was printed when the row ended.
        errors.print(f"failed: {row.job.title}; log: {row.job.log_file}", soft_wrap=True)
    if table.failed:
        raise typer.Exit(1)


def report(
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder of the documentation; the pages go to its folder results.")] = Path(
        "docs"
    ),
) -> None:
    """Judge all claims by the recorded results, and write the pages of docs/results."""
    from calligram.errors import UserError
    from calligram.studies.catalog import STUDIES
    from calligram.studies.report import write_report
    from calligram.studies.results import judge_results

    if not results.is_dir():
        raise UserError(f"{results} is not a folder of results; give the folder with --results")
    with show_spinner("judging"):
        judge_results(STUDIES, results)
    with show_spinner("writing the pages"):
        pages = write_report(results, docs)
    console.print(f"{len(pages)} pages are written to {pages[0].parent}; start with {pages[0].name}")
