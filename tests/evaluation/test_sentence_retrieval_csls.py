from __future__ import annotations

import torch

from calligram.evaluation.sentence_retrieval import csls_nearest_texts


def literal(images: torch.Tensor, texts: torch.Tensor, count: int, near: int) -> list[list[int]]:
    """CSLS text by text: 2 cos(i, t) - r(i) - r(t), with r the mean of the largest cosines."""

    def cosine(one: torch.Tensor, two: torch.Tensor) -> float:
        return float(one @ two / one.norm() / two.norm())

    def mean_of_nearest(own: torch.Tensor, others: torch.Tensor) -> float:
        return sum(sorted((cosine(own, other) for other in others), reverse=True)[:near]) / near

    found = []
    for image in images:
        scores = [
            2 * cosine(image, text) - mean_of_nearest(image, texts) - mean_of_nearest(text, images) for text in texts
        ]
        found.append(sorted(range(len(texts)), key=lambda place: -scores[place])[:count])
    return found


def test_the_nearest_texts_are_those_of_the_definition_in_tiles_of_any_size():
    torch.manual_seed(0)
    images, texts = torch.randn(7, 5), 3 * torch.randn(23, 5)
    expected = literal(images, texts, 4, 3)
    for tile in (1, 5, 23, 100):
        assert csls_nearest_texts(images, texts, 4, near=3, tile=tile).tolist() == expected


def test_a_hub_text_is_not_the_nearest_of_all_images():
    images = torch.tensor([[1.0, 0.3, 0.0], [1.0, -0.3, 0.0], [1.0, 0.0, 0.3]])
    hub, own = torch.tensor([[1.0, 0.0, 0.02]]), torch.tensor([[0.6, 0.6, 0.0], [0.6, -0.6, 0.0], [0.6, 0.0, 0.6]])
    texts = torch.cat([hub, own])
    cosines = torch.nn.functional.normalize(images, dim=1) @ torch.nn.functional.normalize(texts, dim=1).T
    assert (cosines.argmax(1) == 0).all()
    assert csls_nearest_texts(images, texts, 1, near=3)[:, 0].tolist() == [1, 2, 3]


def test_all_texts_are_returned_where_there_are_fewer_than_requested():
    assert sorted(csls_nearest_texts(torch.randn(2, 3), torch.randn(3, 3), 10)[0].tolist()) == [0, 1, 2]
    assert csls_nearest_texts(torch.randn(0, 3), torch.randn(3, 3), 2).shape == (0, 2)
