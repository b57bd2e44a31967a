"""Give malformed inputs of every kind to the verbs that read them.

    python tests/hostile/inputs.py [SEED]

A verb must end with an answer, or with one line of error and exit code 2. Of a folder of pictures, every file must be
counted: as an item or as a problem.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import random
import re
import shutil
import struct
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from flips import SMALL, make
from verbs import Ending, run

from calligram.checksums import LIST_FILE, sealed

FOLDER_PICTURES = 60
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/tmp/calligram-was-here) (w) file closefile showpage\n"
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1.5, 1e308, "", "x" * 3000, "../../etc/passwd", "/dev/zero", "\0", "\ud800", [], [[]],
    {}, {"a": {"b": None}}, [None] * 3,
)  # fmt: skip
RAW_TEXTS = (
    b"", b"{", b"[]", b"null", b"3", b"NaN", b'"x"', b"\xff\xfe\x00", b"\x00" * 100, b"[" * 100_000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000, b"{" + b'"a": 1' + b"0" * 10_000 + b"}",
    b'{"a": Infinity}', b"\xef\xbb\xbf{}",
)  # fmt: skip
ODD_NAMES = (
    "[/x]", "[bold]", "a\nb", "a\rb", "a\tb", "\x1b[31mred", "-rf", "--help", "%s%n", "a'b", 'a"b', "a;b", "a`b`",
    "日本語", "é" * 60, "\u202eabc", "a" * 240, "a..jpg", "$HOME", "a\\b", "*", "?", "#", "&amp;", "<b>", "\x7f", " ",
)  # fmt: skip


class Case(NamedTuple):
    """One or several malformed inputs, and how the verb ended that read them."""

    kind: str
    count: int
    what: str
    ending: Ending
    problem: str = ""
    """what is wrong although the verb ended as it should"""


# Pictures.


def picture(draw: random.Random, form: str) -> bytes:
    """A small picture in a format."""
    pixels = np.random.default_rng(draw.randrange(10**6)).integers(0, 255, (9, 11, 3), dtype=np.uint8)
    mode = draw.choice(("RGB", "L", "P", "1", "CMYK", "I;16", "F", "RGBA", "LA"))
    image = Image.fromarray(pixels)
    try:
        image = image.convert(mode)
        stream = io.BytesIO()
        image.save(stream, form)
    except (OSError, ValueError, KeyError):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 99)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def odd_picture(draw: random.Random) -> bytes:
    """The bytes of a file that has the name of a picture."""
    whole = picture(draw, draw.choice(("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF")))
    way = draw.randrange(9)
    if way == 0:
        return whole[: draw.randrange(len(whole))]
    if way == 1:
        return whole + os.urandom(50)
    if way in (2, 3, 4):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 3, 30))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(data)
    if way == 5:
        return draw.choice(
            (b"", EPS, b"\xff\xd8\xff", b"GIF89a", b"<svg/>", b"%PDF-1.4", b"RIFF\0\0\0\0WEBP", b"P6 9 9")
        )
    if way == 6:
        return bomb(draw.choice((0, 1, 2**31 - 1, 60_000)), draw.choice((0, 1, 2**31 - 1, 60_000)))
    if way == 7:
        floats = np.array([[np.nan, np.inf], [-1e30, 0.5]], np.float32)
        stream = io.BytesIO()
        Image.fromarray(floats).save(stream, "TIFF")
        return stream.getvalue()
    return os.urandom(draw.randrange(200))


def picture_cases(work: Path, draw: random.Random, count: int) -> Iterator[Case]:
    """Folders of odd pictures for ``index`` and ``import``."""
    for number in range(-(-count // FOLDER_PICTURES)):
        folder = work / f"pictures-{number}"
        folder.mkdir()
        for place in range(FOLDER_PICTURES):
            suffix = draw.choice(("jpg", "png", "gif", "tif", "webp", "bmp", "JPEG", "ppm"))
            (folder / f"{place}.{suffix}").write_bytes(odd_picture(draw))
        (folder / "good.png").write_bytes(picture(draw, "PNG"))
        library, collection = work / f"library-{number}", work / f"collection-{number}"
        ended = run("index", work / "run", folder, "--out", library, "--device", "cpu")
        yield Case("pictures", FOLDER_PICTURES, f"index {folder}", ended, _uncounted(ended, library, folder))
        yield Case("pictures", 0, f"import {folder}", run("import", "folder", folder, collection))
    if Path("/tmp/calligram-was-here").exists():
        raise AssertionError("an EPS file was run")


def _uncounted(ended: Ending, library: Path, folder: Path) -> str:
    if ended.code != 0:
        return "the folder has a good picture"
    counts = json.loads((library / "library.json").read_text())["counts"]
    wanted = sum(len(files) for _, _, files in os.walk(folder))
    return "" if counts["items"] + counts["problems"] == wanted else f"{counts} of {wanted} files"


def name_cases(work: Path, draw: random.Random) -> Iterator[Case]:
    """Pictures with odd names, and what is shown of them."""
    folder = work / "names"
    folder.mkdir()
    names: list[bytes] = [f"{name}.png".encode("utf-8", "surrogateescape") for name in ODD_NAMES]
    names += [b"\xff\xfe.png", b"\xe9t\xe9.jpg", b"a\x80b.gif"]
    for name in names:
        path = os.fsencode(folder) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(picture(draw, "PNG"))
    library = work / "names.library"
    ended = run("index", work / "run", folder, "--out", library, "--device", "cpu")
    yield Case("names", len(names), "index", ended, _uncounted(ended, library, folder))
    collection = work / "names.collection"
    for words in (
        ("import", "folder", folder, collection), ("info", collection), ("info", library), ("check", library),
        ("search", library, "a dog", "-k", "40"), ("index", "--problems", library), ("duplicates", library),
    ):  # fmt: skip
        yield Case("names", 0, str(words[0]), run(*words))


def link_cases(work: Path, draw: random.Random) -> Iterator[Case]:
    """Loops of links, pipes, devices and sockets with names of pictures."""
    folder = work / "links"
    folder.mkdir()
    (folder / "good.png").write_bytes(picture(draw, "PNG"))
    os.mkfifo(folder / "pipe.jpg")
    for name, target in (
        ("zero.jpg", "/dev/zero"), ("null.jpg", "/dev/null"), ("random.png", "/dev/urandom"), ("tty.png", "/dev/tty"),
        ("loop.jpg", "loop.jpg"), ("gone.jpg", "nowhere"), ("up", "."), ("to-pipe.gif", "pipe.jpg"),
    ):  # fmt: skip
        (folder / name).symlink_to(target)
    (folder / "folder.jpg").mkdir()
    library = work / "links.library"
    yield Case("links", 10, "index", run("index", work / "run", folder, "--out", library, "--device", "cpu"))
    yield Case("links", 0, "import", run("import", "folder", folder, work / "links.collection"))


# Tables, settings, manifests.


def table_cases(work: Path, draw: random.Random, count: int) -> Iterator[Case]:
    """Tables of captions next to pictures."""
    for number in range(count):
        folder = work / f"table-{number}"
        folder.mkdir()
        (folder / "a.png").write_bytes(picture(draw, "PNG"))
        (folder / "b.png").write_bytes(picture(draw, "PNG"))
        name, data = _odd_table(draw)
        (folder / name).write_bytes(data)
        yield Case("tables", 1, f"{name} {data[:80]!r}", run("import", "folder", folder, work / f"table-{number}.out"))
        shutil.rmtree(folder)
        shutil.rmtree(work / f"table-{number}.out", ignore_errors=True)


def _odd_table(draw: random.Random) -> tuple[str, bytes]:
    rows = [["file", "caption", "split", "identity"], ["a.png", "a dog", "train", "1"], ["b.png", "a cat", "dev", "2"]]
    for _ in range(draw.randrange(1, 4)):
        row = draw.choice(rows)
        odd = ("", "\0", "\ud800", "x" * 2000, "../a.png", "NaN", "1e999", "-1", "train,dev", '"', "\n", "[/x]", "=1+1")
        row[draw.randrange(len(row))] = draw.choice(odd)
    form = draw.choice(("csv", "tsv", "json", "jsonl"))
    if draw.random() < 0.25:
        return f"captions.{form}", draw.choice(RAW_TEXTS)
    if form in ("csv", "tsv"):
        stream = io.StringIO()
        csv.writer(stream, delimiter="," if form == "csv" else "\t").writerows(rows)
        data = stream.getvalue().encode("utf-8", "surrogatepass")
    else:
        records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        draw.choice(records)[draw.choice(rows[0])] = draw.choice(ODD_VALUES)  # type: ignore[assignment]
        text = json.dumps(records) if form == "json" else "\n".join(map(json.dumps, records))
        data = text.encode()
    if draw.random() < 0.3:
        data = data[: draw.randrange(len(data) + 1)] + os.urandom(draw.randrange(5))
    return f"captions.{form}", data


def toml_cases(work: Path, draw: random.Random, count: int) -> Iterator[Case]:
    """Files of settings."""
    whole = run("show", "vse")
    keys = re.findall(r"^([a-z_.]+)  ", whole.out, re.MULTILINE) or ["lr", "dim", "epochs"]
    for number in range(count):
        lines = [f"{key} = {_toml_value(draw)}" for key in draw.sample(keys, min(3, len(keys)))]
        lines.insert(0, draw.choice(('preset = "vse"', 'recipe = "pairs"', "", "preset = 3", 'preset = "nothing"')))
        text = "\n".join(lines) + draw.choice(
            ("", "\n[stages]\n", "\n[[stages]]\nlr = 1\n", "\n[a.b.c]\nd = 1\n", "\n]")
        )
        file = work / f"settings-{number}.toml"
        file.write_bytes(draw.choice(RAW_TEXTS) if draw.random() < 0.2 else text.encode("utf-8", "surrogatepass"))
        words = draw.choice((("show", file), ("train", "vse", work / "scenes", "--out", work / "no", "--config", file)))
        if words[0] == "train":  # a folder that exists refuses a run only after the settings were read
            (work / "no").mkdir(exist_ok=True)
            (work / "no" / "other").touch()
        yield Case("settings", 1, text[:100], run(*words))


def _toml_value(draw: random.Random) -> str:
    odd = (
        "true",
        "-1",
        "0",
        "1e400",
        "nan",
        "inf",
        '""',
        '"x"',
        "[]",
        "[1, 'a']",
        "{a = 1}",
        "10" + "0" * 40,
        "1979-05-27",
    )
    return draw.choice(odd)


MANIFESTS: dict[str, tuple[str, Callable[[Path, Path], list[tuple[object, ...]]]]] = {
    "scenes/collection.json": ("scenes", lambda copy, work: [("info", copy)]),
    "library/library.json": ("library", lambda copy, work: [("search", copy, "a dog")]),
    "run/run.json": ("run", lambda copy, work: [("evaluate", copy, work / "scenes", "--device", "cpu")]),
    "run/matcher.json": ("run", lambda copy, work: [("evaluate", copy, work / "scenes", "--device", "cpu")]),
    "run/inputs/inputs.json": ("run", lambda copy, work: [("evaluate", copy, work / "scenes", "--device", "cpu")]),
    "run/state/LATEST": ("run", lambda copy, work: [_resume(copy, work)]),
    "run/state/*/position.json": ("run", lambda copy, work: [_resume(copy, work)]),
}


def _resume(copy: Path, work: Path) -> tuple[object, ...]:
    changes = [word for change in SMALL for word in ("--set", change)]  # with others, nothing else would be read
    return ("train", "vse", work / "scenes", "--out", copy, "--resume", "--device", "cpu", *changes)


def manifest_cases(work: Path, draw: random.Random, count: int) -> Iterator[Case]:
    """Manifests with a field of another kind, without one, with one more, or that are no JSON."""
    for number in range(count):
        name = list(MANIFESTS)[number % len(MANIFESTS)]
        folder, verbs = MANIFESTS[name]
        copy = work / f"manifest-{number}"
        shutil.copytree(work / folder, copy)
        (file,) = copy.glob(name.partition("/")[2])
        for listed in copy.rglob(LIST_FILE):  # an attacker would write right checksums, so there are none
            listed.unlink()
        if draw.random() < 0.2 or file.suffix != ".json":
            file.write_bytes(draw.choice((*RAW_TEXTS, b"000000001", b"../..", b"\0", os.urandom(20))))
            what = "other bytes"
        else:
            content = json.loads(file.read_text())
            what = _change(content, draw)
            file.write_text(json.dumps(sealed(content)), encoding="utf-8")
        for words in verbs(copy, work):
            yield Case("manifests", 1, f"{name}: {what}", run(*words))
        shutil.rmtree(copy)


def _change(content: dict[str, Any], draw: random.Random) -> str:
    """Change one field at any depth; returns its name and value."""
    place, path = content, ""
    while True:
        key = draw.choice([key for key in place if key != "checksum"])
        path += f".{key}"
        if isinstance(place[key], dict) and place[key] and draw.random() < 0.6:
            place = place[key]
            continue
        break
    way = draw.randrange(8)
    if way == 0:
        del place[key]
        return f"{path} is missing"
    if way == 1:
        place["one more"] = 1
        return f"{path} has a neighbour"
    place[key] = draw.choice(ODD_VALUES)
    return f"{path} = {json.dumps(place[key])[:60]}"


def weight_cases(work: Path, draw: random.Random, count: int) -> Iterator[Case]:
    """Files of weights, and networks in ONNX."""
    from safetensors.numpy import save

    whole = (work / "run" / "best.safetensors").read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    for number in range(count):
        copy = work / f"weights-{number}"
        shutil.copytree(work / "run", copy)
        (copy / LIST_FILE).unlink()
        changed = json.loads(json.dumps(header))
        entry = changed[draw.choice([key for key in changed if key != "__metadata__"])]
        entry[draw.choice(("dtype", "shape", "data_offsets"))] = draw.choice(ODD_VALUES[:-2])
        text = json.dumps(changed).encode()
        data = draw.choice((
            pickle.dumps({"a": 1}), b"", whole[: draw.randrange(len(whole))], struct.pack("<Q", 2**63) + whole[8:],
            struct.pack("<Q", len(text)) + text + whole[8 + size :], save({"x": np.zeros(3)}), os.urandom(300),
            b"\x08" + b"\0" * 7 + b"[" * 8,
        ))  # fmt: skip
        (copy / "best.safetensors").write_bytes(data)
        words: tuple[object, ...] = ("evaluate", copy, work / "scenes", "--device", "cpu")
        if number % 5 == 0:
            (work / "network.onnx").write_bytes(data)
            words = ("regions", work / "scenes", "--proposals", work / "network.onnx", "--device", "cpu")
        yield Case("weights", 1, f"{data[:40]!r}", run(*words))
        shutil.rmtree(copy)


def query_cases(work: Path, draw: random.Random, count: int) -> Iterator[Case]:
    """Queries, conditions and numbers on the command line."""
    texts = [str(value) for value in ODD_VALUES if not isinstance(value, str) or "\ud800" not in value]
    pieces = [
        "year",
        "width",
        "=",
        "<",
        ">=",
        "'",
        '"',
        "(",
        ")",
        "and",
        "not",
        "like",
        "%",
        "in",
        "1",
        "null",
        "--",
        ";",
    ]
    for _ in range(count):
        query = draw.choice([*texts, *ODD_NAMES, "".join(draw.choices("ab \n\t\x01'\"()*?[]{}\\/é日", k=20))])
        words: list[object] = ["search", work / "library"]
        if draw.random() < 0.6:
            words.append(f"--where={' '.join(draw.choices(pieces, k=draw.randrange(1, 8)))}")
        if draw.random() < 0.3:
            words.append(f"-k={draw.choice(('0', '-1', '10000000000', 'x', '3'))}")
        yield Case("queries", 1, repr([*words[2:], query])[:100], run(*words, "--", query))


def all_cases(work: Path, seed: int = 0, share: float = 1.0) -> Iterator[Case]:
    """Cases of all kinds; ``share`` of the usual numbers."""
    draw = random.Random(seed)
    if not (work / "run").exists():
        make(work)
    yield from picture_cases(work, draw, round(720 * share))
    yield from name_cases(work, draw)
    yield from link_cases(work, draw)
    yield from table_cases(work, draw, round(350 * share))
    yield from toml_cases(work, draw, round(250 * share))
    yield from manifest_cases(work, draw, round(420 * share))
    yield from weight_cases(work, draw, round(60 * share))
    yield from query_cases(work, draw, round(250 * share))


def main() -> None:
    """Run all cases and print their counts; the exit code is 1 if one failed."""
    counts: Counter[tuple[str, str]] = Counter()
    inputs: Counter[str] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in all_cases(Path(folder), int((*sys.argv[1:], "0")[0])):
            inputs[case.kind] += case.count
            counts[case.kind, str(case.ending.code).split(":")[0]] += 1
            if not case.ending.is_fine or case.problem:
                failures += 1
                print(
                    f"{case.kind}: {case.what}: {case.ending.code} {case.problem} {case.ending.err[-300:]}", flush=True
                )
    for kind, number in inputs.items():
        codes = ", ".join(f"{n} with exit code {code}" for (k, code), n in sorted(counts.items()) if k == kind)
        print(f"{kind:10} {number:5} inputs; verbs: {codes}")
    print(f"{sum(inputs.values())} malformed inputs, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
