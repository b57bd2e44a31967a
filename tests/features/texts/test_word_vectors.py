from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from calligram.errors import UserError
from calligram.features.texts.vocabulary import SPECIAL_WORDS, Vocabulary
from calligram.features.texts.word_vectors import pretrained_embeddings, read_vectors, train_vectors, write_vectors

VOCABULARY = Vocabulary((*SPECIAL_WORDS, "dog", "cat", "paris", "unheard"))
LINES = "dog 1 2 3\n. . . 0 0 0\ncat 4 5 6\nParis 7 8 9\ndog 0 0 0\nother 1 1 1\n"


def binary(entries: dict[str, list[float]], newline: bytes) -> bytes:
    rows = (word.encode() + b" " + np.array(v, dtype="<f4").tobytes() + newline for word, v in entries.items())
    return f"{len(entries)} 3\n".encode() + b"".join(rows)


def written(folder: Path, kind: str) -> Path:
    file = folder / f"vectors{kind}"
    entries = {"dog": [1.0, 2, 3], "other": [1.0, 1, 1], "cat": [4.0, 5, 6], "Paris": [7.0, 8, 9]}
    content = {
        ".txt": LINES.encode(),
        ".txt.gz": gzip.compress(LINES.encode()),
        ".vec": f"6 3\n{LINES}".encode(),
        ".bin": binary(entries, b"\n"),
        ".bin.gz": gzip.compress(binary(entries, b"")),
    }
    file.write_bytes(content[kind])
    return file


@pytest.mark.parametrize("kind", [".txt", ".txt.gz", ".vec", ".bin", ".bin.gz"])
def test_every_format_gives_the_same_embeddings(tmp_path, kind):
    table = pretrained_embeddings(VOCABULARY, written(tmp_path, kind), 3, torch.Generator().manual_seed(0))
    assert table.found == 3
    assert table.vectors[4:7].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert table.vectors[0].tolist() == [0, 0, 0]
    assert table.vectors[7].norm() > 0
    again = pretrained_embeddings(VOCABULARY, written(tmp_path, kind), 3, torch.Generator().manual_seed(0))
    assert torch.equal(table.vectors, again.vectors)


def test_missing_words_get_random_vectors_of_the_same_spread(tmp_path):
    names = [f"w{n}" for n in range(400)]
    random = np.random.default_rng(0).normal(scale=3, size=(200, 20)).astype(np.float32)
    write_vectors(dict(zip(names[:200], random, strict=True)), tmp_path / "v.txt")
    vectors, found = pretrained_embeddings(Vocabulary((*SPECIAL_WORDS, *names)), tmp_path / "v.txt", 20)
    assert found == 200
    assert vectors[204:].std() == pytest.approx(3, rel=0.1)


def test_a_lower_case_entry_is_preferred_to_a_capitalised_one(tmp_path):
    (tmp_path / "v.txt").write_text("Dog 9 9\ndog 1 2\n")
    assert read_vectors(tmp_path / "v.txt", {"dog"}, 2)["dog"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"dog 1 2\n", "have dimension 2, not 3; set the dimension of word vectors to 2"),
        ("v.bin", b"2 2\n", "have dimension 2, not 3"),
        ("v.bin", b"2 3\ndog 000011112222\n", "ends before its 2 words are complete"),
        ("v.bin", b"nonsense", "could not be read"),
        ("v.txt", b"dog 1 2 x\n", "could not be read"),
        ("v.txt.gz", b"not compressed", "could not be read"),
        ("v.txt", b"horse 1 2 3\n", "have none of the 8 words of the vocabulary"),
        ("v.npy", b"", r"end in .txt, .vec or .bin, also with .gz; got .*v.npy"),
    ],
)
def test_unsuitable_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        pretrained_embeddings(VOCABULARY, tmp_path / name, 3)


def test_a_missing_file_is_named_in_the_error(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.txt could not be read: .* train some with \"calligram words"):
        pretrained_embeddings(VOCABULARY, tmp_path / "nowhere.txt", 3)


def test_trained_vectors_of_similar_words_are_close_and_are_written_and_read(tmp_path):
    pytest.importorskip("gensim")
    draw = np.random.default_rng(0)
    animals, colours = ("dog", "cat", "horse"), ("red", "green", "blue")
    texts = [f"the {draw.choice(animals)} runs and eats" for _ in range(300)]
    texts += [f"paint it {draw.choice(colours)} on paper" for _ in range(300)]
    vectors = train_vectors(texts, 8, epochs=20)
    unit = {word: v / np.linalg.norm(v) for word, v in vectors.items()}
    assert unit["dog"] @ unit["cat"] > unit["dog"] @ unit["red"]
    write_vectors(vectors, tmp_path / "deep" / "v.txt.gz")
    again = read_vectors(tmp_path / "deep" / "v.txt.gz", set(vectors), 8)
    assert all(np.allclose(again[word], vectors[word], rtol=1e-4) for word in vectors)
    with pytest.raises(UserError, match="written as text"):
        write_vectors(vectors, tmp_path / "v.bin")
    with pytest.raises(UserError, match="no word occurs 5 times in 1 texts"):
        train_vectors(["a dog"], 8, min_count=5)


def test_the_command_gives_the_same_vectors_for_the_same_seed_in_any_process(tiny, tmp_path):
    pytest.importorskip("gensim")
    command = ["words", str(tiny.folder), "one.txt", "--dim", "4", "--epochs", "1"]
    done = subprocess.run(
        [sys.executable, "-c", "from calligram.cli.main import main; main()", *command],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "word vectors of 4 dimensions in one.txt" in done.stdout
    write_vectors(train_vectors(tiny.sentences("train").texts.strings, 4, epochs=1), tmp_path / "two.txt")
    assert (tmp_path / "one.txt").read_bytes() == (tmp_path / "two.txt").read_bytes()


def test_the_glove_file_covers_most_words(assets):
    words = ("dog", "girl", "running", "xyzzyx")
    vocabulary = Vocabulary((*SPECIAL_WORDS, *words))
    assert pretrained_embeddings(vocabulary, assets / "models" / "glove-300d-1662-words.txt.gz", 300).found == 3
