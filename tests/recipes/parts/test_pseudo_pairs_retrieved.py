"""A run finds sentences of other text for images without captions, and the next one learns from them."""

from __future__ import annotations

import gzip

import pytest
import torch

from calligram.errors import UserError
from calligram.evaluation.sentence_retrieval import retrieved_sentences, sentences_not_in
from calligram.features.pseudo.sentences import PseudoSettings
from calligram.recipes.catalog import PRESETS
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.pseudo_pairs import make_pseudo_pairs
from calligram.recipes.parts.run import RunContext, run_preset
from calligram.training.runs import Run

SPARSE = ("sparse.images=0.5", "sparse.captions=1")
SMALL = (
    "image.features=colour", "batch=4", "dim=16", "ema_decay=0", "text.word_dim=8", "text.hidden=16", "text.dropout=0",
    "text.word_dropout=0", "text.min_count=1", "lr=0.01", "epochs=8",
    "pseudo.region_source=finder", *SPARSE,
)  # fmt: skip
MODEL = ("a3vse.context=6", "a3vse.heads=2", "adversarial.hidden=5")
COLOURS = ("red", "green", "blue", "yellow", "white", "black")
OTHERS = [f"here {colour} lies" for colour in COLOURS]


def run(collection, out, *changes, resume=False):
    model = () if any(change.startswith("matcher=") for change in changes) else MODEL
    settings = resolve(PRESETS["a3vse"].defaults, [*SMALL, *model, *changes])
    context = RunContext(torch.device("cpu"))
    return run_preset(PRESETS["a3vse"], settings, collection, out, resume=resume, context=context)


