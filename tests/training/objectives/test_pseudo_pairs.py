"""Batches of annotated and pseudo pairs, and their objective."""

from __future__ import annotations

import math

import pytest
import torch

from calligram.data.matches import Matches
from calligram.data.pairing import Pairing, Texts
from calligram.features.images.stored_input import StoredInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.losses.adversarial import DOMAIN_PAIRS
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vse import VSE, VSESettings
from calligram.training.batches.batch import Batches, PairSampler
from calligram.training.batches.pseudo_pairs import PseudoPairBatch, PseudoPairBatches, RepeatedPasses
from calligram.training.distributed import Processes
from calligram.training.objectives.objective import InfoNCEObjective, RankingObjective
from calligram.training.objectives.pseudo_pairs import Adversary, AdversaryTerms, PseudoPairObjective
from calligram.vectors import unit_length


def pseudo_of(collection, images) -> Pairing:
    """A pseudo-sentence for each of these training images; two sentences are equal."""
    visuals = collection.sentences("train").visuals.select(images)
    strings = tuple(f"grey thing {'red' if n < 2 else n} disc" for n in range(len(images)))
    matches = Matches(range(len(images)), range(len(images)), (len(images), len(images)))
    return Pairing(visuals, Texts(tuple(map(str, range(len(images)))), strings), matches).join_equal_texts()


@pytest.fixture
def feeds(stored_tiny):
    """Batches of four annotated images and of two pseudo pairs."""

    def made(steps=0, processes=None, batch=4):
        train, pseudo = stored_tiny.sentences("train").join_equal_texts(), pseudo_of(stored_tiny, [0, 1, 2, 5])
        words = Vocabulary.build([*train.texts.strings, *pseudo.texts.strings], 1)
        inputs = Inputs(StoredInput("colour"), words)
        own, beside = (
            Batches(pairing, inputs, PairSampler(pairing.matches, size, seed), processes=processes)
            for pairing, size, seed in ((train, batch, 3), (pseudo, 2, 4))
        )
        return own, beside, PseudoPairBatches(own, beside, steps)

    return made


def same(one, two) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else same(a, b) if isinstance(a, type(one)) else True
        for a, b in zip(vars(one).values(), vars(two).values(), strict=True)
    )


def test_each_step_has_annotated_and_pseudo_pairs_with_separate_passes(feeds):
    own, beside, both = feeds()
    assert len(both) == len(own) == 4
    assert len(beside) == 2
    batches = list(both.epoch(7))
    assert len(batches) == 4
    assert all(isinstance(batch, PseudoPairBatch) and batch.pseudo is not None for batch in batches)
    for found, expected in zip(batches, own.epoch(7), strict=True):
        assert torch.equal(found.images, expected.images)
    # Two passes of two batches, each with every pseudo pair once.
    for turn in (batches[:2], batches[2:]):
        seen = torch.cat([batch.pseudo.images for batch in turn])
        assert len(torch.unique(seen.flatten(1), dim=0)) == 4
    orders = [torch.stack([batch.pseudo.images for batch in both.epoch(n)]) for n in range(3)]
    assert not torch.equal(orders[0], orders[1]) or not torch.equal(orders[0], orders[2])


def test_an_epoch_may_be_shorter_or_longer_than_a_pass(feeds):
    own, _, longer = feeds(steps=11)
    assert len(longer) == 11
    batches = list(longer.epoch(0))
    assert len(batches) == 11
    assert not torch.equal(batches[0].images, batches[4].images)  # the second pass has another order
    _, beside, shorter = feeds(steps=1)
    seen = {tuple(next(iter(shorter.epoch(n))).pseudo.images.flatten().tolist()) for n in range(12)}
    assert len(seen) > len(beside)  # each epoch has another part of the pseudo pairs
    assert len(list(RepeatedPasses(own, 3).epoch(0))) == 3


def test_an_epoch_can_start_at_any_step_and_is_reproducible(feeds):
    whole = list(feeds(steps=7)[2].epoch(5))
    for start in range(8):
        rest = list(feeds(steps=7)[2].epoch(5, start))
        assert len(rest) == 7 - start
        for found, expected in zip(rest, whole[start:], strict=True):
            assert same(found, expected)
            assert same(found.pseudo, expected.pseudo)
    assert not same(whole[0], next(iter(feeds(steps=7)[2].epoch(6))))


def test_processes_share_both_batches(feeds):
    whole = next(iter(feeds()[2].epoch(0)))
    shares = [next(iter(feeds(processes=Processes(rank, 2))[2].epoch(0))) for rank in (0, 1)]
    assert torch.equal(torch.cat([share.images for share in shares]), whole.images)
    assert torch.equal(torch.cat([share.pseudo.images for share in shares]), whole.pseudo.images)
    assert all(torch.equal(share.pseudo.image_target, whole.pseudo.image_target) for share in shares)


