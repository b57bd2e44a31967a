"""The stages of a run: which ones train, which terms they have, and what happens at their start."""

from __future__ import annotations

import pytest

from calligram.errors import UserError
from calligram.evaluation.mine import LIST_SHARE, MIN_LIST_LENGTH, list_length
from calligram.recipes.catalog import PRESETS, find_preset
from calligram.recipes.parts.config import resolve
from calligram.recipes.parts.mined_negatives import MinedNegatives
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.schedule import trained_stages
from calligram.recipes.parts.terms import InfoNCE
from calligram.training.objectives.objective import InfoNCEObjective, RankingObjective

SMALL = (
    "batch=6", "texts=1", "dim=8", "image.size=16", "image.channels=4", "text.word_dim=6", "text.hidden=8",
    "text.min_count=1",
)  # fmt: skip


def staged(preset, *changes):
    """The name, the terms and the start of every stage that trains."""
    found = trained_stages(resolve(PRESETS[preset].defaults, changes))
    return [(each.name, tuple(term.name for term in own.terms), each.on_start) for each, own in found]


def planned(collection, preset, *changes):
    chosen = PRESETS[preset]
    return chosen.recipe.plan(resolve(chosen.defaults, [*SMALL, *changes]), collection, RunContext())


# Warm-up


@pytest.mark.parametrize(
    ("warmup", "first"), [("ranking", RankingObjective), ("infonce", InfoNCEObjective)], ids=["ranking", "infonce"]
)
def test_all_negatives_come_before_the_hardest(tiny, warmup, first):
    changes = ("terms=ranking", "warmup_epochs=2", f"warmup_loss={warmup}", "epochs=5")
    warm, hard = planned(tiny, "vse", *changes).stages
    assert (warm.name, warm.epochs, hard.name, hard.epochs) == ("ranking, warm-up", 2, "ranking", 3)
    assert isinstance(warm.objective, first)
    assert isinstance(hard.objective, RankingObjective)
    assert (getattr(warm.objective, "top_k", None), hard.objective.top_k) == (None, 1)
    assert warm.objective is not hard.objective


def test_without_hardest_negatives_there_is_one_stage(tiny):
    for terms in (
        ("terms=infonce",),
        ("terms=ranking", "ranking.top_k=none"),
        ("terms=ranking", "ranking.random=true"),
    ):
        (only,) = planned(tiny, "vse", *terms, "warmup_epochs=2", "epochs=5").stages
        assert only.epochs == 5


def test_a_warm_up_keeps_the_other_terms_and_the_weight(tiny):
    changes = ("terms=ranking,instance", "ranking.weight=3", "ranking.margin=0.4", "warmup_epochs=1", "epochs=2")
    warm, hard = (stage.objective for stage in planned(tiny, "vse", *changes).stages)
    assert warm.weights == hard.weights == [3, 1]
    assert (warm.parts[0].top_k, warm.parts[0].margin) == (None, 0.4)
    assert warm.parts[1] is hard.parts[1]  # the classifier is trained in both


def test_the_weight_of_an_only_term_counts(tiny):
    (stage,) = planned(tiny, "vse", "terms=logistic", "logistic.weight=3").stages
    assert stage.objective.weights == [3]


@pytest.mark.parametrize("terms", ["infonce,ranking", "ranking,infonce"])
def test_a_warm_up_with_another_loss_of_scores_leaves_hard_negatives_out(tiny, terms):
    changes = (f"terms={terms}", "warmup_epochs=1", "epochs=2")
    warm, hard = (stage.objective for stage in planned(tiny, "vse", *changes).stages)
    assert isinstance(warm, InfoNCEObjective)
    assert len(hard.parts) == 2
    assert any(part is warm for part in hard.parts)


def test_a_warm_up_may_be_the_whole_stage_but_not_with_offline_negatives(tiny, caplog):
    (only,) = planned(tiny, "vse", "terms=ranking", "warmup_epochs=5", "epochs=3").stages
    assert (only.name, only.epochs) == ("ranking, warm-up", 3)
    assert "warmup_epochs=5 covers all of epochs=3, so no step takes the hardest negatives" in caplog.text
    with pytest.raises(UserError, match="warmup_epochs=2 leaves none of epochs=2 for offline negatives"):
        planned(tiny, "aoq", "warmup_epochs=2", "epochs=2")


