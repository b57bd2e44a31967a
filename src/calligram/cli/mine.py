"""``calligram mine``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from calligram.cli.screen import console, progress_bar
from calligram.errors import UserError, command

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.data.negatives import NegativeLists
    from calligram.data.pairing import Pairing
    from calligram.evaluation.mine import OnlineRanks
    from calligram.evaluation.recall import EncodedPairing
    from calligram.models.matcher import Matcher


RANKED_BATCHES = 20
"""number of random batches whose hardest negatives are ranked"""


def mine(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run, or folder or hub name of a dual encoder of transformers.")
    ],
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    out: Annotated[Path, typer.Option(help="Folder for the negatives.")],
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of all texts, or images, to keep per item; at least 10 items.")
    ] = 0.002,
    texts: Annotated[int | None, typer.Option(min=1, help="Hard texts to keep per image, instead of --share.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Hard images to keep per text, instead of --share.")] = None,
    split: Annotated[str, typer.Option(help="train, dev, test or all.")] = "train",
    precision: Annotated[
        Literal["fp32", "bf16"], typer.Option(help="bf16 rounds the vectors and sums in fp32; for cosines only.")
    ] = "fp32",
    ignore_also_true: Annotated[
        bool, typer.Option(help="Leave out pairs that are true without annotation; scenes know them.")
    ] = False,
    ranks: Annotated[
        bool, typer.Option(help="Also report the ranks of the hardest negatives of random batches in the whole split.")
    ] = False,
    batch: Annotated[int, typer.Option(min=2, help="Images per random batch.")] = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Score a whole split and store the hardest negatives by ids, for the term offline of preset aoq."""
    from calligram.data.collection import Collection
    from calligram.device import device_named
    from calligram.evaluation.mine import mine_pairing
    from calligram.evaluation.recall import encode_pairing, load_pairing
    from calligram.models.catalog import load_matcher

    if out.exists():
        raise UserError(f"{out} exists; give another folder with --out")
    source, stored = Collection.open(collection), load_matcher(run).to(device_named(device))
    matcher = stored.matcher
    pairing = source.sentences(split).join_equal_texts()
    encoded = encode_pairing(
        matcher.eval(), stored.inputs, load_pairing(stored.inputs, pairing, progress_bar), progress_bar
    )
    found = mine_pairing(
        matcher,
        stored.inputs,
        pairing,
        encoded=encoded,
        texts=texts,
        images=images,
        share=share,
        precision=precision,
        ignore_also_true=ignore_also_true,
        track=progress_bar,
    )
    about: dict[str, object] = {
        "run": stored.fingerprint, "collection": source.name, "content": source.fingerprint, "split": split,
        "precision": precision, "ignore_also_true": ignore_also_true,
    }  # fmt: skip
    # A few batches suffice to say how useful the lists are; scores of pairs take long.
    lengths = int(found.texts.shape[1]), int(found.images.shape[1])
    count = RANKED_BATCHES if ranks or not matcher.scoring.reranks else 1
    both = _ranks(matcher, encoded, pairing, batch, lengths, count)
    if both is not None:
        about["online_ranks"] = {"batch": batch, "texts": both[0].as_dict(), "images": both[1].as_dict()}
    replace(found, about=about).save(out)
    _print_lists(found, out)
    if both is not None:
        _print_harder(both, batch)
    if both is not None and ranks:
        _print_ranks(both, batch)
    train = command("calligram", "train", "aoq", collection, "--out", "RUN", "--set", f"offline.negatives={out}")
    console.print(f"train with them: {train}", soft_wrap=True)
    if ranks and both is None:  # at the end, because the lists are stored in any case
        raise _too_few(pairing, f"split {split} of {source.name}", out)


def _matched(pairing: Pairing) -> tuple[int, int]:
    """The number of images and of texts that have a match."""
    images, texts = (int((count > 0).sum()) for count in pairing.matches.counts())
    return images, texts


def _too_few(pairing: Pairing, where: str, out: Path) -> UserError:
    captioned, distinct = _matched(pairing)
    return UserError(
        f"--ranks needs 2 or more captioned images and 2 or more different texts; {where} has {captioned} and "
        f"{distinct}. The lists are stored in {out}"
    )


def _ranks(
    matcher: Matcher, encoded: EncodedPairing, pairing: Pairing, batch: int, lengths: tuple[int, int], count: int
) -> tuple[OnlineRanks, OnlineRanks] | None:
    """Ranks of the hardest texts and images of random batches; None if there are too few images or texts."""
    from calligram.evaluation.mine import online_ranks
    from calligram.training.batches.batch import PairSampler

    if min(_matched(pairing)) < 2:
        return None
    batches = PairSampler(pairing.matches, min(batch, len(pairing.visuals)), 0, per_image=True).epoch(0)[:count]
    return online_ranks(matcher, encoded, pairing.matches, batches, lengths=lengths, track=progress_bar)


def _print_lists(found: NegativeLists, out: Path) -> None:
    console.print(
        f"{found.texts.shape[1]} texts for each of {len(found.texts)} images and {found.images.shape[1]} images for "
        f"each of {len(found.images)} texts: {out}",
        soft_wrap=True,
    )  # fmt: skip


def _print_harder(both: tuple[OnlineRanks, OnlineRanks], batch: int) -> None:
    texts, images = (f"{100 * found.harder:.0f}%" for found in both)
    console.print(
        f"a text drawn from a list is harder than the hardest one of {batch} images in {texts} of draws, an image in "
        f"{images}; shorter lists (--share) hold harder negatives",
        soft_wrap=True,
    )  # fmt: skip


def _print_ranks(both: tuple[OnlineRanks, OnlineRanks], batch: int) -> None:
    table = Table(
        title=f"ranks of the hardest negatives of batches of {batch} images in the whole split", title_justify="left"
    )
    for heading in ("", "mean rank", "median", "by chance", "within rank 100", "by chance"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, found in zip(("texts for images", "images for texts"), both, strict=True):
        shares = (f"{100 * share:.1f}%" for share in (found.within, found.expected_within))
        table.add_row(name, f"{found.mean:.1f}", f"{found.median:.0f}", f"{found.expected_mean:.1f}", *shares)
    console.print(table)
