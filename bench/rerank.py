"""A text query over 100,000 images whose first 100 candidates are put in order by cross-attention, from text to hits.

The matcher is ``mmca`` at the paper's size behind a frozen encoder of MiniLM's size, with random weights, which take as
long as trained ones. Vectors lie near those of captions, as in ``serving``; parts are 49 cells of an image, as indexing
keeps them. They are put into the library directly, since encoding pictures is measured elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from serving import item

from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.wordpieces import WordPieces
from calligram.files import lock_folder
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.mmca import MMCA, MMCASettings
from calligram.scenes.generate import generate_scenes
from calligram.search.filters import columns
from calligram.search.indexing.run import open_for_writing
from calligram.search.indexing.writer import LibraryWriter
from calligram.search.library.matchers import LibraryMatchers, MatcherEncoder, unit_vectors
from calligram.search.query.rerank import TimeBudget
from calligram.search.query.searcher import Searcher

Row = dict[str, object]
Floats = NDArray[np.float32]
ITEMS, CELLS, DIM, STATE = 100_000, 49, 256, 384
K, DEPTH, QUERIES, BATCH = 10, 100, 200, 5000
NAME = f"{ITEMS} images reranked by mmca"


def make_run(folder: Path, captions: Sequence[str]) -> Path:
    """A run folder as training leaves it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    pieces = WordPieces.train(captions, min_count=1)
    size = {"hidden_size": STATE, "intermediate_size": 4 * STATE, "num_hidden_layers": 6, "num_attention_heads": 12}
    encoder = TextEncoder(BertModel(BertConfig(**size, vocab_size=len(pieces)))).eval()
    matcher = MMCA(MMCASettings(ImageArchitecture(feature_dim=1280), TextArchitecture("states", state_dim=STATE), DIM))
    folder.mkdir()
    (folder / RUN_FILE).write_text("{}\n", encoding="utf-8")
    catalog.save(matcher, folder / MATCHER_FILE, folder / WEIGHTS_FILE)
    Inputs(StoredInput("cells"), EncoderInput(encoder, pieces, "random")).save(folder / INPUTS_FOLDER)
    return folder


def fill(writer: LibraryWriter, root: Path, centres: Floats, captions: Sequence[str]) -> None:
    source, random = writer.add_source(root, "folder"), np.random.default_rng(0)
    writer.kinds |= {"year": "number", "camera": "text"}
    mask = np.ones(CELLS, dtype=np.bool_).tobytes()
    for start in range(0, ITEMS, BATCH):
        numbers = np.arange(start, min(start + BATCH, ITEMS))
        rows = [item(number, source.number, captions) for number in numbers.tolist()]
        vectors = centres[numbers % len(centres)] + random.normal(scale=0.6 / DIM**0.5, size=(len(rows), DIM))
        parts = random.standard_normal((len(rows), CELLS, DIM), dtype=np.float32).astype(np.float16)
        ids = [str(row["id"]) for row in rows]
        filters = columns.table_of([columns.row_of(row, str(root)) for row in rows], writer.kinds)
        writer.images.add(ids, vectors.astype(np.float32), filters)
        writer.tables.put("items", rows, frozenset(ids))
        kept = zip(ids, vectors.astype(np.float32), parts, strict=True)
        writer.tables.put(
            "parts",
            [
                {"id": id, "vector": vector.tobytes(), "parts": own.tobytes(), "count": CELLS, "mask": mask}
                for id, vector, own in kept
            ],
            frozenset(ids),
        )
    writer.commit()
    writer.optimize()


def make_library(folder: Path) -> tuple[Path, list[str]]:
    """A library, and captions to search it with."""
    collection = generate_scenes(folder / "scenes", images=400, size=32)
    captions = list(dict.fromkeys(collection.sentences("all").texts.strings))
    run, library = make_run(folder / "run", captions), folder / "library"
    centres = unit_vectors(MatcherEncoder(load_matcher(run)).texts(captions))
    with lock_folder(library, "library"):
        fill(
            open_for_writing(library, LibraryMatchers.load(str(run), str(run)), folder, None, rebuild=False).writer,
            folder,
            centres,
            captions,
        )
    return library, captions


def asked(searcher: Searcher, captions: Sequence[str], depth: int | TimeBudget) -> dict[str, Floats]:
    """Milliseconds of whole queries and of their stages, and candidates compared; the first ones warm up."""
    times: dict[str, list[float]] = {}
    for number, text in enumerate(captions[: QUERIES + 20]):
        began = time.perf_counter()
        found = searcher.images(text, K, all=True, depth=depth)
        stages = {
            "from text to hits": time.perf_counter() - began,
            **found.stage_seconds,
            "candidates": found.depth / 1000,
        }
        assert len(found.hits) == K
        if number >= 20:
            for name, spent in stages.items():
                times.setdefault(name, []).append(1000 * spent)
    return {name: np.array(spent, np.float32) for name, spent in times.items()}


def rerank(row: Callable[[str, float, str], Row]) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        library, captions = make_library(Path(place))
        began = time.perf_counter()
        searcher = Searcher.open(library)
        rows = [row(f"{NAME}: opened", time.perf_counter() - began, "s")]
        for how, depth in ((f"{DEPTH} candidates", DEPTH), ("a budget of 100 ms", TimeBudget(0.1))):
            found = asked(searcher, captions, depth)
            count = found.pop("candidates")
            rows.append(row(f"{NAME}, {how}: candidates, median", float(np.median(count)), ""))
            for name, spent in found.items():
                rows += [row(f"{NAME}, {how}: {name}, p{p}", float(np.percentile(spent, p)), "ms") for p in (50, 95)]
    return rows
