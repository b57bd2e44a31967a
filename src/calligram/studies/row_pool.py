"""Rows of a study side by side: which rows run at the same time, how far they are, and what happens when one ends."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from calligram.data.collection import Collection
from calligram.data.pictures import core_share
from calligram.features.images.backbones import Backbone
from calligram.features.texts.text_encoder import EncoderInput, TextEncoder
from calligram.features.texts.wordpieces import WordPieces
from calligram.lazy import ALLOWED_CODE
from calligram.memory import keep_freed_memory
from calligram.recipes.catalog import find_preset
from calligram.recipes.pairs import PairsSettings, PretrainedModel
from calligram.recipes.parts.config import resolve, settings_of_stage
from calligram.recipes.parts.run import RunContext
from calligram.recipes.parts.tower_settings import DEFAULT_IMAGE_SIZE, ImageSettings, TextSettings, image_input
from calligram.studies.claims import with_assets_path
from calligram.studies.results import Result
from calligram.studies.row_server import RowProcess, RowServer, multi_process_service
from calligram.studies.rows import RowJob

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.5
"""time between two updates of the display when no process reports anything"""
T = TypeVar("T")

MEMORY_WAIT, INPUT_WAIT = "waits for GPU memory", "waits for features"
FAULT_WAIT = "starts again after a GPU fault"

TEXT_ROW_GPU_BYTES = 10 << 30
"""GPU memory of a row that trains a text encoder; bfan and mmca with MiniLM, batch 128: 8 to 10 GiB"""
IMAGE_ROW_GPU_BYTES = 30 << 30
"""GPU memory of a row that trains an image network with the batch and size below; a ViT: 16 to 30 GiB"""
IMAGE_ROW_BATCH, IMAGE_ROW_SIZE = 256, 224
MEMBER_GPU_BYTES = 3 << 30
"""GPU memory for the weights of a further member with a ViT and MPNet, with gradients, optimizer state and average"""
ROW_GPU_BYTES = 6 << 30
"""GPU memory of a row without such networks; rows with a frozen image network took 0.6 to 10 GiB on an H200"""


@dataclass
class RowState:
    """How far a row is."""

    job: RowJob
    recorded: bool = False
    """its result is in the results; it is trained again because other rows use its run"""
    state: str = "waiting"
    """waiting, running, done or failed"""
    doing: str = ""
    """what a running row does, such as ``epoch 3/10``"""
    dev: list[float] = field(default_factory=list)
    """rsum on dev after each epoch, or R@1 of localization"""
    left: float | None = None
    """seconds until the end of its training; None if unknown"""
    began: float = 0.0
    seconds: float = 0.0
    """how long it has been running in this call"""
    result: Result | None = None
    error: str = ""
    out_of_memory: bool = False
    """its process ended because GPU memory was too small"""
    gpu_fault: bool = False
    """its process ended with a fault of the GPU, its own or that of another row"""

    def start(self) -> None:
        """Note that the row runs now."""
        self.state, self.doing, self.began = "running", "start", time.monotonic()

    def wait(self, reason: str) -> None:
        """Note that the row waits, also after it failed."""
        self.state, self.doing, self.left, self.error = "waiting", reason, None, ""
        self.out_of_memory = self.gpu_fault = False

    def end(self, error: str = "") -> None:
        """Note that the row is done, or why it failed."""
        self.state, self.doing, self.left, self.error = "failed" if error else "done", "", None, error
        self.seconds = time.monotonic() - self.began if self.began else 0.0

    @property
    def outcome(self) -> str:
        """One line about a row that is done or has failed."""
        if self.result is None:
            return f"{self.job.title}: failed: {self.error}"
        found = self.result.localization
        measured = f"localization R@1 {found['r1']:.1f}" if found else f"rsum {self.result.rsum:.1f}"
        return f"{self.job.title}: {measured} on test, {self.seconds:.0f} s"


Say = Callable[[str], None]
Watch = Callable[[Sequence[RowState]], None]


def default_workers(rows: int) -> int:
    """Return the largest number of rows side by side: one for each core."""
    return max(1, min(core_share(), rows))


def free_gpu_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU; None for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def row_gpu_bytes(job: RowJob) -> int:
    """Estimate the GPU memory of a row from its settings.

    Training an image network end to end stores activations in proportion to batch and pixels, fewer where patches are
    dropped. The members of an ensemble are trained one after the other in each step, so their activations count once,
    and their weights each. The largest stage counts.
    """
    given = [with_assets_path(change) for change in (*job.changes, *job.row.changes)]
    settings = resolve(find_preset(job.row.preset).defaults, given)
    text = getattr(settings, "text", None)
    trains_text = isinstance(text, TextSettings) and bool(text.encoder) and text.train
    found = TEXT_ROW_GPU_BYTES if trains_text else ROW_GPU_BYTES
    if not isinstance(settings, PairsSettings):
        return found
    for each in [settings_of_stage(settings, stage) for stage in settings.stages] or [settings]:
        if not each.image.stored:
            pretrained = bool(each.image.backbone) or any(isinstance(one, PretrainedModel) for one in each.matcher)
            size = each.image.size or (IMAGE_ROW_SIZE if pretrained else DEFAULT_IMAGE_SIZE)
            # A text encoder and the augmentation take as much memory with half of the patches as with all of them.
            kept = 1 - each.image.region_dropout / 2 if pretrained else 1
            scale = kept * each.batch * size**2 / (IMAGE_ROW_BATCH * IMAGE_ROW_SIZE**2)
            more = 0 if each.shared else len(each.matcher) - 1
            found = max(found, round(scale * IMAGE_ROW_GPU_BYTES) + more * MEMBER_GPU_BYTES)
    return found


InputKey = tuple[ImageSettings, Literal["vector", "grid"]] | tuple[str, int]
"""an image input with the parts of its images, or a text encoder with its largest number of words"""


class InputPreparation:
    """Stores features of frozen networks and decoded pictures that rows need, once, in a thread.

    The rows find them in the cache of the collection. A row starts when its own inputs are there, while those of later
    rows are being made. A network that cannot be loaded is left to its rows, which fail.
    """

    def __init__(self, jobs: Sequence[RowJob], collection: Collection, context: RunContext) -> None:
        self._collection, self._context = collection, context
        self._needed = [needed_inputs(job) for job in jobs]
        users = Counter(key for keys in self._needed for key in keys)
        # Decoded pictures are stored where several rows use them, features always.
        self._todo = [key for key, count in users.items() if count > 1 or isinstance(key[0], str) or key[0].stored]
        self._waiting = set(self._todo)
        self.progress = ""
        """how much of the input that is being made is done"""

    def start(self) -> InputPreparation:
        """Begin in a thread. It ends with the process, and inputs that are half made are made again by the next one."""
        keep_freed_memory()
        threading.Thread(target=self.run, daemon=True).start()
        return self

    def run(self) -> None:
        """Make all inputs, in the order of the rows."""
        for key in self._todo:
            try:
                self._store(key)
            except Exception as error:  # the rows that need it fail, with the same error
                log.warning("inputs that rows share could not be stored: %s", error)
            finally:
                self._waiting.discard(key)
        if self._context.device.type == "cuda":
            torch.cuda.empty_cache()  # for the processes of the rows

    def is_ready(self, number: int) -> bool:
        """Whether the inputs of a row are there."""
        return not self._needed[number] & self._waiting

    def _track(self, items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
        """Write down the progress, for the rows that wait."""
        total = len(items) if isinstance(items, Sized) else total
        for done, item in enumerate(items):
            self.progress = f": {label} {done}{f' of {total}' if total else ''}"
            yield item
        self.progress = ""

    def _store(self, key: InputKey) -> None:
        collection, device, track = self._collection, self._context.device, self._track
        if isinstance(key[0], str):
            name, length = key
            encoder = TextEncoder.load(name).to(device).eval()
            strings = list(dict.fromkeys(str(text) for text in collection.column("captions", "text")))
            pieces = WordPieces.load_pretrained(name, length)
            EncoderInput(encoder, pieces, name).load(strings, collection.pictures.cache, track)
            return
        image, parts = key
        visuals = collection.visuals(collection.images_in("all"))
        backbone = Backbone.load(image.backbone).to(device) if image.backbone else None
        source = image_input(image, backbone, parts)
        if source.network is not None:
            source.load(visuals, track)
        elif source.pixel_input is not None:
            source.pixel_input.store(visuals, track)


def needed_inputs(job: RowJob) -> set[InputKey]:
    """Return the inputs of a row that other rows may share."""
    given = [with_assets_path(change) for change in (*job.changes, *job.row.changes)]
    settings = resolve(find_preset(job.row.preset).defaults, given)
    image, text = getattr(settings, "image", None), getattr(settings, "text", None)
    found: set[InputKey] = set()
    if isinstance(image, ImageSettings) and not image.features:
        seen = ImageSettings(image.backbone, train=image.train, size=image.size, fit=image.fit, views=image.views)
        found.add((seen, "grid" if getattr(settings, "regions", False) else "vector"))
    if isinstance(text, TextSettings) and text.encoder and not text.train:
        found.add((text.encoder, text.max_words))
    return found


class RowPool:
    """Runs rows side by side, one process for each row, with one thread each.

    A row that runs out of GPU memory while others run is started once more, with at most half as many others. A fault
    of the GPU in one row ends all rows that share the GPU by MPS. They are then started once more, without MPS, so that
    a further fault ends its own row only.

    Args:
        workers: largest number of rows that run at the same time.
        memory: bytes that the rows that run at the same time may need by estimate; None for no limit. A row that needs
            more runs alone.
        say: called with lines about the GPU.
        inputs: what the rows wait for; None if everything is there.
    """

    def __init__(
        self,
        rows: Sequence[RowState],
        collection: Path,
        workers: int,
        device: torch.device,
        memory: int | None = None,
        say: Say = lambda line: None,
        inputs: InputPreparation | None = None,
    ) -> None:
        self._inputs = inputs
        self.rows, self._collection, self._workers, self._device = rows, collection, workers, device
        self._memory, self._say = memory, say
        self._needs = [0 if memory is None else row_gpu_bytes(row.job) for row in rows]
        self._others: dict[int, int] = {}
        """largest number of other rows that ran at the same time as a row"""
        self._limits: dict[int, int] = {}
        """largest number of others for rows that ran out of memory"""
        self._faulty: set[int] = set()
        """rows that have ended with a fault of the GPU"""
        self._isolated = False
        """whether rows run without MPS, after a fault"""
        self._server = RowServer()
        self._processes: dict[int, RowProcess] = {}
        self._messages: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._by_key = {(row.job.paper, row.job.row.name, row.job.seed): row for row in rows}

    def run(self, finish: Callable[[RowState], None], may_start: Callable[[], bool], watch: Watch) -> None:
        """Run all rows; when this function is left, also by an exception, no process is left.

        Args:
            finish: called after each row, in this process.
            may_start: whether a further row may start.
        """
        side_by_side = min(self._workers, len(self.rows))
        with multi_process_service(self._device, side_by_side, self._say) as self._server.environment, self._server:
            while True:
                for number in self._ready(finish) if may_start() else ():
                    if self._has_room(number):
                        self._start(number)
                watch(self.rows)
                waiting = any(row.doing.startswith(INPUT_WAIT) for row in self.rows)
                if not self._processes and not (may_start() and waiting):
                    return
                with contextlib.suppress(queue.Empty):
                    number, message = self._messages.get(timeout=REFRESH_SECONDS)
                    row = self.rows[number]
                    if message is None:
                        self._end(number)
                        if row.state != "waiting":
                            finish(row)
                    elif "result" in message:
                        row.result = Result(**message["result"])
                    else:
                        for name, value in message.items():
                            setattr(row, name, value)

    def _ready(self, finish: Callable[[RowState], None]) -> list[int]:
        """Return the rows that can start now; rows that need a failed row fail."""
        found = []
        for number, row in enumerate(self.rows):
            if row.state != "waiting":
                continue
            needed = [self._by_key.get((row.job.paper, name, row.job.seed)) for name in row.job.needed_rows]
            failed = [other.job.row.name for other in needed if other is not None and other.state == "failed"]
            if failed:
                row.end(f"it needs row '{failed[0]}', which failed")
                finish(row)
            elif all(other is None or other.state == "done" for other in needed):
                if self._inputs is None or self._inputs.is_ready(number):
                    found.append(number)
                else:
                    row.doing = f"{INPUT_WAIT}{self._inputs.progress}"
        return found

    def _has_room(self, number: int) -> bool:
        """Whether a row can start next to the rows that run; a smaller row may start before a larger one."""
        if not self._processes:
            return True
        if self._faulty and not self._isolated:  # the others have the same fault, or will end before MPS accepts a row
            return False
        together = [*self._processes, number]
        if len(together) > min(self._workers, *(1 + self._limits.get(each, self._workers) for each in together)):
            return False
        if self._memory is not None and sum(self._needs[each] for each in together) > self._memory:
            self.rows[number].wait(MEMORY_WAIT)
            return False
        return True

    def _start(self, number: int) -> None:
        if self._faulty and not self._isolated:
            self._server.isolate()
            self._isolated = True
        row = self.rows[number]
        row.start()
        row.job.log_file.parent.mkdir(parents=True, exist_ok=True)
        with row.job.log_file.open("ab") as log:
            self._processes[number] = process = self._server.start(number, log)
        self._others[number] = 0
        for each in self._processes:
            self._others[each] = max(self._others[each], len(self._processes) - 1)
        job = {"job": row.job.as_json(), "collection": str(self._collection), "device": str(self._device)}
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(
                json.dumps({**job, "imports": ALLOWED_CODE, "processes": min(self._workers, len(self.rows))}) + "\n"
            )
            process.stdin.flush()
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()

    def _listen(self, number: int, process: RowProcess) -> None:
        with contextlib.suppress(ValueError):  # a process that is killed may leave half a line
            for line in process.stdout:
                self._messages.put((number, json.loads(line)))
        self._messages.put((number, None))

    def _end(self, number: int) -> None:
        row, process = self.rows[number], self._processes.pop(number)
        code = process.wait()
        process.close()
        # A library that meets a fault outside Python aborts the process.
        row.gpu_fault |= self._device.type == "cuda" and code == -signal.SIGABRT
        if row.result is not None and not code:
            row.end()
        elif row.out_of_memory and self._others[number] and number not in self._limits:
            # Two rows may run out of memory at once, so the others that run now do not count.
            self._limits[number] = self._others[number] // 2
            row.wait(MEMORY_WAIT)
            self._say(f"{row.job.title}: {MEMORY_WAIT}")
        elif row.gpu_fault and self._others[number] and number not in self._faulty:
            if not self._faulty:
                self._say("a GPU fault ends all rows that share the GPU by MPS; they start again without MPS")
            self._faulty.add(number)
            row.wait(FAULT_WAIT)
        elif code is not None and code < 0:
            name = signal.Signals(-code).name
            row.end(f"it was killed by {name}; the same command continues it (with fewer --workers if memory ran out)")
        elif code is None:
            row.end(row.error or f"the process that starts rows has ended; {row.job.log_file} may say why")
        else:
            row.end(row.error or f"its process ended with status {code}")
