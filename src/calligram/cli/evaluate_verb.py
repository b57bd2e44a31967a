"""``calligram evaluate``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from calligram.cli.screen import bars, console, print_localization, print_report, print_unknown
from calligram.errors import UserError

if TYPE_CHECKING:  # importing them takes seconds, and help should not
    import torch

    from calligram.data.collection import Collection
    from calligram.data.pairing import Pairing
    from calligram.evaluation.encoding import EncodedPairing
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
    from calligram.data.collection import Collection
    from calligram.evaluation.pictures import draw_pictures, sample
    from calligram.evaluation.retrieval import Floats, evaluate_retrieval
    from calligram.evaluation.sheets import draw_found_images
    from calligram.evaluation.unknown_failures import UnknownFailures, unknown_failures
    from calligram.features.region_input import RegionInput
    from calligram.features.unknown_words import UnknownWords
    from calligram.recipes.plan import device_named
    from calligram.recipes.results import append, result_line
    from calligram.recipes.starting import starting_features
    from calligram.training.runs import Run

    _check(folds, within, sheet, pictures, record)
    _check_stages(depth, first, sheet is not None or pictures is not None or unknown)
    opened, source = Run.open(run), Collection.open(collection)
    matcher, inputs = opened.load()
    matcher.to(device_named(device))
    if isinstance(inputs.images, RegionInput):
        whole = (within, identities, unknown, folds > 1, sheet, pictures, depth is not None, precision != "fp32")
        if any(whole):
            raise UserError(
                "this run finds phrases in images; --within, --identities, --unknown, --folds, --depth, --precision, "
                "--sheet and --pictures are for runs that find whole images"
            )
        _phrases(opened, matcher, inputs, source, split, as_json=as_json, record=record)
        return
    by_identity = source.has_identities(split) if identities is None else identities
    pairing = source.identities(split) if by_identity else source.sentences(split)
    drawn = [] if sheet is None else [sheet]
    counted: list[UnknownFailures] = []

    def look(encoded: EncodedPairing, scores: Floats) -> None:
        if unknown:
            texts = pairing.texts.strings
            counted.append(unknown_failures(scores, pairing.matches, texts, UnknownWords(inputs.texts)))
        if sheet is not None:
            draw_found_images(scores, pairing, sheet)
        if pictures is not None:
            chosen = pairing.visuals.select(sample(len(pairing.visuals)))
            before = starting_features(opened.about["settings"], inputs, chosen)
            drawn.extend(draw_pictures(matcher, encoded, scores, pairing, pictures, before=before))

    finder = None if first is None else _encoded_by(first, pairing, device_named(device))
    report = evaluate_retrieval(
        matcher,
        inputs,
        pairing,
        folds=folds,
        within_modality=within,
        look=look,
        precision=precision,
        depth=depth,
        first=finder,
        alone=True,
        track=bars,
    )
    if report.stages is not None and first is not None:
        report = replace(report, stages=replace(report.stages, first=first.resolve().name))
    by = "identities" if by_identity else ""
    if record is not None:
        append(record, result_line(opened, source, split, report, by=by, pictures=drawn))
    if as_json:
        more = {"unknown": counted[0].as_dict()} if counted else {}
        typer.echo(json.dumps({**report.as_dict(), **({"by": by} if by else {}), **more}))
    else:
        print_report(report, f"{run} on {source.name}, {split}{', by identity' if by else ''}")
        for count in counted:
            print_unknown(count)
        if sheet is not None:
            console.print(f"queries with their first five images: {sheet}")
        if pictures is not None:
            console.print(f"pictures: {', '.join(file.name for file in drawn if file != sheet)} in {pictures}")


def _check(folds: int, within: bool, sheet: Path | None, pictures: Path | None, record: Path | None) -> None:
    """Refuse options that do not go together, before anything is loaded."""
    if within and folds > 1:
        raise UserError("--within is measured over the whole split; leave out --folds")
    if sheet is not None and sheet.suffix.lower() not in (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp"):
        raise UserError(f"--sheet {sheet} must end in .png, .jpg, .webp, .svg or .pdf")
    if record is not None and record.is_dir():
        raise UserError(f"--record {record} is a folder; give a file, such as {record / 'results.jsonl'}")
    if pictures is not None and pictures.is_file():
        raise UserError(f"--pictures {pictures} is a file; give a folder")


def _check_stages(depth: int | None, first: Path | None, wants_all: bool) -> None:
    """Refuse what does not go with scoring candidates alone."""
    if depth is None and first is not None:
        raise UserError("--first names who finds the candidates; say with --depth how many")
    if depth is not None and wants_all:
        raise UserError("--sheet, --pictures and --unknown look at the scores of all pairs; leave out --depth")


def _encoded_by(run: Path, pairing: Pairing, device: torch.device) -> EncodedPairing:
    """A pairing as another run encodes it."""
    from calligram.evaluation.encoding import encode_pairing, load_pairing
    from calligram.models.stored import load_matcher

    stored = load_matcher(run)
    return encode_pairing(
        stored.matcher.to(device).eval(), stored.inputs, load_pairing(stored.inputs, pairing, bars), bars
    )


def _phrases(
    run: Run, matcher: Matcher, inputs: Inputs, source: Collection, split: str, *, as_json: bool, record: Path | None
) -> None:
    """Measure how phrases are found in images, and say or record it."""
    from calligram.evaluation.localization import evaluate_localization, load_phrases
    from calligram.recipes.results import append, localization_line

    found = evaluate_localization(matcher, inputs, load_phrases(inputs, source, split, track=bars), bars)
    if record is not None:
        append(record, localization_line(run, source, split, found))
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        print_localization(found, f"{run.folder} on {source.name}, {split}")
