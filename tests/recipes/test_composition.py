"""Every term with every matcher: trained for two steps, saved, loaded and evaluated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calligram.errors import UserError
from calligram.evaluation.retrieval import evaluate_retrieval
from calligram.models.catalog import MATCHERS
from calligram.recipes.catalog import find_preset
from calligram.recipes.fit import fit
from calligram.recipes.pairs import MATCHER_SETTINGS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.run import run_preset, train_preset
from calligram.recipes.parts.terms import TERMS
from calligram.training.runs import Run

SMALL = (
    "dim=8", "batch=4", "epochs=1", "warmup_epochs=0", "steps=2", "ema_decay=0", "image.size=32", "image.channels=4,4",
    "text.word_dim=4", "text.hidden=8",
)  # fmt: skip
MATCHERS_OF_TOWERS = tuple(name for name in MATCHER_SETTINGS if name != "pretrained")
OF_MATCHER = {
    "mmca": ("mmca.heads=2", "mmca.filters=4"),
    "a3vse": ("a3vse.context=4", "a3vse.heads=2"),
    "vsrn": ("vsrn.layers=1",),
    "two-branch": ("two-branch.hidden=8",),
    "two-branch-similarity": ("two-branch-similarity.hidden=8",),
}
FIRST_STAGE = "first stage"
"""the loss of the vectors of a matcher that reranks; a setting and not a term"""
ROWS = (*TERMS, FIRST_STAGE)
COLUMNS = (*MATCHERS_OF_TOWERS, "vse,scan")
REFUSED = {
    (FIRST_STAGE, name): "candidates and first_stage are for matchers that score pairs by more than the cosine"
    for name in ("vse", "two-branch", "vsrn", "a3vse")
} | {
    ("adversarial", names): f"matcher={name} does not score by vectors, and the discriminators of the term adversarial"
    for names, name in (("scan", "scan"), ("bfan", "bfan"), ("vse,scan", "scan"))
}
"""cells that have no meaning, with the reason that users read"""


@pytest.fixture(scope="module")
def teacher(tiny, tmp_path_factory):
    """A run that mines, and whose scores and sentences are used."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    train_preset("vse", tiny, out, *SMALL[:4], *SMALL[5:], "terms=infonce")
    return out


def of_term(term: str, teacher, folder) -> list[str]:
    if term == FIRST_STAGE:
        return ["terms=infonce", "first_stage=1", "candidates=2"]
    if term == "offline":
        return ["terms=offline", f"offline.negatives={teacher}"]
    if term == "distillation":
        return ["terms=distillation", f"distillation.teacher={teacher}"]
    if term == "adversarial":  # needs pseudo pairs and a term of pairs
        corpus = folder / "corpus.txt"
        corpus.write_text("a red cat\na blue dog on a hill\na green bird\ntwo dogs play\n", encoding="utf-8")
        return [
            "terms=infonce,adversarial", "pseudo.images=all", "pseudo.sources=", f"pseudo.run={teacher}",
            f"pseudo.corpus={corpus}", "pseudo.retrieved=1",
        ]  # fmt: skip
    return [f"terms={term}"]


def cell(term, matcher, tiny, teacher, folder) -> str:
    """Train, save, load and evaluate one cell; return the reason of a refusal, empty for none."""
    changes = [*SMALL, f"matcher={matcher}", *of_term(term, teacher, folder)]
    changes += [change for name in matcher.split(",") for change in OF_MATCHER.get(name, ())]
    preset = find_preset("vse")
    try:
        run_preset(preset, resolve(preset.defaults, changes), tiny, folder / "run")
    except UserError as error:
        return str(error)
    run = Run.open(folder / "run")
    steps = [row for row in run.metrics() if "dev" in row]
    assert steps[-1]["step"] == 2
    report = evaluate_retrieval(*run.load(), tiny.sentences("dev"))
    assert 0 <= report.retrieval.rsum <= 600
    assert report.retrieval.rsum == pytest.approx(steps[-1]["dev"]["rsum"], abs=0.01)
    return ""


@pytest.mark.parametrize("matcher", COLUMNS)
def test_every_term_trains_every_matcher(matcher, tiny, teacher, tmp_path):
    for number, term in enumerate(ROWS):
        folder = tmp_path / str(number)
        folder.mkdir()
        refusal = cell(term, matcher, tiny, teacher, folder)
        expected = REFUSED.get((term, matcher), "")
        assert refusal.startswith(expected) if expected else not refusal, f"{term} with {matcher}: {refusal}"
        if refusal:
            print(f"refused: {term} with {matcher}: {refusal}")


def test_at_most_a_tenth_of_the_cells_is_refused():
    cells = len(ROWS) * len(COLUMNS)
    print(f"{cells - len(REFUSED)} of {cells} cells are trained")
    assert len(REFUSED) <= 0.1 * cells
    assert set(MATCHERS) - set(MATCHERS_OF_TOWERS) == {"pretrained", "cca", "weighted", "ensemble", "tags"}


@pytest.mark.parametrize("matcher", MATCHERS_OF_TOWERS)
@pytest.mark.parametrize("text", ["lstm", "cnn", "vectors", "encoder"])
def test_every_matcher_takes_every_text_tower(matcher, text, stored_tiny, tiny_bert, tmp_path):
    tower = {
        "cnn": ("text.network=cnn", "text.cnn.blocks=1", "text.cnn.width=4", "text.cnn.length=8"),
        "vectors": ("text.network=vectors", "text.fitted.kind=tfidf", "text.fitted.tfidf_words=20"),
        "encoder": (f"text.encoder={tiny_bert}", "text.train=true"),
    }.get(text, (f"text.network={text}",))
    kept = [change for change in SMALL if not change.startswith("image.")]
    own = (*kept, f"matcher={matcher}", "image.features=colour", *tower, *OF_MATCHER.get(matcher, ()))
    found = train_preset("vse", stored_tiny, tmp_path / "run", *own)
    assert found["rsum"] > 0


def test_settings_are_python_objects(tiny, teacher, tmp_path):
    import calligram as cg

    run = fit(
        [cg.models.SCANSettings(direction="i2t"), cg.models.VSESettings()],
        tiny,
        out=tmp_path / "run",
        image=cg.ImageSettings(size=32, channels=(4, 4)),
        text=cg.TextSettings(word_dim=4, hidden=8),
        terms=[cg.terms.Ranking(margin=0.1), cg.terms.Offline(negatives=str(teacher), weight=0.5)],
        stages=[
            cg.stage("first", without=["offline"], epochs=1),
            cg.stage("second", epochs=1, lr=1e-4, changes={"ranking.margin": 0.3}),
        ],
        dim=8,
        batch=4,
        seed=1,
    )
    kept = Run.open(run.folder)
    stages = [row["stage"] for row in kept.metrics() if "dev" in row]
    assert stages == ["first", "second"]
    plain = kept.about["settings"]
    assert plain["matcher"] == ["scan", "vse"]
    assert plain["stages"][1] == {"name": "second", "lr": 1e-4, "epochs": 1, "ranking": {"margin": 0.3}}
    # The same settings from the words of the command line.
    settings = resolve(
        replace(find_preset("vse").defaults),
        ["matcher=scan,vse", "scan.direction=i2t", "dim=8", "terms=ranking,offline", "ranking.margin=0.1",
         "stages.1.without=offline", "stages.2.ranking.margin=0.3"],
    )  # fmt: skip
    assert settings.matcher[0].direction == "i2t"
    assert settings.stages[1].changes == (("ranking.margin", 0.3),)