def test_fewer_pairs_than_the_batch_size_are_one_batch(feeds):
    _, _, both = feeds(batch=500)
    (batch,) = both.epoch(0)
    assert len(batch.images) == 6
    assert len(batch.pseudo.images) == 2


def matcher(words=40) -> VSE:
    torch.manual_seed(0)
    return VSE(
        VSESettings(
            ImageArchitecture(feature_dim=4),
            TextArchitecture(vocabulary=words, word_dim=5, hidden=6, pooling="last"),
            6,
        )
    ).double()


def doubled(batch: PseudoPairBatch) -> PseudoPairBatch:
    def change(one):
        return {**vars(one), "images": one.images.double()}

    return PseudoPairBatch(**{**change(batch), "pseudo": type(batch.pseudo)(**change(batch.pseudo))})


def test_the_loss_is_a3vse_eqs_3_and_9_with_the_papers_margins_and_weights(feeds):
    """Hinges of the hardest negatives, the mean over pairs, and six cross entropies, item by item."""
    batch = doubled(next(iter(feeds()[2].epoch(0))))
    model = matcher()
    adversary = Adversary(6, AdversaryTerms(hidden=5))
    objective = PseudoPairObjective(RankingObjective(0.2, 1), RankingObjective(0.3, 1), 0.8, adversary).double()
    objective.set_progress(0.4)
    terms = {name: term.detach() for name, term in objective(model, batch).items()}

    @torch.no_grad()
    def vectors(one):
        images, texts = model.encode_images(one.images), model.encode_texts(one.texts, one.text_mask)
        return unit_length(images.vectors).double(), unit_length(texts.vectors).double()

    def literal_eq_2(images, texts, target, margin):
        total, pairs = 0.0, 0
        for i in range(len(images)):
            for t in range(len(texts)):
                if target[i, t] > 0:
                    score, pairs = float(images[i] @ texts[t]), pairs + 1
                    hard_texts = [float(images[i] @ texts[n]) for n in range(len(texts)) if target[i, n] < 0]
                    hard_images = [float(images[n] @ texts[t]) for n in range(len(images)) if target[n, t] < 0]
                    for hard in (hard_texts, hard_images):
                        total += max(0.0, margin - score + max(hard)) if hard else 0.0
        return total / pairs

    v, t = vectors(batch)
    u, s = vectors(batch.pseudo)
    assert float(terms["ranking"]) == pytest.approx(0.8 * literal_eq_2(v, t, batch.image_target, 0.2), rel=1e-5)
    weak = literal_eq_2(u, s, batch.pseudo.image_target, 0.3)
    assert float(terms["pseudo_ranking"]) == pytest.approx(0.2 * weak, rel=1e-5)
    domains = {"image": v, "pseudo_image": u, "text": t, "pseudo_text": s}
    weights = {
        ("image", "pseudo_image"): 0.2, ("text", "pseudo_text"): 0.1, ("image", "text"): 0.5,
        ("pseudo_image", "pseudo_text"): 0.5, ("image", "pseudo_text"): 0.3, ("pseudo_image", "text"): 0.3,
    }  # fmt: skip
    kinds = {"intra": list(weights)[:2], "cross": list(weights)[2:4], "trans": list(weights)[4:]}
    for kind, pairs in kinds.items():
        expected = 0.0
        for one, two in pairs:
            network = adversary.discriminators[f"{one}-{two}"]
            with torch.no_grad():
                first, second = (torch.sigmoid(network(domains[name])) for name in (one, two))
            expected -= weights[one, two] * float(first.log().mean() + (1 - second).log().mean())
        assert float(terms[kind]) == pytest.approx(expected, rel=1e-5)
    assert set(terms) == {"ranking", "pseudo_ranking", "intra", "cross", "trans"}
    assert set(objective.measures) == {"intra_error", "cross_error", "trans_error"}


def test_each_discriminator_has_gradients_from_its_two_domains_only():
    torch.manual_seed(0)
    domains = {name: torch.randn(3, 6, requires_grad=True) for name in ("image", "pseudo_image", "text", "pseudo_text")}
    seen = set()
    for kind, weights in (("intra", (0.2, 0.1)), ("cross", (0.5, 0.5)), ("trans", (0.3, 0.3))):
        for place in (0, 1):
            zero = {"intra": (0.0, 0.0), "cross": (0.0, 0.0), "trans": (0.0, 0.0)}
            alone = tuple(w if n == place else 0.0 for n, w in enumerate(weights))
            adversary = Adversary(6, AdversaryTerms(**{**zero, kind: alone}))
            ((name, _),) = adversary.discriminators.items()
            terms, _ = adversary(domains, 0.7)
            assert list(terms) == [kind]
            found = torch.autograd.grad(terms[kind], list(domains.values()), allow_unused=True)
            reached = {key for key, grad in zip(domains, found, strict=True) if grad is not None and grad.any()}
            assert reached == set(name.split("-"))
            seen.add(tuple(name.split("-")))
    assert seen == set(DOMAIN_PAIRS)


