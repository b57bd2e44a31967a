from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calligram.models.layers.networks import ProjectionHead
from calligram.models.layers.text_cnn import BLOCKS_BY_DEPTH, TextBlock, TextCNN, TextCNNSettings, place_words

SMALL = TextCNNSettings(words=30, word_dim=6, blocks=(1, 2, 1), width=2, length=9)


def texts(lengths=(7, 3, 1), words=30):
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    random = torch.Generator().manual_seed(1)
    return torch.randint(4, words, (len(lengths), longest), generator=random) * mask, mask


def network(settings=SMALL, dim=5, head="paper"):
    """A network whose batch norm statistics are not the initial ones."""
    torch.manual_seed(0)
    made = TextCNN(settings, dim, head)
    for _ in range(3):
        made.vectors(torch.randint(4, 30, (8, 6)), torch.ones(8, 6, dtype=torch.bool))
    return made.eval()


def test_word_positions_are_the_code_t_of_dual_path_eq_2():
    words, mask = texts()
    begin, table = torch.tensor([2, 0, 4]), torch.randn(30, 6, dtype=torch.float64)
    numbers = place_words(words, mask, begin, 9)
    for row in range(3):
        code = torch.zeros(9, 30, dtype=torch.float64)
        for i in range(int(mask[row].sum())):
            code[int(begin[row]) + i, int(words[row, i])] = 1  # T(i, j) = 1 if j = l_i
        found = torch.where((numbers[row] > 0)[:, None], table[numbers[row]], 0.0)
        torch.testing.assert_close(found, code @ table)


def test_long_texts_are_truncated_and_dropped_words_leave_no_gap():
    words = torch.tensor([[5, 6, 7, 8, 9]])
    kept = torch.tensor([[True, False, True, True, True]])
    assert place_words(words, kept, torch.tensor([0]), 3).tolist() == [[5, 7, 8]]
    assert place_words(words, kept, torch.tensor([2]), 5).tolist() == [[0, 0, 5, 7, 8]]


@pytest.mark.parametrize(("channels", "stride"), [(8, 1), (6, 1), (8, 2)])
def test_a_text_block_equals_the_literal_loop(channels, stride):
    torch.manual_seed(0)
    block = TextBlock(8, 3, channels, stride).double()
    block(torch.randn(5, 8, 1, 6, dtype=torch.float64))
    block.eval()
    given = torch.randn(2, 8, 1, 5, dtype=torch.float64)

    def norm(layer, vector):
        scale = layer.weight / (layer.running_var + layer.eps).sqrt()
        return (vector - layer.running_mean) * scale + layer.bias

    def one_by_one(pair, vector):
        return norm(pair[1], pair[0].weight[:, :, 0, 0] @ vector)

    for n in range(2):
        inner = [one_by_one(block.reduce, given[n, :, 0, t]).relu() for t in range(5)]
        before = torch.zeros(3, dtype=torch.float64)
        for place in range(0, 5, stride):
            kernel = block.pair[0].weight[:, :, 0, :]
            two = kernel[..., 0] @ (inner[place - 1] if place else before) + kernel[..., 1] @ inner[place]
            out = one_by_one(block.expand, norm(block.pair[1], two).relu())
            own = given[n, :, 0, place]
            own = own if isinstance(block.shortcut, torch.nn.Identity) else one_by_one(block.shortcut, own)
            torch.testing.assert_close(block(given)[n, :, 0, place // stride], (out + own).relu())


@pytest.mark.parametrize(("depth", "blocks"), [("50", 16), ("152", 50)])
def test_blocks_and_channels_equal_those_of_resnets(depth, blocks):
    made = TextCNN(TextCNNSettings(30, 6, BLOCKS_BY_DEPTH[depth], width=2), 4).eval()
    assert len(made.blocks) == blocks
    assert made.blocks(torch.zeros(1, 6, 1, 32)).shape == (1, 64, 1, 8)  # 8 positions, the release's pooling size


def test_a_vector_over_all_shifts_is_the_mean_over_them():
    words, mask = texts()
    every = network(replace(SMALL, shifts=0))
    found = every.vectors(words, mask)
    for row, length in enumerate((7, 3, 1)):
        alone = words[row : row + 1, :length]
        laid = [torch.nn.functional.pad(alone, (k, 9 - length - k)) for k in range(9 - length + 1)]
        torch.testing.assert_close(found[row : row + 1], torch.stack([every._from_positions(x) for x in laid]).mean(0))


@pytest.mark.parametrize(
    "settings", [SMALL, replace(SMALL, shifts=0), replace(SMALL, shifts=3), replace(SMALL, align="left")]
)
@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_padding_and_special_words_do_not_change_a_vector(settings, pooling):
    words, mask = texts()
    made = network(replace(settings, pooling=pooling))
    together = made.vectors(words, mask)
    for row, length in enumerate((7, 3, 1)):
        alone = words[row : row + 1, :length]
        torch.testing.assert_close(made.vectors(alone, torch.ones_like(alone).bool())[0], together[row])
        marked = torch.cat([torch.tensor([[1]]), alone, torch.tensor([[3, 2, 0]])], dim=1)
        torch.testing.assert_close(made.vectors(marked, torch.ones_like(marked).bool())[0], together[row])


def test_word_order_and_words_change_the_vector():
    made = network()
    one, two, three = (
        made.vectors(torch.tensor([w]), torch.ones(1, 3).bool()) for w in ([5, 6, 7], [7, 6, 5], [5, 6, 8])
    )
    assert not torch.allclose(one, two)
    assert not torch.allclose(one, three)


def test_position_shift_is_random_in_training_and_left_alignment_is_fixed(monkeypatch):
    words, mask = texts()
    seen = []
    for align in ("shift", "left"):
        made = network(replace(SMALL, align=align)).train()
        monkeypatch.setattr(made, "_from_positions", lambda places: seen.append(places) or places[:, :1].float())
        for _ in range(60):
            made.vectors(words, mask)
    begins = [[int((p[row] > 0).nonzero()[0]) for p in seen] for row in range(3)]
    assert [set(b[:60]) for b in begins] == [set(range(3)), set(range(7)), set(range(9))]
    assert all(set(b[60:]) == {0} for b in begins)


def test_a_text_without_words_has_a_finite_vector():
    assert torch.isfinite(network().vectors(torch.tensor([[1, 2]]), torch.ones(1, 2).bool())).all()


def test_the_head_of_the_paper_is_fc_batch_norm_relu_fc():
    torch.manual_seed(0)
    head = ProjectionHead(4, 3, "paper").double()
    given = torch.randn(6, 4, dtype=torch.float64)
    one, norm, _, two = head.layers
    between = given @ one.weight.T + one.bias
    spread = ((between - between.mean(0)) ** 2).mean(0)
    between = (between - between.mean(0)) / (spread + norm.eps).sqrt()
    torch.testing.assert_close(head(given), between.clamp(min=0) @ two.weight.T + two.bias)


def test_the_head_of_the_release_has_a_last_relu_in_training_only():
    torch.manual_seed(0)
    head = ProjectionHead(4, 3, "release", layers=1)
    given = torch.randn(50, 4)
    assert (head(given) >= 0).all()
    assert (head.eval()(given) < 0).any()
    with pytest.raises(ValueError, match="kind must be paper or release"):
        ProjectionHead(4, 3, "linear")
