from __future__ import annotations

import math

import pytest
import torch

from calligram.losses.instance import instance_loss, instance_loss_and_error


def drawn(kind=torch.float64, items=7, classes=23, dim=5):
    random = torch.Generator().manual_seed(3)
    features, weight = (torch.randn(n, dim, generator=random, dtype=kind) for n in (items, classes))
    bias = torch.randn(classes, generator=random, dtype=kind)
    return features, weight, bias, torch.randint(0, classes, (items,), generator=random)


def literal(features, weight, bias, labels):
    """Eqs. 5 and 6 (or 7 and 8) of dual-path by plain numbers, a mean over the items that have a class."""
    losses = []
    for f, c in zip(features.tolist(), labels.tolist(), strict=True):
        if c < 0:
            continue
        logits = [sum(a * b for a, b in zip(w, f, strict=True)) + o for w, o in zip(weight.tolist(), bias, strict=True)]
        probabilities = [math.exp(z) / sum(math.exp(other) for other in logits) for z in logits]
        losses.append(-math.log(probabilities[c]))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("chunk", [None, 1, 4, 22, 23])
def test_instance_loss_is_dual_path_eqs_5_to_8(chunk):
    features, weight, bias, labels = drawn()
    labels[2] = -1
    expected = literal(features, weight, [0.0] * 23, labels)
    assert float(instance_loss(features, weight, labels, chunk=chunk)) == pytest.approx(expected)
    expected = literal(features, weight, bias.tolist(), labels)
    assert float(instance_loss(features, weight, labels, bias, chunk=chunk)) == pytest.approx(expected)


def test_instance_loss_of_a_worked_example_with_two_classes():
    """W f = (2, 0): the first class has e^2 / (e^2 + 1)."""
    loss = instance_loss(torch.tensor([[2.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([0]))
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-2)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 4, 22])
@pytest.mark.parametrize("biased", [False, True])
def test_chunked_values_and_gradients_equal_those_without_chunks(kind, chunk, biased):
    features, weight, bias, labels = drawn(kind)
    labels[4] = -1
    found = []
    for size in (None, chunk):
        given = [t.clone().requires_grad_() for t in (features, weight, bias)[: 3 if biased else 2]]
        loss = instance_loss(given[0], given[1], labels, given[2] if biased else None, chunk=size)
        (3 * loss).backward()
        found.append([loss.detach(), *(t.grad for t in given)])
    for whole, streamed in zip(*found, strict=True):
        torch.testing.assert_close(streamed, whole)


def test_chunked_gradients_equal_finite_differences():
    features, weight, bias, labels = (t[:6] if t.ndim else t for t in drawn(items=3))
    given = [t.clone().requires_grad_() for t in (features, weight, bias)]
    assert torch.autograd.gradcheck(lambda f, w, b: instance_loss(f, w, labels % 6, b, chunk=4), given)


def test_chunks_use_the_type_of_autocast_and_stay_close():
    features, weight, _, labels = drawn(torch.float32, items=16, classes=50, dim=32)
    grads = []
    for chunk in (None, 16):
        one, two = features.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = instance_loss(one, two, labels, chunk=chunk)
        assert loss.dtype == torch.float32
        loss.backward()
        grads.append((loss.detach(), one.grad, two.grad))
    for whole, streamed in zip(*grads, strict=True):
        torch.testing.assert_close(streamed, whole, rtol=0.05, atol=0.01)


def test_large_logits_do_not_overflow_with_or_without_chunks():
    features, weight = torch.full((2, 1), 1e4), torch.tensor([[1.0], [-1.0], [0.5]])
    for chunk in (None, 1):
        assert instance_loss(features, weight, torch.tensor([0, 0]), chunk=chunk) == 0


@pytest.mark.parametrize("chunk", [None, 4])
def test_items_without_a_class_give_no_gradient(chunk):
    features, weight, _, labels = drawn()
    features.requires_grad_()
    loss = instance_loss(features, weight, torch.full_like(labels, -1), chunk=chunk)
    loss.backward()
    assert float(loss.detach()) == 0
    assert not features.grad.any()


def test_wrong_arguments_are_refused_with_the_reason():
    features, weight, _, labels = drawn()
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        instance_loss(features, weight, labels, chunk=0)
    with pytest.raises(ValueError, match="features have 5 dimensions and the class weights 4"):
        instance_loss(features, weight[:, :4], labels)


@pytest.mark.parametrize("chunk", [None, 1, 4, 22])
def test_error_is_the_share_of_items_whose_class_does_not_have_the_highest_logit(chunk):
    features, weight, bias, labels = drawn(items=12)
    logits = features @ weight.T + bias
    labels[:5] = logits.argmax(1)[:5]
    labels[4] = -1  # left out
    wrong = [int(logits[i].argmax()) != int(labels[i]) for i in range(12) if labels[i] >= 0]
    found = instance_loss_and_error(features.requires_grad_(), weight, labels, bias, chunk=chunk)
    assert float(found.error) == pytest.approx(sum(wrong) / len(wrong))
    assert not found.error.requires_grad
    torch.testing.assert_close(found.loss, instance_loss(features, weight, labels, bias, chunk=chunk))
