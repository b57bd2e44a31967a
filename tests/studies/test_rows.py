"""Rows of a study side by side, in real processes."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calligram.data.write_collection import write_draft
from calligram.errors import UserError
from calligram.features.images.backbones import BackboneInput
from calligram.features.texts.fisher_vectors import FisherVectorizer
from calligram.features.texts.fitted_vectors import fitted_text
from calligram.features.texts.text_encoder import EncoderInput
from calligram.features.texts.text_vectors import TextVectorInput
from calligram.files import LOCK_FILE, lock_holder
from calligram.recipes.catalog import find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext
from calligram.studies import row_pool
from calligram.studies import rows as rows_module
from calligram.studies.claims import Claim, Row, Study
from calligram.studies.reproduce import plan_rows, reproduce_study
from calligram.studies.results import Result, append_result, read_results, settings_of
from calligram.studies.row_pool import InputPreparation, RowState
from calligram.studies.rows import RowJob, RowProgress
from calligram.training.runs import Run

SMALL = (
    "batch=6", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8", "text.min_count=1",
)  # fmt: skip
SHORT = (*SMALL, "epochs=2")
LONG = (*SMALL, "epochs=25")
LISTS = ("sparse.images=0.5", "sparse.more=0.5")
ROWS = (
    Row("taught", "vse", (*LISTS, "sparse.run=row:new")),
    Row("new", "vse", ("sparse.images=0.5",)),
    Row("broken", "vse", ("text.encoder=/nowhere",)),
    Row("after broken", "vse", (*LISTS, "sparse.run=row:broken")),
    Row("old", "vse", ("terms=ranking",)),
)
STUDY = Study("paper", ROWS, (Claim("new beats old", "new", "old"),))


def measured(results: Path) -> dict[str, tuple]:
    return {r.study: (r.seed, r.i2t, r.t2i, r.overlap, r.hardware) for r in read_results(results)}


@pytest.fixture
def no_figures(monkeypatch):
    """This process draws no figures, which take seconds; processes of rows draw theirs."""
    monkeypatch.setattr(rows_module, "draw_found_images", lambda *_, **__: None)
    monkeypatch.setattr(rows_module, "draw_curves", lambda *_: None)


def process_of(row: RowState) -> int:
    """The process that holds the lock of a row."""
    return int(lock_holder(row.job.folder() / LOCK_FILE).split()[1])


def lives(process: int) -> bool:
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_rows_run_side_by_side_and_a_row_that_fails_stops_no_other(tiny, tmp_path, no_figures):
    states: dict[str, list[str]] = {row.name: [] for row in ROWS}
    seen: dict[str, RowState] = {}
    most = 0

    def watch(rows):
        nonlocal most
        most = max(most, sum(row.state == "running" for row in rows))
        for row in rows:
            seen[row.job.row.name] = row
            if states[row.job.row.name][-1:] != [row.state]:
                states[row.job.row.name].append(row.state)
        if seen["taught"].state == "running":
            assert seen["new"].state == "done"

    said: list[str] = []
    given = {"seeds": 1, "changes": SHORT}
    both = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    reproduce_study(STUDY, tiny, workers=2, watch=watch, say=said.append, **given, **both)
    assert most == 2
    assert states["taught"] == ["waiting", "running", "done"]
    assert states["broken"] == ["waiting", "running", "failed"]
    assert states["after broken"] == ["waiting", "failed"]
    assert "text encoder '/nowhere' could not be loaded" in seen["broken"].error
    assert seen["after broken"].error == "it needs row 'broken', which failed"
    assert "UserError" in seen["broken"].job.log_file.read_text()
    assert len(said) == 5
    found = measured(tmp_path / "results")
    assert set(found) == {"paper: new", "paper: old", "paper: taught"}
    assert {line[-1].split()[0] for line in found.values()} == {"1"}  # threads
    assert seen["new"].dev
    assert not list((tmp_path / "runs").glob("*/state"))
    # This process gives the same numbers.
    alone = {"results": tmp_path / "alone", "runs": tmp_path / "alone-runs"}
    reproduce_study(STUDY, tiny, workers=0, only=("n*",), **given, **alone)
    again = measured(tmp_path / "alone")
    assert set(again) == {"paper: new"}
    assert again["paper: new"][:-1] == found["paper: new"][:-1]
    # Decoded pictures are stored once, for all processes.
    assert len(list(tiny.folder.glob("cache/pixels-squash-16/*/000000.npy"))) == 1


def test_a_row_that_is_killed_is_continued_by_the_next_call(tiny, tmp_path, caplog, no_figures):
    study = Study("paper", (Row("new", "vse"), Row("same", "vse")), (Claim("new beats same", "new", "same"),))
    killed: list[int] = []
    failed: list[str] = []

    def kill(rows):
        row = next(row for row in rows if row.job.row.name == "new")
        if len(row.dev) > 1 and not killed:
            killed.append(process_of(row))
            os.kill(killed[0], signal.SIGKILL)
        failed[:] = [row.error for row in rows if row.state == "failed"]

    given = {
        "seeds": 1, "changes": LONG, "results": tmp_path / "results", "runs": tmp_path / "runs", "workers": 2,
    }  # fmt: skip
    reproduce_study(study, tiny, watch=kill, **given)
    assert killed
    assert "it was killed by SIGKILL" in failed[0]
    assert set(measured(tmp_path / "results")) == {"paper: same"}
    (folder,) = (tmp_path / "runs").glob("paper-new-*")
    assert (folder / "state").is_dir()
    # The next call continues the row in this process, because another server takes seconds to start.
    with caplog.at_level(logging.INFO, logger="calligram"):
        reproduce_study(study, tiny, **{**given, "workers": 0})
    found = measured(tmp_path / "results")
    assert found["paper: new"][:-1] == found["paper: same"][:-1]
    assert "resuming at step" in caplog.text


def test_an_interrupt_stops_all_processes(tiny, tmp_path):
    processes: list[int] = []

    def interrupt(rows):
        if rows[0].dev:
            processes.append(process_of(rows[0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce_study(
            STUDY, tiny, only=("new",), seeds=1, changes=LONG, workers=1, watch=interrupt,
            results=tmp_path / "results", runs=tmp_path / "runs",
        )  # fmt: skip
    deadline = time.monotonic() + 60
    while lives(processes[0]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lives(processes[0])
    assert not (tmp_path / "results").exists()


def planned(study: Study, tiny, folder: Path, **options) -> list[tuple[str, int]]:
    given = {"results": folder / "results", "runs": folder / "runs", "seeds": range(3), "hardware": "h", **options}
    return [(row.job.row.name, row.job.seed) for row in plan_rows(study, tiny, **given)]


def test_claims_with_the_fewest_missing_runs_come_first(tiny, tmp_path):
    rows = (*(Row(name, "vse") for name in "abcd"), Row("e", "vse", needs="also_true"))
    claims = (Claim("1", "a", "b"), Claim("2", "b", "c"), Claim("3", "d", "e"), Claim("4", "", "", needs="COCO"))
    study = Study("paper", rows, claims)
    first = [(name, seed) for seed in range(3) for name in "ab"]
    then = [("c", seed) for seed in range(3)]
    last = [("d", seed) for seed in range(3)]  # its claim needs a row that this collection cannot have
    assert planned(study, tiny, tmp_path) == first + then + last
    for seed in (0, 1):
        append_result(
            tmp_path / "results" / "paper.jsonl",
            Result("vse", settings_of(rows[2]), seed, tiny.name, "test", {}, {}, 1.0, 1.0, "h", "c", "x",
                   study="paper: c"),
        )  # fmt: skip
    # Now the claim about b and c has four missing runs, and the other one has six.
    assert planned(study, tiny, tmp_path) == [
        ("b", 0), ("b", 1), ("b", 2), ("c", 2), ("a", 0), ("a", 1), ("a", 2), *last,
    ]  # fmt: skip
    # Runs of different hardware are no pairs, so on other hardware row c is run too.
    assert planned(study, tiny, tmp_path, hardware="other") == first + then + last


def test_rows_that_are_pairs_on_other_hardware_are_not_run_again(tiny, tmp_path):
    rows = (Row("a", "vse"), Row("b", "vse"), Row("exact", "vse", deterministic=True))
    study = Study("paper", rows, (Claim("1", "a", "b"), Claim("2", "a", "exact")))
    for name, seed, where in (("a", 0, "there"), ("b", 0, "there"), ("a", 1, "there"), ("b", 1, "elsewhere")):
        append_result(
            tmp_path / "results" / "paper.jsonl",
            Result("vse", settings_of(study.row(name)), seed, tiny.name, "test", {}, {}, 1.0, 1.0, where, "c", "x",
                   study=f"paper: {name}"),
        )  # fmt: skip
    assert planned(study, tiny, tmp_path, seeds=range(2)) == [("a", 1), ("b", 1), ("a", 0), ("exact", 0)]
    assert planned(study, tiny, tmp_path, seeds=range(2), hardware="there") == [("b", 1), ("exact", 0)]
    assert planned(study, tiny, tmp_path, seeds=range(2, 3)) == [("a", 2), ("b", 2), ("exact", 0)]


def test_seeds_from_a_first_one_need_some_seed(tiny, tmp_path):
    with pytest.raises(UserError, match="no seed is left"):
        reproduce_study(
            STUDY, tiny, seeds=2, first_seed=2, results=tmp_path / "results", runs=tmp_path / "runs", changes=LONG
        )


def test_chosen_rows_bring_the_rows_that_they_need(tiny, tmp_path):
    assert planned(STUDY, tiny, tmp_path, seeds=range(1), only=("tau*", "o?d")) == [
        ("new", 0),
        ("taught", 0),
        ("old", 0),
    ]
    # A result does not replace the run that another row reads; it is trained again and not recorded twice.
    append_result(
        tmp_path / "results" / "paper.jsonl",
        Result("vse", settings_of(ROWS[1]), 0, tiny.name, "test", {}, {}, 1.0, 1.0, "h", "c", "x", study="paper: new"),
    )
    given = {"results": tmp_path / "results", "runs": tmp_path / "runs", "hardware": "h", "seeds": range(1)}
    rows = plan_rows(STUDY, tiny, only=("taught",), **given)
    assert [(row.job.row.name, row.recorded) for row in rows] == [("new", True), ("taught", False)]
    folder = rows[0].job.folder()
    folder.mkdir(parents=True)
    (folder / "best.safetensors").touch()
    (folder / "run.json").write_text("{}")
    assert not Run(folder).complete
    (folder / "run.json").write_text('{"seconds": 1}')
    assert planned(STUDY, tiny, tmp_path, seeds=range(1), only=("taught",)) == [("taught", 0)]


def test_inputs_of_several_rows_are_made_once_before_the_rows(
    tiny_draft, tiny_classifier, tiny_bert, tmp_path, monkeypatch
):
    (tmp_path / "pictures").mkdir()
    collection = write_draft(tiny_draft(tmp_path / "pictures"), tmp_path / "collection")
    frozen = (f"image.backbone={tiny_classifier}", f"text.encoder={tiny_bert}", "text.word_dropout=0")
    rows = (
        Row("vectors", "vse", frozen),
        Row("vectors too", "vse", (*frozen, "lr=0.1")),
        Row("cells", "scan", frozen),
        Row("nothing", "vse", ("image.backbone=/nowhere",)),
        Row("pixels", "vse", ("image.size=16",)),
        Row("pixels too", "vse", ("image.size=16", "image.flip=true")),
        Row("other pixels", "vse", ("image.size=20",)),
    )
    jobs = [RowJob("paper", row, 0, "tiny", tmp_path / "results", tmp_path / "runs") for row in rows]
    images: list[int] = []
    texts: list[int] = []
    image_network, text_network = BackboneInput.features, EncoderInput._run
    monkeypatch.setattr(
        BackboneInput, "features", lambda self, pixels: images.append(len(pixels)) or image_network(self, pixels)
    )
    monkeypatch.setattr(EncoderInput, "_run", lambda self, words: texts.append(len(words)) or text_network(self, words))
    for _ in range(2):
        inputs = InputPreparation(jobs, collection, RunContext())
        assert [inputs.is_ready(number) for number in range(len(jobs))] == [False] * 6 + [True]
        inputs.run()
        assert all(inputs.is_ready(number) for number in range(len(jobs)))
        assert sum(images) == 2 * 6  # vectors and cells of six pictures, which are the same in all splits
        assert sum(texts) == 14
    assert {folder.name for folder in (tmp_path / "collection" / "cache").glob("pixels-*")} == {"pixels-squash-16"}


def test_text_vectors_are_fitted_by_the_first_of_several_rows_once_for_each_seed(tiny_draft, tmp_path, monkeypatch):
    (tmp_path / "pictures").mkdir()
    collection = write_draft(tiny_draft(tmp_path / "pictures"), tmp_path / "collection")
    words = tmp_path / "words.txt"
    random = np.random.default_rng(0)
    known = sorted({word for text in collection.column("captions", "text") for word in str(text).lower().split()})
    words.write_text("".join(f"{word} {' '.join(map(str, random.normal(size=4)))}\n" for word in known))
    fitted = (f"text.vectors={words}", "text.fitted.centres=2", "text.fitted.pca=3", "image.size=16", "batch=6")
    fits: list[int] = []
    fresh_fit = TextVectorInput.fit
    monkeypatch.setattr(
        TextVectorInput,
        "fit",
        lambda strings, words, own, *rest: fits.append(rest[-1]) or fresh_fit(strings, words, own, *rest),
    )
    strings = collection.sentences("test").texts.strings
    given = [*fitted, "dim=4", "two-branch.hidden=4", "epochs=1"]

    def vectors(*changes):
        own = resolve(find_preset("two-branch").defaults, [*given, *changes])
        inputs = find_preset("two-branch").recipe.plan(own, collection, RunContext()).inputs
        return own, inputs.texts.load(strings, collection.pictures.cache).take(np.arange(len(strings)))[0]

    (settings, found) = zip(*(vectors(f"seed={seed}") for seed in (0, 1)), strict=True)
    assert fits == [0, 1]
    # Further rows read both the fits and the vectors of the texts.
    monkeypatch.setattr(FisherVectorizer, "encode", lambda *_: pytest.fail("text vectors were computed again"))
    for seed in (0, 1):
        assert torch.equal(vectors(f"seed={seed}", "lr=0.1")[1], found[seed])
    assert fits == [0, 1]
    assert not torch.allclose(found[0], found[1], atol=1e-2)
    monkeypatch.undo()
    train = collection.sentences("train").join_equal_texts().texts.strings
    for own, stored in zip(settings, found, strict=True):
        fresh = fitted_text(own.text.fitted, str(words), train, seed=own.seed).texts(strings)[0]
        assert torch.equal(fresh, stored)


def test_a_job_is_read_back(tmp_path):
    job = RowJob("paper", ROWS[0], 2, "tiny", tmp_path / "results", tmp_path / "runs", SHORT, frozenset({"map"}))
    assert RowJob.from_json(job.as_json()) == job


def test_the_time_left_counts_the_steps_of_all_stages(tmp_path, monkeypatch):
    """Two epochs of 10 steps and three of 20: after 10 s for the first epoch, 70 of 80 steps are left."""

    class OfStage:
        def __init__(self, name, epochs, steps):
            self.name, self.epochs, self.batches = name, epochs, range(steps)

    sent: list[dict] = []
    progress = RowProgress(tmp_path, sent.append)
    progress._stages = (OfStage("one", 2, 10), OfStage("two", 3, 20))
    now = 100.0
    # Only in this module: servers of other tests that run meanwhile would wait for hours by another clock.
    monkeypatch.setattr(rows_module, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in progress(range(10), "one 1/2"):
        now += 1
    assert sent[0] == {"doing": "epoch 1/5", "dev": []}
    assert sent[-1]["left"] == pytest.approx(70, rel=0.02)
    for _ in progress(range(20), "two 1/3"):
        now += 1
    assert sent[-1]["left"] == pytest.approx(40 * 30 / 40, rel=0.1)
    assert [message["doing"] for message in sent if "doing" in message] == ["epoch 1/5", "epoch 3/5"]
    before = len(sent)
    assert list(progress(range(3), "encoding images")) == [0, 1, 2]
    assert len(sent) == before
    assert row_pool.REFRESH_SECONDS < 1
