"""Matchers as ONNX files, compared with the matcher through onnxruntime before they are left behind."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.features.images.backbones import BackboneInput
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.features.texts.text_encoder import EncoderInput
from calligram.files import move_folder
from calligram.models.layers.networks import PaddedRecurrentText, RecurrentText
from calligram.models.matcher import Matcher, unit

# A matcher's two sides as modules from plain arrays to unit vectors, as other runtimes need them.

SAMPLE_TEXTS = (
    "a man in a red shirt throws a ball to his dog by the sea",
    "snow",
    "two girls dance",
    "one, and another",
)


class GraphInput(NamedTuple):
    """One input of a graph; the first axis is the batch."""

    name: str
    about: str
    longest: int = 0
    """of the second axis, where it may change; 0 where it may not"""


class EncoderGraph(nn.Module):
    """One side of a matcher."""

    inputs: tuple[GraphInput, ...]

    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def reference(self, *given: Tensor) -> Tensor:
        """What the graph must give."""
        return self(*given)  # type: ignore[no-any-return]

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Random inputs, the first to build the graph from, the others of other shapes."""
        raise NotImplementedError


class ImageGraph(EncoderGraph):
    """Bytes of resized pictures (N, 3, H, W) to unit vectors, normalisation and all; or stored features (N, D)."""

    def __init__(self, matcher: Matcher, source: ImageInput) -> None:
        super().__init__(matcher)
        self.source = source
        self.backbone = copy.deepcopy(source.backbone).cpu().eval() if isinstance(source, BackboneInput) else None
        self.pixels = source.pixels if isinstance(source, BackboneInput) else source
        pixels = GraphInput("pixels", "RGB bytes of pictures resized as the preparation says")
        features = GraphInput("features", "features of pictures, averaged where a picture has several")
        self.inputs = (pixels if isinstance(self.pixels, PixelInput) else features,)

    def forward(self, images: Tensor) -> Tensor:
        """(N, dim)."""
        images = self.pixels.finish(images)
        if self.backbone is not None:
            assert isinstance(self.source, BackboneInput)
            images = self.source.extract(self.backbone, images)
        return unit(self.matcher.encode_images(images).vectors)

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Random bytes or features."""
        random = torch.Generator().manual_seed(0)
        if isinstance(self.pixels, PixelInput):
            shape = (3, self.pixels.size, self.pixels.size)
            return [(torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=random),) for n in (2, 1, 5)]
        dim = getattr(self.matcher.settings, "feature_dim", None)
        if dim is None:
            raise UserError(
                "this matcher takes stored features of a shape that is not known; train on pixels to export"
            )
        return [(torch.randn(n, dim, generator=random),) for n in (2, 1, 5)]


class TextGraph(EncoderGraph):
    """Numbers of words (N, W) and their mask to unit vectors, through a frozen encoder where there is one."""

    def __init__(self, matcher: Matcher, source: TextInput) -> None:
        super().__init__(with_padded_text(matcher))
        self.source = source.pieces if isinstance(source, EncoderInput) else source
        self.encoder = copy.deepcopy(source.encoder).cpu().eval() if isinstance(source, EncoderInput) else None
        self._original = [matcher]  # in a list, so that its weights are not this module's too
        longest = int(self.source.load([" ".join(SAMPLE_TEXTS * 200)]).lengths.max())
        self.inputs = (
            GraphInput("words", "numbers of words or pieces, as the preparation gives them", longest),
            GraphInput("mask", "true where a number is real, false where it pads", longest),
        )

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """(N, dim)."""
        return unit(self.matcher.encode_texts(self._seen(words, mask), mask).vectors)

    def _seen(self, words: Tensor, mask: Tensor) -> Tensor:
        return words if self.encoder is None else self.encoder(words, mask)

    def reference(self, *given: Tensor) -> Tensor:
        """By the matcher itself."""
        words, mask = given
        return unit(self._original[0].encode_texts(self._seen(words, mask), mask).vectors)

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Texts of several lengths whose inner words are random."""
        words, mask = self.source.texts(SAMPLE_TEXTS)
        last, places = mask.sum(1, keepdim=True) - 1, torch.arange(words.shape[1])
        drawn = torch.randint(4, max(5, len(self.source)), words.shape, generator=torch.Generator().manual_seed(0))
        words = torch.where((places > 0) & (places < last), drawn, words)
        width = int(last[1:].max()) + 1
        return [(words, mask), (words[1:, :width], mask[1:, :width]), (words[:1], mask[:1])]


def with_padded_text(matcher: Matcher) -> Matcher:
    """A copy whose recurrent text branches work on padded words."""
    changed = copy.deepcopy(matcher)
    for name, module in matcher.named_modules():
        if isinstance(module, RecurrentText):
            parent, _, child = name.rpartition(".")
            setattr(changed.get_submodule(parent), child, PaddedRecurrentText(module))
    return changed.eval()