# Terms of a stage


def test_a_term_that_builds_no_objective_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(InfoNCE, "build", lambda term, context: None)
    with pytest.raises(
        UserError, match=r"build\(\) of the term 'infonce' returned NoneType; it must return an Objective"
    ):
        planned(tiny, "vse", "terms=infonce")


def test_a_stage_leaves_out_terms_and_changes_their_weights():
    assert staged("dual-path") == [("stage I", ("instance",), ()), ("stage II", ("ranking", "instance"), ())]
    # A term with weight zero is left out, and so is a stage without a term or without epochs.
    changed = staged("dual-path", "stages.2.instance.weight=0")
    assert changed == [("stage I", ("instance",), ()), ("stage II", ("ranking",), ())]
    for change in ("stages.1.instance.weight=0", "stages.1.without=ranking,instance", "stages.1.epochs=0"):
        assert [name for name, *_ in staged("dual-path", change)] == ["stage II"]
    assert [name for name, *_ in staged("dual-path", "stages.2.epochs=0")] == ["stage I"]


def test_without_names_terms_that_the_run_may_lack():
    assert staged("dual-path", "terms=infonce") == [("stage I", ("infonce",), ()), ("stage II", ("infonce",), ())]
    assert staged("vse", "stages.1.without=offline") == [("", ("infonce",), ())]


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("dual-path", ("stages.1.epochs=0", "stages.2.epochs=0")),
        ("dual-path", ("stages.1.epochs=0", "stages.2.without=ranking,instance")),
        ("vse", ("infonce.weight=0",)),
        ("a3vse", ("terms=adversarial",)),  # discriminators alone train no score
    ],
)
def test_a_schedule_that_trains_nothing_is_refused(preset, changes):
    with pytest.raises(UserError, match="no stage trains anything"):
        staged(preset, *changes)


def test_zero_epochs_train_nothing_on_purpose():
    assert staged("vse", "epochs=0") == []


# Rounds: mine and restart

ROUNDS = [("round 1", ("ranking",), ()), ("round 2", ("offline",), ("mine", "restart"))]


def test_a_second_round_mines_and_restarts():
    assert staged("aoq") == ROUNDS


def test_without_offline_negatives_there_is_one_round():
    assert staged("aoq", "terms=ranking") == ROUNDS[:1]
    assert staged("aoq", "offline.weight=0") == ROUNDS[:1]
    assert staged("aoq", "terms=ranking", "stages.2.without=") == ROUNDS[:1]
    # Captions alone are no second round.
    assert staged("aoq", "terms=ranking,caption") == [("round 1", ("ranking", "caption"), ())]


def test_given_negatives_need_no_first_round():
    assert staged("aoq", "offline.negatives=somewhere") == [("round 2", ("offline",), ())]
    # A round that continues from the first one keeps it, also where nothing is mined.
    assert staged("aoq", "stages.2.on_start=mine") == [ROUNDS[0], ("round 2", ("offline",), ("mine",))]
    given = staged("aoq", "stages.2.on_start=mine", "offline.negatives=somewhere")
    assert given == [ROUNDS[0], ("round 2", ("offline",), ())]


def test_a_third_stage_continues_with_the_lists_of_the_second():
    more = staged("aoq", "stages.3.without=ranking", "stages.3.name=more")
    assert more == [*ROUNDS, ("more", ("offline",), ())]


def test_offline_negatives_in_a_first_stage_need_lists():
    for preset, changes in (
        ("vse", ("terms=offline",)),
        ("aoq", ("stages.1.without=",)),
        ("aoq", ("stages.1.epochs=0",)),
        ("aoq", ("terms=offline",)),
    ):
        with pytest.raises(
            UserError, match=r"offline needs mined negatives in the first stage: give offline\.negatives="
        ):
            staged(preset, *changes)


def test_every_round_selects_its_own_best_epoch(tiny):
    changes = ("epochs=2", "warmup_epochs=1", "offline.texts=6", "offline.images=3")
    stages = planned(tiny, "aoq", *changes).stages
    names = ["round 1, warm-up", "round 1", "round 2, warm-up", "round 2"]
    # A warm-up belongs to its round, so that its epochs count too.
    assert [(stage.name, stage.resets_best) for stage in stages] == list(
        zip(names, [True, False, True, False], strict=True)
    )
    assert [stage.on_start is not None for stage in stages] == [False, False, True, True]


