"""A large index: mapped vectors, approximate search, and rows that changed since the files were written."""

from __future__ import annotations

import errno
import gc
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from calligram.search.filters.conditions import Comparison
from calligram.search.library.tables import open_index
from calligram.search.vectors import inverted_lists, mapped
from calligram.search.vectors.inverted_lists import fewest_probes
from calligram.search.vectors.mapped import LISTS_FILE, VECTORS_FILE, MappedRecord, MappedVectors

DIM, ROWS, GROUPS, K = 16, 6000, 150, 10
CENTRES = np.random.default_rng(0).normal(size=(GROUPS, DIM))


def clustered(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    vectors = CENTRES[random.integers(GROUPS, size=count)] + 0.5 * random.normal(size=(count, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def columns(rows: range) -> pa.Table:
    return pa.table({"n": [float(row % 1000) for row in rows], "half": [float(row >= ROWS // 2) for row in rows]})


@pytest.fixture(autouse=True, scope="module")
def low_limit():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "MAPPED_ROWS", 3000)
        patch.setattr(mapped, "MAX_SCANNED_NUMBERS", 100 * DIM)
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of an index, and the record of its mapped files."""
    folder = tmp_path_factory.mktemp("written")
    index = open_index(folder, "images", dim=DIM)
    vectors = clustered(ROWS, 1)
    for start in range(0, ROWS, 2000):
        rows = range(start, start + 2000)
        index.add([f"item {row}" for row in rows], vectors[start : start + 2000], columns(rows))
    index.optimize()
    return folder, index.mapped


@pytest.fixture
def large(tmp_path, written):
    """A copy of it, open for writing."""
    folder, record = written
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return open_index(tmp_path, "images", dim=DIM, mapped=record)


@pytest.fixture
def queries():
    return clustered(60, 2)


def reopened(folder: Path, index):
    """As a reader opens it, with what a manifest stores."""
    return open_index(folder, "images", version=index.version, mapped=index.mapped)


def exact(folder: Path, index):
    """The same version without mapped files: the search of a small index."""
    return open_index(folder, "images", version=index.version)


def recall(found, wanted) -> float:
    return float(
        np.mean([len({h.id for h in f} & {h.id for h in w}) / len(w) for f, w in zip(found, wanted, strict=True) if w])
    )


def test_a_small_index_is_read_into_memory_and_exact(tmp_path, queries):
    index = open_index(tmp_path, "images", dim=DIM)
    index.add([f"item {n}" for n in range(2999)], clustered(2999, 1), columns(range(2999)))
    index.optimize()
    assert index.mapped is None
    assert index.recall is None
    assert not (tmp_path / "images.mapped").exists()
    assert index.search(queries, K) == index.search(queries, K, exact=True)


def test_the_measured_recall_holds_for_other_queries(tmp_path, large, queries):
    reader, plain = reopened(tmp_path, large), exact(tmp_path, large)
    assert large.mapped["limit"] == 3000
    assert reader.recall == large.recall >= 0.98
    assert 0 < large.mapped["probes"] < round(ROWS**0.5)
    assert recall(reader.search(queries, K), plain.search(queries, K)) >= 0.96


def test_exact_search_of_mapped_vectors_is_that_of_vectors_in_memory(tmp_path, large, queries):
    reader, plain = reopened(tmp_path, large), exact(tmp_path, large)
    for where in (None, Comparison("n", "<", 10.0), Comparison("n", "<", 0.0)):
        assert reader.search(queries, K, where, exact=True) == plain.search(queries, K, where)
    assert reader.search(queries[:1], ROWS + 5) == plain.search(queries[:1], ROWS + 5)


def test_candidates_have_the_scores_and_the_order_of_exact_search(tmp_path, large, queries):
    reader, plain = reopened(tmp_path, large), exact(tmp_path, large)
    for found, all_ in zip(reader.search(queries, K), plain.search(queries, ROWS), strict=True):
        scores = {hit.id: hit.score for hit in all_}
        assert [hit.score for hit in found] == [scores[hit.id] for hit in found]
        assert found == sorted(found, key=lambda hit: (-hit.score, hit.id))


def test_equal_vectors_are_ordered_by_id_whether_they_are_mapped_or_new(tmp_path, queries):
    index = open_index(tmp_path, "images", dim=DIM)
    same = np.repeat(queries[:1], 12, axis=0)
    ids = [f"same {n:02}" for n in range(24)]
    index.add(
        [*ids[::2], *(f"item {n}" for n in range(4000))], np.concatenate((same, clustered(4000, 1))), pa.table({})
    )
    index.optimize()
    index.add(ids[1::2], same, pa.table({}))
    assert [hit.id for hit in index.search(queries[:1], 20)[0]] == ids[:20]
    assert index.search(queries[:1], 20) == index.search(queries[:1], 20, exact=True)


def test_added_replaced_and_removed_rows_are_known_at_once(tmp_path, large, queries):
    new = queries[:3]
    first = large.search(queries[3:4], 1)[0][0].id
    large.add(["new", "item 7"], new[:2], columns(range(2)))
    large.remove([first, "item 9"])
    large.update(["item 20"], pa.table({"n": [5000.0]}))
    for index in (large, reopened(tmp_path, large)):
        assert [hit[0].id for hit in index.search(new[:2], 1)] == ["new", "item 7"]
        assert first not in {hit.id for hit in index.search(queries[3:4], ROWS)[0]}
        assert len(index) == ROWS - 1 == len(index.search(new, ROWS)[0])
        assert [hit.id for hit in index.search(new, 5, Comparison("n", "=", 5000.0))[0]] == ["item 20"]
        assert index.search(queries, K, exact=True) == exact(tmp_path, large).search(queries, K)
        assert recall(index.search(queries, K), exact(tmp_path, large).search(queries, K)) >= 0.96


def test_after_compaction_the_same_files_are_used_with_new_addresses(tmp_path, large, queries):
    before = large.mapped
    large.add(["new"], queries[:1], columns(range(1)))
    large.remove(["item 9"])
    large.optimize()
    large.drop_versions()
    changed = {name: large.mapped[name] for name in ("addresses", "checksums")}
    assert large.mapped == {**before, **changed} != before
    reader = reopened(tmp_path, large)
    assert reader.search(queries, K, exact=True) == exact(tmp_path, large).search(queries, K)
    assert reader.search(queries[:1], 1)[0][0].id == "new"
    assert recall(reader.search(queries, K), exact(tmp_path, large).search(queries, K)) >= 0.96
    left = sorted(file.name for file in (tmp_path / "images.mapped" / before["folder"]).iterdir())
    assert left == sorted([*before["sizes"], large.mapped["addresses"]])


def test_files_are_written_again_when_a_tenth_has_changed(tmp_path, large, queries):
    before, reader = large.mapped, reopened(tmp_path, large)
    wanted = reader.search(queries, K, exact=True)
    large.add([f"new {n}" for n in range(700)], clustered(700, 5), columns(range(700)))
    large.optimize()
    large.drop_versions()
    assert (large.mapped["folder"], large.mapped["rows"]) == ("2", ROWS + 700)
    assert [folder.name for folder in (tmp_path / "images.mapped").iterdir()] == ["2"]
    assert reader.search(queries, K, exact=True) == wanted, "a reader keeps the files that it has mapped"
    assert before["folder"] == "1"
    large.remove([f"new {n}" for n in range(700)] + [f"item {n}" for n in range(3500)])
    large.optimize()
    large.drop_versions()
    assert large.mapped is None
    assert not list((tmp_path / "images.mapped").iterdir())
    assert len(large.search(queries, ROWS)[0]) == 2500


def test_purging_deletes_removed_vectors_from_the_files(tmp_path, large):
    vector = large.vectors(["item 9"]).astype(np.float16).tobytes()
    files = tmp_path / "images.mapped"
    assert any(vector in file.read_bytes() for file in files.rglob(VECTORS_FILE))
    large.remove(["item 9"])
    large.optimize(purge=True)
    large.drop_versions()
    assert not any(vector in file.read_bytes() for file in files.rglob(VECTORS_FILE))
    assert large.mapped["rows"] == ROWS - 1
    assert large.recall >= 0.98


@pytest.mark.parametrize("scanned", [0, 100 * DIM])
@pytest.mark.parametrize(
    "where",
    [Comparison("n", "<", 100.0), Comparison("n", "<", 10.0), Comparison("n", "<", 1.0), Comparison("half", "=", 1.0)],
    ids=["10%", "1%", "0.1%", "50%"],
)
def test_conditions_keep_their_recall(tmp_path, monkeypatch, large, queries, where, scanned):
    monkeypatch.setattr(mapped, "MAX_SCANNED_NUMBERS", scanned)
    large.add(["new"], queries[:1], columns(range(1)))
    found, wanted = large.search(queries, K, where), exact(tmp_path, large).search(queries, K, where)
    assert [len(hits) for hits in found] == [len(hits) for hits in wanted]
    assert recall(found, wanted) >= 0.96


def test_a_condition_that_excludes_the_neighbourhood_of_a_query_keeps_its_recall(tmp_path, monkeypatch, queries):
    monkeypatch.setattr(mapped, "MAX_SCANNED_NUMBERS", 0)
    vectors = clustered(ROWS, 1)
    far = vectors @ queries[0] < 0
    index = open_index(tmp_path, "images", dim=DIM)
    index.add([f"item {n}" for n in range(ROWS)], vectors, pa.table({"far": far.astype(float)}))
    index.optimize()
    where = Comparison("far", "=", 1.0)
    wanted = exact(tmp_path, index).search(queries[:1], K, where)
    assert len(index.search(queries[:1], K, where)[0]) == K
    assert index.search(queries[:1], K, where)[0][0].score <= wanted[0][0].score


def test_as_many_rows_are_found_as_were_asked_for(tmp_path, large, queries):
    for k in (1, 300, 1999, 2500, ROWS + 1):
        assert [len(hits) for hits in large.search(queries[:2], k)] == [min(k, ROWS)] * 2


def test_without_faiss_every_search_is_exact(tmp_path, monkeypatch, large, queries, caplog):
    with_lists = large.mapped
    monkeypatch.setitem(sys.modules, "faiss", None)
    reader, plain = reopened(tmp_path, large), exact(tmp_path, large)
    assert "faiss is not installed" in caplog.text
    assert reader.recall is None
    assert reader.search(queries, K) == plain.search(queries, K)
    writer = open_index(tmp_path, "images", dim=DIM)
    writer.optimize()
    assert LISTS_FILE in with_lists["sizes"]
    assert LISTS_FILE not in writer.mapped["sizes"]
    assert (writer.recall, writer.mapped["recall"]) == (None, None)
    assert writer.search(queries, K) == plain.search(queries, K)


def test_files_that_are_missing_or_damaged_are_not_used(tmp_path, large, queries, caplog):
    wanted = exact(tmp_path, large).search(queries, K)
    file = tmp_path / "images.mapped" / "1" / LISTS_FILE
    whole = file.read_bytes()
    for content in (whole[:-1], b"x" * len(whole)):
        file.write_bytes(content)
        reader = reopened(tmp_path, large)
        assert reader.search(queries, K) == wanted
        assert reader.recall is None
        assert "cannot be used" in caplog.text
        caplog.clear()
    file.unlink()
    writer = open_index(tmp_path, "images", dim=DIM, mapped=large.mapped)
    assert writer.unfinished
    writer.optimize()
    assert writer.unfinished, "the damaged files are still there"
    writer.drop_versions()
    assert not writer.unfinished
    assert writer.recall >= 0.98


@pytest.mark.parametrize("change", [{"folder": "../1"}, {"folder": "/1"}, {"addresses": "../rows-1.u64"}])
def test_a_record_names_files_in_its_folder_only(tmp_path, large, change):
    with pytest.raises(ValueError, match="not the name of mapped vectors"):
        MappedRecord.from_json({**large.mapped, **change})
    assert open_index(tmp_path, "images", version=large.version, mapped={**large.mapped, **change}).recall is None


def test_a_folder_that_was_not_finished_is_not_seen_and_is_removed(tmp_path, large):
    files = tmp_path / "images.mapped"
    (files / ".2.partial").mkdir()
    (files / ".2.partial" / VECTORS_FILE).write_bytes(b"half")
    (files / "7").mkdir()
    writer = open_index(tmp_path, "images", dim=DIM, mapped=large.mapped)
    writer.optimize()
    writer.drop_versions()
    assert sorted(folder.name for folder in files.iterdir()) == ["1"]


def resident_bytes(file: Path) -> int:
    """Of a mapped file in the memory of this process."""
    blocks = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    sizes = [re.search(r"^Rss: +(\d+) kB", block, re.MULTILINE) for block in blocks if str(file) in block]
    return sum(1024 * int(size[1]) for size in sizes if size)


@pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="needs Linux")
def test_the_memory_of_mapped_files_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "SCAN_ROWS", 4096)
    rows, dim = 40_000, 128
    index = open_index(tmp_path, "images", dim=dim)
    vectors = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    index.add([str(n) for n in range(rows)], vectors, pa.table({}))
    index.optimize()
    limit, folder = 2 << 20, tmp_path / "images.mapped" / index.mapped["folder"]
    version, record = index.version, index.mapped
    del index

    def reader(memory: int | None):
        return open_index(tmp_path, "images", version=version, mapped=record, memory=memory)

    free = reader(None)
    wanted = free.search(vectors[:8], K, exact=True)
    # All of it, unless the system needs the memory for something else.
    assert resident_bytes(folder / VECTORS_FILE) > 4 * limit, "without a limit, it stays"
    del free
    gc.collect()
    assert resident_bytes(folder / VECTORS_FILE) == 0
    bounded = reader(limit)
    for query, hits in zip(vectors[:8], wanted, strict=True):
        bounded.search(query[None], K)
        assert bounded.search(query[None], K, exact=True)[0] == hits
        # The system maps up to a megabyte more around what is read, and a search is counted when it is over.
        assert resident_bytes(folder / VECTORS_FILE) <= 3 * limit
        assert resident_bytes(folder / LISTS_FILE) <= 3 * limit


def test_a_reader_with_little_memory_survives_the_deletion_of_its_files(tmp_path, large, queries):
    reader = open_index(tmp_path, "images", version=large.version, mapped=large.mapped, memory=1)
    before = reader.search(queries, K)
    shutil.rmtree(tmp_path / "images.mapped")
    for _ in range(3):
        assert reader.search(queries, K) == before
        assert len(reader.search(queries, K, exact=True)) == len(queries)


def test_a_disk_without_space_is_named_before_anything_is_written(tmp_path, monkeypatch, large):
    monkeypatch.setattr(mapped, "FILE_BYTES_PER_ROW", 1 << 50)
    writer = open_index(tmp_path, "images", dim=DIM)
    with pytest.raises(OSError, match="bytes needed") as raised:
        writer.optimize()
    assert raised.value.errno == errno.ENOSPC
    assert [folder.name for folder in (tmp_path / "images.mapped").iterdir()] == ["1"]


def test_the_fewest_lists_that_reach_a_recall_are_chosen():
    assert fewest_probes(lambda probes: 1.0, 64, 0.98) == 1
    assert fewest_probes(lambda probes: 0.5, 64, 0.98) == 64
    asked: list[int] = []

    def share(probes: int) -> float:
        asked.append(probes)
        return min(1.0, probes / 20)

    assert fewest_probes(share, 1000, 0.98) == 20
    assert len(asked) < 12


def test_recall_counts_other_rows_than_the_query_itself():
    rows = [np.array([5, 1, 2, 3])]
    assert mapped._recalls(rows, [np.array([5, 1, 7, 8])], np.array([5])) == pytest.approx(1 / 3)
    assert mapped._recalls(rows, [np.array([5, 1, 7, 8])], np.array([-1])) == pytest.approx(2 / 4)


def test_queries_of_another_kind_count_for_the_recall(tmp_path, large, monkeypatch):
    """Queries far from all rows need more lists, as texts do in an index of images."""
    own = large.mapped["probes"]
    far = np.random.default_rng(9).normal(size=(200, DIM)).astype(np.float32)
    far /= np.linalg.norm(far, axis=1, keepdims=True)
    opened = MappedVectors(tmp_path / "images.mapped", MappedRecord.from_json(large.mapped), DIM)
    assert opened.measured(None).probes == own
    assert opened.measured(far).probes > own


def test_lists_of_a_trained_file_are_used_again(tmp_path):
    vectors = clustered(2000, 1).astype(np.float16)
    assert inverted_lists.build_lists(vectors, tmp_path / "first")
    assert inverted_lists.build_lists(vectors[:1500], tmp_path / "second", tmp_path / "first")
    lists = inverted_lists.InvertedLists.open(tmp_path / "second", 1500, DIM)
    assert lists is not None
    assert lists.lists == round(2000**0.5)
    found = lists.search(vectors[:5].astype(np.float32), 1, 4)
    assert [rows.tolist() for rows in found] == [[n] for n in range(5)]