MAX_DIFFERENCE = 1e-4
"""largest difference of any entry of a unit vector"""
MAX_EMBEDDED_WEIGHT_BYTES = 1 << 30
"""weights past this many bytes go into a file beside the graph, since a graph's own file ends at twice as many"""

NOT_EXPORTABLE: Mapping[str, str] = {
    "regions": "regions of pictures",
    "joined-images": "regions of pictures",
    "text-vectors": "text vectors",
    "joined-texts": "text vectors",
}
"""kinds of input that are made by other than networks"""


def export_onnx(matcher: Matcher, inputs: Inputs, out: Path) -> dict[str, Any]:
    """Write ``image.onnx``, ``text.onnx``, ``inputs/`` and ``README.json`` into the new folder ``out``.

    Vectors come out at length one, so that a score is a dot product.

    Returns:
        What ``README.json`` says.

    Raises:
        UserError: when the score is more than a cosine, when an input is not made by a network, when a graph differs
            from the matcher by more than ``TOLERANCE``, or when ``out`` is there. Nothing is left behind then.
    """
    if matcher.reranks:
        raise UserError("only a matcher whose score is the cosine of two vectors can be exported; this one reranks")
    for side in (inputs.images, inputs.texts):
        if (what := NOT_EXPORTABLE.get(side.kind)) is not None:
            raise UserError(
                f"this matcher is fed {what}, which no network computes and a graph cannot contain; export one that is "
                "trained on pictures (pixels or a backbone) and on words, pieces of words or a text encoder"
            )
    if out.exists():
        raise UserError(f"{out} is there already; choose another folder")
    _check_packages()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as partial:
        folder = Path(partial) / out.name
        inputs.save(folder / "inputs")
        about = _write_graphs(copy.deepcopy(matcher).cpu().eval(), inputs, folder)
        (folder / "README.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        move_folder(folder, out)
    return about


def _check_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f'export needs {error.name}; install it with "pip install calligram[export]"') from None


def _write_graphs(matcher: Matcher, inputs: Inputs, folder: Path) -> dict[str, Any]:
    image, text = ImageGraph(matcher, inputs.images).eval(), TextGraph(matcher, inputs.texts).eval()
    return {
        "format": "calligram onnx",
        "score": "dot product of an image's and a text's vector, which have length one; higher is better",
        "image": _export_checked(image, folder / "image.onnx"),
        "text": _export_checked(text, folder / "text.onnx"),
        "preparation": "inputs/inputs.json: how pictures become pixels and texts become numbers",
    }


def _export_checked(graph: EncoderGraph, file: Path) -> dict[str, Any]:
    """Write a graph, run what was written on inputs of several shapes, and compare."""
    try:
        with torch.no_grad(), _silence_exporter():
            _export_graph(graph, file)
    except Exception as error:  # the exporter raises all kinds for operators it does not know
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise UserError(f"the {file.stem} encoder could not be exported to ONNX ({reason[0]})") from error
    samples = graph.samples()
    difference = max(_largest_difference(graph, sample, file) for sample in samples)
    if not difference <= MAX_DIFFERENCE:
        raise UserError(
            f"the ONNX {file.stem} encoder differs from the matcher by {difference:.1e}, more than "
            f"{MAX_DIFFERENCE:.0e}; nothing was written"
        )
    inputs = {
        given.name: _describe_input(given, tensor) for given, tensor in zip(graph.inputs, samples[0], strict=True)
    }
    with torch.no_grad():
        output = {"type": "float32", "shape": ["batch", graph(*samples[0]).shape[1]]}
    return {"file": file.name, "inputs": inputs, "output": {"vectors": output}, "largest_difference": difference}


def _describe_input(given: GraphInput, tensor: Tensor) -> dict[str, Any]:
    shape = ["batch", "length"] if given.longest else ["batch", *tensor.shape[1:]]
    limit = {"longest": given.longest} if given.longest else {}
    return {"type": str(tensor.dtype).removeprefix("torch."), "shape": shape, **limit, "about": given.about}


def _export_graph(graph: EncoderGraph, file: Path) -> None:
    sample = graph.samples()[0]
    batch = torch.export.Dim("batch")
    axes = [
        {0: batch, 1: torch.export.Dim("length", min=2, max=given.longest)} if given.longest else {0: batch}
        for given in graph.inputs
    ]
    torch.onnx.export(
        graph,
        sample,
        file,
        dynamo=True,
        verbose=False,
        input_names=[given.name for given in graph.inputs],
        output_names=["vectors"],
        dynamic_shapes=tuple(axes),
        external_data=sum(p.nbytes for p in graph.parameters()) > MAX_EMBEDDED_WEIGHT_BYTES,
    )


def _largest_difference(graph: EncoderGraph, sample: tuple[Tensor, ...], file: Path) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    fed = {given.name: tensor.numpy() for given, tensor in zip(graph.inputs, sample, strict=True)}
    with torch.no_grad():
        return float((torch.from_numpy(session.run(None, fed)[0]) - graph.reference(*sample)).abs().max())


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Keep the exporter's advice to its own developers off the screen."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
