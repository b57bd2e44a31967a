from __future__ import annotations

import json
import shutil

import pytest
import torch

from calligram.checksums import sealed
from calligram.errors import UserError
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.studies.catalog import SUGGEST
from calligram.studies.claims import Claim, Row, Study
from calligram.studies.reproduce import reproduce_study
from calligram.studies.results import read_results
from calligram.training.runs import Run

SMALL = (
    "batch=6", "dim=16", "text.word_dim=8", "text.hidden=16", "text.min_count=1", "texts=1", "image.features=colour",
    "epochs=2",
)  # fmt: skip


def settings(*changes):
    return resolve(PRESETS["vse"].defaults, [*SMALL, *changes])


@pytest.fixture(scope="module")
def start(spoken_tiny, tmp_path_factory):
    """A run that saw a caption of each of three images of twelve."""
    out = tmp_path_factory.mktemp("start") / "run"
    chosen = settings("sparse.images=0.25", "sparse.captions=1")
    run_preset(PRESETS["vse"], chosen, spoken_tiny, out, context=RunContext(torch.device("cpu")))
    return out


def captioned(collection):
    found = collection.sentences("train")
    return {found.visuals.ids[v]: len(found.matches.texts_of(v)) for v in found.matches.pairs()[0].tolist()}


def test_suggested_images_are_added_to_captioned_ones_in_the_same_number_as_random_ones(spoken_tiny, start):
    few = captioned(spoken_tiny.sparse(0.25, 1))
    chosen = settings("sparse.images=0.25", "sparse.captions=1", f"sparse.run={start}", "sparse.more=0.25")
    view = chosen.sparse.of(spoken_tiny)
    assert set(few) < set(captioned(view))
    assert len(captioned(view)) == len(captioned(spoken_tiny.sparse(0.5, 1))) == 6
    assert set(captioned(view).values()) == {1}
    assert view.name == "tiny (25% of images x 1 caption, seed 0, and 3 images suggested by runs)"
    assert len({view.fingerprint, spoken_tiny.fingerprint, spoken_tiny.sparse(0.5, 1).fingerprint}) == 3
    assert chosen.sparse.of(spoken_tiny).fingerprint == view.fingerprint


def test_a_run_on_suggested_images_suggests_further_ones(spoken_tiny, start, tmp_path):
    few = ("sparse.images=0.25", "sparse.captions=1", "sparse.more=0.25")
    one = settings(*few, f"sparse.run={start}")
    run_preset(PRESETS["vse"], one, spoken_tiny, tmp_path / "one", context=RunContext(torch.device("cpu")))
    first, second = one.sparse.of(spoken_tiny), settings(*few, f"sparse.run={tmp_path / 'one'}").sparse.of(spoken_tiny)
    assert len(Run.open(tmp_path / "one").about["further captions"]) == 3
    assert set(captioned(first)) < set(captioned(second))
    assert len(captioned(second)) == 9


def test_kept_captions_depend_on_the_seed_of_the_run_if_sparse_seed_is_none(spoken_tiny):
    own = settings("sparse.images=0.5", "sparse.seed=none")
    assert own.sparse.of(spoken_tiny, 3).fingerprint == spoken_tiny.sparse(0.5, seed=3).fingerprint
    fixed = settings("sparse.images=0.5", "sparse.seed=1")
    assert fixed.sparse.of(spoken_tiny, 3).fingerprint == spoken_tiny.sparse(0.5, seed=1).fingerprint


def test_incomplete_settings_and_a_share_below_one_image_are_refused(spoken_tiny, start):
    for change in ("sparse.more=0.1", "sparse.run=somewhere"):
        with pytest.raises(UserError, match="give both or none"):
            settings(change)
    none = settings("sparse.images=0.25", f"sparse.run={start}", "sparse.more=0.001")
    with pytest.raises(UserError, match=r"sparse.more=0.001 of 12 images is less than one image"):
        none.sparse.of(spoken_tiny)


@pytest.mark.parametrize(
    "changes",
    [
        ("sparse.images=0.1", "sparse.captions=1"),
        ("sparse.images=0.25", "sparse.captions=1", "sparse.seed=1"),
    ],
)
def test_a_run_that_saw_removed_captions_may_not_suggest(spoken_tiny, start, changes):
    leaks = settings(*changes, f"sparse.run={start}", "sparse.more=0.25")
    with pytest.raises(UserError, match=r"was trained on 25% of images x 1 caption, seed 0, with captions that"):
        leaks.sparse.of(spoken_tiny)


def test_a_run_on_fewer_captions_may_suggest(spoken_tiny, start):
    more = settings("sparse.images=0.5", "sparse.captions=2", f"sparse.run={start}", "sparse.more=0.25")
    assert len(captioned(more.sparse.of(spoken_tiny))) == 9


def test_a_run_on_another_collection_may_not_suggest(spoken_tiny, stored_tiny, start, tmp_path):
    few = ("sparse.images=0.25", "sparse.captions=1", "sparse.more=0.25")
    with pytest.raises(UserError, match=r"was not trained on .* \(its content was .*give a run on this collection"):
        settings(*few, f"sparse.run={start}").sparse.of(stored_tiny)
    shutil.copytree(start, tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(sealed({**about, "further captions": ["elsewhere.jpg"]})))
    with pytest.raises(UserError, match=r"it used captions of image 'elsewhere.jpg', which is not there"):
        settings(*few, f"sparse.run={tmp_path / 'run'}").sparse.of(spoken_tiny)


def test_a_study_suggests_by_the_row_of_the_same_seed(spoken_tiny, tmp_path):
    few = ("sparse.images=0.25", "sparse.captions=1", "sparse.seed=none")
    study = Study(
        "try",
        (
            Row("few", "vse", few),
            Row("random", "vse", ("sparse.images=0.5", *few[1:])),
            Row("suggested", "vse", (*few, "sparse.run=row:few", "sparse.more=0.25")),
        ),
        (Claim("they help", "suggested", "random"), Claim("more help", "random", "few")),
    )
    reproduce_study(study, spoken_tiny, results=tmp_path / "results", runs=tmp_path / "runs", seeds=2, changes=SMALL)
    found = {(r.study, r.seed): r for r in read_results(tmp_path / "results")}
    assert len(found) == 6
    assert found["try: suggested", 1].settings["sparse.run"] == "row:few"
    names = [
        Run.open(folder).about["collection"] for folder in (tmp_path / "runs").iterdir() if "suggested" in folder.name
    ]
    assert sorted(name.partition(", and")[0] for name in names) == [
        f"tiny (25% of images x 1 caption, seed {seed}" for seed in (0, 1)
    ]


def test_rows_of_the_study_differ_only_in_the_chosen_images():
    def without(row):
        return [
            c for c in row.changes if not c.startswith(("sparse.images", "sparse.run", "sparse.more", "sparse.unc"))
        ]

    assert all(without(row) == without(SUGGEST.rows[0]) for row in SUGGEST.rows)