# Length of the lists of negatives


@pytest.mark.parametrize(
    ("given", "share", "candidates", "length"),
    [
        (None, LIST_SHARE, 145_000, 290),
        (None, LIST_SHARE, 29_000, 58),
        (None, LIST_SHARE, 100, MIN_LIST_LENGTH),
        (None, 0.5, 100, 50),
        (None, 0.0, 100_000, MIN_LIST_LENGTH),
        (3, LIST_SHARE, 145_000, 3),
        (300, 0.5, 100, 300),
    ],
)
def test_lists_are_a_share_of_the_candidates_and_never_very_short(given, share, candidates, length):
    assert list_length(given, share, candidates) == length


def test_lists_of_a_run_have_a_fifth_of_a_percent_by_default_and_at_least_ten_items(tiny):
    assert (LIST_SHARE, MIN_LIST_LENGTH) == (0.002, 10)
    train = tiny.sentences("train").join_equal_texts()

    def lengths(*changes):
        settings = resolve(PRESETS["aoq"].defaults, [*SMALL, *changes])
        miner = MinedNegatives.of(settings, train, RunContext()).miner
        return miner.texts, miner.images

    assert resolve(PRESETS["aoq"].defaults, []).terms[1].share == LIST_SHARE
    assert lengths() == (10, 10)
    assert lengths("offline.texts=4") == (4, 10)
    assert lengths("offline.texts=4", "offline.images=3") == (4, 3)
    assert lengths("offline.share=1") == (len(train.texts), 10)


def test_a_stage_leaves_the_discriminators_out(spoken_tiny):
    changes = ("image.size=16", "pseudo.images=all", "pseudo.region_source=finder", "stages.1.without=adversarial",
               "stages.2.name=adversarial", "warmup_epochs=0", "epochs=1")  # fmt: skip
    first, second = planned(spoken_tiny, "a3vse", *changes).stages
    assert first.objective.adversary is None
    assert second.objective.adversary is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("stages.1.without=nosuch",), "unknown term 'nosuch'"),
        (("stages.1.text.hidden=8",), "text.hidden holds for the whole run"),
        (("stages.1.text.word_dropout=0.9",), "holds for the whole run"),
        (("stages.1.vse.head=paper",), "holds for the whole run"),
        (("terms=infonce,infonce",), "names infonce twice"),
    ],
)
def test_settings_without_effect_in_a_stage_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        trained_stages(resolve(PRESETS["vse"].defaults, changes))


def test_a_preset_names_its_base_relative_to_its_own_folder(tmp_path, monkeypatch):
    (tmp_path / "bases").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bases" / "base.toml").write_text("batch = 7\n", encoding="utf-8")
    (tmp_path / "bases" / "next.toml").write_text('base = "base.toml"\nepochs = 3\n', encoding="utf-8")
    (tmp_path / "mine.toml").write_text('base = "bases/next.toml"\ndim = 8\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in (str(tmp_path / "mine.toml"), "../mine.toml"):
        found = find_preset(name).defaults
        assert (found.batch, found.epochs, found.dim) == (7, 3, 8)
    (tmp_path / "own.toml").write_text('base = "elsewhere/../own.toml"\n', encoding="utf-8")
    with pytest.raises(UserError, match="its own base"):
        find_preset("../own.toml")


def test_presets_that_cannot_be_built_are_refused(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(f'base = "{two}"\n', encoding="utf-8")
    two.write_text(f'base = "{one}"\n', encoding="utf-8")
    other = tmp_path / "other.toml"
    other.write_text('base = "vse"\nrecipe = "cca"\n', encoding="utf-8")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("terms = 5\n", encoding="utf-8")
    for file, message in ((one, "its own base"), (other, "is of recipe pairs"), (wrong, "setting terms takes words")):
        with pytest.raises(UserError, match=message):
            _ = find_preset(str(file)).defaults
    with pytest.raises(UserError, match="has no stages"):
        resolve(PRESETS["cca"].defaults, ["stages.1.epochs=1"])