def test_gradient_reversal_depends_on_progress_within_the_span():
    torch.manual_seed(0)
    adversary = Adversary(6, AdversaryTerms(hidden=0))
    plain = None
    for progress in (0.05, 0.3, 1.0):
        domains = {name: torch.ones(2, 6, requires_grad=True) for name in ("image", "pseudo_image")}
        domains |= {name: -torch.ones(2, 6) for name in ("text", "pseudo_text")}
        terms, _ = adversary(domains, progress)
        (grad,) = torch.autograd.grad(sum(terms.values()), [domains["image"]])
        gamma = 2 / (1 + math.exp(-10 * progress)) - 1
        plain = grad / gamma if plain is None else plain
        torch.testing.assert_close(grad, plain * gamma)
    objective = PseudoPairObjective(InfoNCEObjective(), InfoNCEObjective(), 0.5, adversary, span=(0.25, 1.0))
    objective.set_progress(0.5)
    assert objective.progress == objective.annotated.progress == 0.5
    assert objective.span[0] + (objective.span[1] - objective.span[0]) * objective.progress == 0.625


def test_gradient_reversal_alone_aligns_domains():
    """Four clouds of directions, each with a learnt shift; without reversal they do not move."""
    apart = {}
    for progress in (0.0, 1.0):
        torch.manual_seed(0)
        names = ("image", "pseudo_image", "text", "pseudo_text")
        clouds = {name: torch.randn(64, 6) for name in names}
        shifts = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.eye(6)[n]) for n, name in enumerate(names)})
        adversary = Adversary(6, AdversaryTerms(hidden=16))
        optimizer = torch.optim.SGD([*shifts.parameters(), *adversary.parameters()], lr=0.5)
        for _ in range(150):
            terms, _ = adversary({name: clouds[name] + shifts[name] for name in names}, progress)
            optimizer.zero_grad()
            sum(terms.values()).backward()
            optimizer.step()
        means = torch.stack([(clouds[name] + shifts[name].detach()).mean(0) for name in names])
        apart[progress] = float(torch.cdist(means, means).max())
    assert apart[1.0] < 0.75 * apart[0.0]


def test_both_batches_and_all_discriminators_have_gradients(feeds):
    batch = next(iter(feeds()[2].epoch(0)))
    model = matcher().float()
    objective = PseudoPairObjective(InfoNCEObjective(), InfoNCEObjective(), 0.8, Adversary(6))
    objective.set_progress(0.5)
    sum(objective(model, batch).values()).backward()
    named = [*model.named_parameters(), *objective.named_parameters()]
    assert not [name for name, p in named if p.grad is None or not torch.isfinite(p.grad).all()]
    assert objective.spread is not None
    # The loss of the pseudo pairs has its own temperature.
    assert objective.annotated.log_scale is not objective.pseudo.log_scale


def test_batches_without_pseudo_pairs_are_refused(feeds):
    own, _, _ = feeds()
    with pytest.raises(ValueError, match="needs batches with pseudo pairs"):
        PseudoPairObjective(InfoNCEObjective(), InfoNCEObjective())(matcher().float(), next(iter(own.epoch(0))))


@pytest.mark.parametrize("steepness", [1.0, 10.0])
def test_the_reversal_has_the_steepness_of_the_terms(steepness):
    """Gradients of vectors are those of the discriminators times minus gamma (a3vse, Sec. 4.3), gamma by hand."""
    torch.manual_seed(0)
    adversary = Adversary(6, AdversaryTerms(steepness=steepness, hidden=4))
    progress, gradients = 0.3, []
    for share in (progress, 1e9):  # gamma is 1 at the end
        torch.manual_seed(1)
        domains = {
            name: torch.randn(5, 6, requires_grad=True) for name in ("image", "text", "pseudo_image", "pseudo_text")
        }
        sum(adversary(domains, share)[0].values()).backward()
        gradients.append(torch.stack([vectors.grad for vectors in domains.values()]))
    gamma = 2 / (1 + math.exp(-steepness * progress)) - 1
    torch.testing.assert_close(gradients[0], gamma * gradients[1])