@pytest.fixture(scope="module")
def first(spoken_tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "run"
    run(spoken_tiny, folder)
    return folder


@pytest.fixture
def corpus(spoken_tiny, tmp_path):
    file = tmp_path / "other.txt.gz"
    lines = [*OTHERS, OTHERS[0].upper() + "!", "", *spoken_tiny.sentences("train").texts.strings]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return file


def test_captions_of_the_collection_are_not_retrieved(spoken_tiny, corpus):
    lost = spoken_tiny.sparse(0.5, 1)
    lines = gzip.decompress(corpus.read_bytes()).decode().splitlines()
    assert sentences_not_in(lines, spoken_tiny) == OTHERS
    assert len(lost.sentences("train").texts) < len(spoken_tiny.sentences("train").texts)


def test_retrieved_sentences_are_added_to_other_pseudo_sentences(spoken_tiny, first, corpus):
    sparse = spoken_tiny.sparse(0.5, 1)
    visuals = sparse.unannotated("train")
    found = retrieved_sentences(sparse, visuals, str(first), str(corpus), 2)
    assert [len(own) for own in found] == [2] * len(visuals)
    assert {sentence for own in found for sentence in own} <= set(OTHERS)
    how = {"run": str(first), "corpus": str(corpus), "retrieved": 2}
    pairs = make_pseudo_pairs(sparse, PseudoSettings(region_source="finder", **how))
    alone = make_pseudo_pairs(sparse, PseudoSettings(sources=(), **how))
    for place, expected in enumerate(found):
        both, own = ({kind.texts.strings[text] for text in kind.matches.texts_of(place)} for kind in (pairs, alone))
        assert own == set(expected)
        assert own < both
        assert len(both) == 3


def test_a_second_run_trains_on_retrieved_sentences_and_their_words(spoken_tiny, first, corpus, tmp_path):
    changes = (f"pseudo.run={first}", f"pseudo.corpus={corpus}", "epochs=1")
    run(spoken_tiny, tmp_path / "again", *changes)
    _, inputs = Run.open(tmp_path / "again").load()
    assert {"here", "lies"} <= set(inputs.texts.words)
    with pytest.raises(UserError, match=r"pseudo\.run=.* was trained on .*, with \d+ captions that .* leaves out"):
        run(spoken_tiny, tmp_path / "fewer", *changes, "sparse.images=0.2")


def test_an_ensemble_of_members_that_saw_removed_captions_is_refused(spoken_tiny, first, corpus, tmp_path):
    members = [tmp_path / "whole", tmp_path / "other"]
    for seed, folder in enumerate(members):
        run(spoken_tiny, folder, "sparse.images=1", "sparse.captions=none", "epochs=1", f"seed={seed}")
    preset, context = PRESETS["ensemble"], RunContext(torch.device("cpu"))

    def joined(name, runs, *changes):
        settings = resolve(preset.defaults, [f"runs={','.join(map(str, runs))}", *changes])
        return run_preset(preset, settings, spoken_tiny, tmp_path / name, context=context)

    removed = r"was trained on .*, with \d+ captions that .* leaves out"
    with pytest.raises(UserError, match=rf"runs\[0\]=.*whole {removed}"):
        joined("fewer", members, *SPARSE)
    joined("both", members)
    with pytest.raises(UserError, match=rf"pseudo\.run=.*both {removed}"):
        run(spoken_tiny, tmp_path / "again", f"pseudo.run={tmp_path / 'both'}", f"pseudo.corpus={corpus}")


def test_a_run_is_not_resumed_with_other_pseudo_pairs(spoken_tiny, first, corpus, tmp_path):
    changes = (f"pseudo.run={first}", f"pseudo.corpus={corpus}", "epochs=2")
    run(spoken_tiny, tmp_path / "again", *changes)
    run(spoken_tiny, tmp_path / "again", *changes, resume=True)
    corpus.write_bytes(gzip.compress(b"here nothing lies"))
    with pytest.raises(UserError, match="was started with other pseudo pairs: their source has changed"):
        run(spoken_tiny, tmp_path / "again", *changes, resume=True)


def test_a_damaged_run_is_refused(spoken_tiny, first, corpus, tmp_path):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    changes = (f"pseudo.run={tmp_path / 'damaged'}", f"pseudo.corpus={corpus}")
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        run(spoken_tiny, tmp_path / "again", *changes)
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        run(spoken_tiny, tmp_path / "damaged", resume=True)


def test_contradictory_settings_are_refused(spoken_tiny, first, corpus, tmp_path):
    with pytest.raises(UserError, match=r"pseudo\.run= .* and pseudo\.corpus= .* go together"):
        PseudoSettings(run=str(first))
    with pytest.raises(UserError, match=r"or give a run that retrieves sentences with pseudo\.run="):
        PseudoSettings(sources=())
    with pytest.raises(UserError, match=r"pseudo\.images=none makes no pseudo pairs"):
        resolve(PRESETS["a3vse"].defaults, ["pseudo.images=none", f"pseudo.run={first}", f"pseudo.corpus={corpus}"])
    sparse = spoken_tiny.sparse(0.5, 1)
    visuals = sparse.unannotated("train")
    own = tmp_path / "own.txt"
    own.write_text("\n".join(spoken_tiny.sentences("train").texts.strings))
    with pytest.raises(UserError, match="has no sentences except captions of"):
        retrieved_sentences(sparse, visuals, str(first), str(own), 1)
    with pytest.raises(UserError, match="cannot be read as text"):
        retrieved_sentences(sparse, visuals, str(first), str(tmp_path / "none.txt"), 1)
    damaged = bytearray(corpus.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (tmp_path / "damaged.gz").write_bytes(damaged)
    with pytest.raises(UserError, match="cannot be read as text"):
        retrieved_sentences(sparse, visuals, str(first), str(tmp_path / "damaged.gz"), 1)
    run(spoken_tiny, tmp_path / "scan", "matcher=scan", "terms=infonce", "epochs=1")
    with pytest.raises(UserError, match="has no vectors to retrieve"):
        retrieved_sentences(sparse, visuals, str(tmp_path / "scan"), str(corpus), 1)
