"""``calligram evaluate``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calligram.cli.screen import bars, console, print_localization, print_report, print_unknown, waiting
from calligram.errors import UserError

if TYPE_CHECKING:
    import torch

    from calligram.data.collection import Collection
    from calligram.data.pairing import Pairing
    from calligram.evaluation.encode import EncodedPairing
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
        int, typer.Option(min=1, help="Mean over this many equal folds of the images (5 for COCO's 1K).")
    ] = 1,
    within: Annotated[bool, typer.Option(help="Also retrieve images by images and texts by texts.")] = False,
    identities: Annotated[
        bool | None,
        typer.Option(help="Match by identity (person search); the default where a collection has identities."),
    ] = None,
    unknown: Annotated[
        bool, typer.Option(help="Also count failures of texts with words that the matcher has never seen.")
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option(min=0, help="Score only this many candidates of each query, found by vectors; 0 for all."),
    ] = None,
    first: Annotated[
        Path | None, typer.Option(help="A run whose vectors find these candidates; else RUN's own do.", metavar="RUN")
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16"], typer.Option(help="Of scores that compare each pair by attention.")
    ] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Draw queries with their first five images into this PNG.")] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="Draw into this folder: what is found both ways, ranks of pairs, overlap of scores, correlation."
        ),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Append the result as a line to this .jsonl file.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Measure a run's matcher: recall, ranks and precision in both directions, or of phrases found in images."""
    asked = EvaluateOptions(
        run, split, folds, within, identities, unknown, depth, first, precision, as_json, sheet, pictures, record
    )
    asked.check()
    with waiting("loading"):
        from calligram.data.collection import Collection
        from calligram.device import device_named
        from calligram.features.images.region_input import RegionInput
        from calligram.training.runs import Run

        opened, source = Run.open(run), Collection.open(collection)
        matcher, inputs = opened.load()
        matcher, inputs = matcher.to(device_named(device)), inputs.to(device_named(device))
    if isinstance(inputs.images, RegionInput):
        asked.check_for_phrases()
        _phrases(asked, opened, matcher, inputs, source)
    else:
        _whole_images(asked, opened, matcher, inputs, source)


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of one call."""

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
        """Refuse options that do not go together, before anything is loaded."""
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
            raise UserError("--first names who finds the candidates; say with --depth how many")
        if self.depth is not None and (sheet is not None or pictures is not None or self.unknown):
            raise UserError("--sheet, --pictures and --unknown look at the scores of all pairs; leave out --depth")

    def check_for_phrases(self) -> None:
        """Refuse what a run that finds phrases in images does not have."""
        whole = (self.within, self.identities, self.unknown, self.folds > 1, self.sheet, self.pictures)
        if any(whole) or self.depth is not None or self.precision != "fp32":
            raise UserError(
                "this run finds phrases in images; --within, --identities, --unknown, --folds, --depth, --precision, "
                "--sheet and --pictures are for runs that find whole images"
            )


def _whole_images(asked: EvaluateOptions, run: Run, matcher: Matcher, inputs: Inputs, source: Collection) -> None:
    """Measure how images and texts are found by each other, and say, draw or record it."""
    with waiting("measuring"):
        from calligram.evaluation.retrieval import evaluate_retrieval
        from calligram.studies.results import append_result, result_line

        by_identity = source.has_identities(asked.split) if asked.identities is None else asked.identities
        pairing = source.identities(asked.split) if by_identity else source.sentences(asked.split)
        looked = _ScoreStatistics(asked, run, matcher, inputs, pairing)
        device = next(matcher.parameters()).device
        report = evaluate_retrieval(
            matcher,
            inputs,
            pairing,
            folds=asked.folds,
            within_modality=asked.within,
            look=looked,
            precision=asked.precision,
            depth=asked.depth,
            first=None if asked.first is None else _encoded_by(asked.first, pairing, device),
            alone=True,
            track=bars,
        )
        if report.stages is not None and asked.first is not None:
            report = replace(report, stages=replace(report.stages, first=asked.first.resolve().name))
        by = "identities" if by_identity else ""
        if asked.record is not None:
            append_result(asked.record, result_line(run, source, asked.split, report, by=by, pictures=looked.drawn))
    if asked.as_json:
        more = {"unknown": looked.counted[0].as_dict()} if looked.counted else {}
        typer.echo(json.dumps({**report.as_dict(), **({"by": by} if by else {}), **more}))
    else:
        print_report(report, f"{asked.run} on {source.name}, {asked.split}{', by identity' if by else ''}")
        looked.say()


class _ScoreStatistics:
    """What is counted and drawn from the scores of all pairs."""

    def __init__(self, asked: EvaluateOptions, run: Run, matcher: Matcher, inputs: Inputs, pairing: Pairing) -> None:
        self.asked, self.run, self.matcher, self.inputs, self.pairing = asked, run, matcher, inputs, pairing
        self.drawn: list[Path] = [] if asked.sheet is None else [asked.sheet]
        self.counted: list[UnknownFailures] = []

    def __call__(self, encoded: EncodedPairing, scores: Floats) -> None:
        """Count and draw what was asked for."""
        from calligram.evaluation.figures import draw_found_images, draw_pictures, sample, untrained_features
        from calligram.evaluation.word_matching import UnknownWords, unknown_failures

        asked, pairing = self.asked, self.pairing
        if asked.unknown:
            unknown = UnknownWords(self.inputs.texts)
            self.counted.append(unknown_failures(scores, pairing.matches, pairing.texts.strings, unknown))
        if asked.sheet is not None:
            draw_found_images(scores, pairing, asked.sheet)
        if asked.pictures is not None:
            chosen = pairing.visuals.select(sample(len(pairing.visuals)))
            before = untrained_features(self.run.about["settings"], self.inputs, chosen)
            self.drawn += draw_pictures(self.matcher, encoded, scores, pairing, asked.pictures, before=before)

    def say(self) -> None:
        """Print the counts, and where the pictures are."""
        sheet, pictures = self.asked.sheet, self.asked.pictures
        for count in self.counted:
            print_unknown(count)
        if sheet is not None:
            console.print(f"queries with their first five images: {sheet}")
        if pictures is not None:
            console.print(f"pictures: {', '.join(file.name for file in self.drawn if file != sheet)} in {pictures}")


def _encoded_by(run: Path, pairing: Pairing, device: torch.device) -> EncodedPairing:
    """A pairing as another run encodes it."""
    from calligram.evaluation.encode import encode_pairing, load_pairing
    from calligram.models.load import load_matcher

    stored = load_matcher(run).to(device)
    return encode_pairing(stored.matcher.eval(), stored.inputs, load_pairing(stored.inputs, pairing, bars), bars)


def _phrases(asked: EvaluateOptions, run: Run, matcher: Matcher, inputs: Inputs, source: Collection) -> None:
    """Measure how phrases are found in images, and say or record it."""
    with waiting("measuring"):
        from calligram.evaluation.localization import evaluate_localization, load_phrases
        from calligram.studies.results import append_result, localization_line

        found = evaluate_localization(matcher, inputs, load_phrases(inputs, source, asked.split, track=bars), bars)
        if asked.record is not None:
            append_result(asked.record, localization_line(run, source, asked.split, found))
    if asked.as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        print_localization(found, f"{run.folder} on {source.name}, {asked.split}")


# ``calligram reproduce`` and ``calligram report``.


def reproduce(
    paper: Annotated[str, typer.Argument(help='A paper; "calligram list" shows them.')],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    budget_minutes: Annotated[float | None, typer.Option(help="Start no new row after this long.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds where a verdict depends on it.")] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting for every row, as key=value, beneath the row's own.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only rows of this name, or pattern such as 'phrases*'.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Run the rows a paper's claims need, skip those already in results, and judge the claims."""
    from calligram.data.collection import Collection
    from calligram.device import device_named
    from calligram.recipes.parts.run import RunContext
    from calligram.studies import reproduce as work
    from calligram.studies.catalog import find_study

    verdicts = work.reproduce_study(
        find_study(paper),
        Collection.open(collection),
        results=results,
        runs=runs,
        seeds=seeds,
        budget_minutes=budget_minutes,
        changes=tuple(set_ or ()),
        only=tuple(only or ()),
        context=RunContext(device_named(device), track=bars),
        say=console.print,
    )
    for verdict in verdicts:
        console.print(f"[bold]{verdict.verdict:8}[/] {verdict.claim}")
    console.print(f'verdicts are in {results / "claims.jsonl"}; "calligram report" makes the document')


def report(
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    docs: Annotated[Path, typer.Option(help="Folder for results.md and its pictures.")] = Path("docs"),
) -> None:
    """Make docs/results.md and its pictures from the lines of results."""
    from calligram.errors import UserError
    from calligram.studies.report import write_report

    if not results.is_dir():
        raise UserError(f"{results} is not a folder of results; run calligram where results/ is, or give --results")
    console.print(f"written: {write_report(results, docs)}")
