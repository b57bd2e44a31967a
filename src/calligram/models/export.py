"""Export a matcher to ONNX: one graph for images and one for texts.

Each file is run with onnxruntime and compared with the matcher. Files that differ are deleted.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from calligram.errors import UserError
from calligram.extras import require
from calligram.features.inputs import ImageInput, Inputs, TextInput
from calligram.files import move_file, move_folder
from calligram.models.layers.towers import PaddedRecurrentText, RecurrentText
from calligram.models.matcher import Matcher
from calligram.vectors import unit_length

MAX_DIFFERENCE = 1e-4
"""largest accepted difference of any entry of a unit vector between ONNX and PyTorch"""
MIN_INT8_COSINE = 0.9
"""smallest accepted cosine between a vector of eight-bit weights and the matcher's"""
QUANTIZED_OPERATORS = ["Conv", "MatMul", "Gemm"]
MAX_EMBEDDED_WEIGHT_BYTES = 1 << 30
"""larger weights go into a separate file: one ONNX file cannot hold more than twice as much"""
SAMPLE_TEXTS = (
    "a man in a red shirt throws a ball to his dog by the sea",
    "snow",
    "two girls dance",
    "one, and another",
)
"""texts that the exported text graph is traced and compared with"""


def export_onnx(matcher: Matcher, inputs: Inputs, out: str | os.PathLike[str], *, int8: bool = False) -> dict[str, Any]:
    """Write ``image.onnx``, ``text.onnx``, ``inputs/`` and ``README.json`` into the new folder ``out``.

    Vectors have length one, so that the score is a dot product.

    Args:
        matcher: to export.
        inputs: of the matcher.
        out: new folder.
        int8: store weights of convolutions and matrix products in eight bits, and compute with eight bits.

    Returns:
        The content of ``README.json``.

    Raises:
        UserError: when the score is not a cosine, when an input is not computed by a network, when a graph differs from
            the matcher by more than ``MAX_DIFFERENCE``, or when ``out`` exists. Then nothing is written.
    """
    if matcher.scoring.reranks:
        raise UserError("only a matcher whose score is the cosine of two vectors can be exported; this one reranks")
    _check_inputs(inputs)
    out = Path(out)
    if out.exists():
        raise UserError(f"{out} exists already; choose another folder")
    _check_packages()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as partial:
        folder = Path(partial) / out.name
        inputs.save(folder / "inputs")
        about = _write_graphs(copy.deepcopy(matcher).cpu().eval(), inputs, folder, int8)
        (folder / "README.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        move_folder(folder, out)
    return about


class GraphInput(NamedTuple):
    """One input of an ONNX graph; its first axis is the batch."""

    name: str
    about: str
    longest: int = 0
    """largest length of the second axis if it is dynamic; 0 if it is fixed"""


class EncoderGraph(nn.Module):
    """The image encoder or the text encoder of a matcher as one module, from plain arrays to unit vectors."""

    inputs: tuple[GraphInput, ...]

    def __init__(self, matcher: Matcher) -> None:
        super().__init__()
        self.matcher = matcher

    def reference(self, *inputs: Tensor) -> Tensor:
        """Output that the exported graph must reproduce."""
        return self(*inputs)  # type: ignore[no-any-return]

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Random inputs of several shapes; the first one is used to trace the graph."""
        raise NotImplementedError


class ImageGraph(EncoderGraph):
    """Resized images as bytes (N, 3, H, W), or stored features (N, D), to unit vectors; includes normalisation."""

    def __init__(self, matcher: Matcher, source: ImageInput) -> None:
        super().__init__(matcher)
        self.source = source
        self.network = _copy_for_export(source.network)
        pixels = GraphInput("pixels", "RGB bytes of images, resized as inputs/inputs.json says")
        features = GraphInput("features", "features of images; the mean if an image has several")
        self.inputs = (features if source.pixel_input is None else pixels,)

    def forward(self, images: Tensor) -> Tensor:
        """Return unit vectors (N, dim)."""
        rows = self.source.run_network(images, self.network)
        return unit_length(self.matcher.encode_images(self.source.finish(rows)).vectors)

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Random bytes or features."""
        random = torch.Generator().manual_seed(0)
        if (pixels := self.source.pixel_input) is not None:
            shape = (3, pixels.size, pixels.size)
            return [(torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=random),) for n in (2, 1, 5)]
        dim = getattr(getattr(self.matcher, "image", None), "size", None)
        if dim is None:
            raise UserError(
                "the shape of the stored features of this matcher is not known, so it cannot be exported; "
                "train on pixels to export"
            )
        return [(torch.randn(n, dim, generator=random),) for n in (2, 1, 5)]


class TextGraph(EncoderGraph):
    """Word indices (N, W) and their mask to unit vectors, through a frozen text encoder if there is one."""

    def __init__(self, matcher: Matcher, source: TextInput) -> None:
        super().__init__(with_padded_text(matcher))
        assert source.token_input is not None, "checked before"
        self.source, self.tokens = source, source.token_input
        self.network = _copy_for_export(source.network)
        self._original = [matcher]  # inside a list, so that its weights are not registered here
        longest = int(self.tokens.load([" ".join(SAMPLE_TEXTS * 200)]).lengths.max())
        self.inputs = (
            GraphInput("words", "indices of words or word pieces, as inputs/inputs.json says", longest),
            GraphInput("mask", "true for real words, false for padding", longest),
        )

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Return unit vectors (N, dim)."""
        rows = self.source.run_network(words, mask, self.network)
        return unit_length(self.matcher.encode_texts(rows, mask).vectors)

    def reference(self, *inputs: Tensor) -> Tensor:
        """Output of the original matcher, with packed sequences."""
        words, mask = inputs
        rows = self.source.run_network(words, mask, self.network)
        return unit_length(self._original[0].encode_texts(rows, mask).vectors)

    def samples(self) -> list[tuple[Tensor, ...]]:
        """Texts of several lengths with random inner words."""
        words, mask = self.tokens.texts(SAMPLE_TEXTS)
        last, positions = mask.sum(1, keepdim=True) - 1, torch.arange(words.shape[1])
        drawn = torch.randint(4, max(5, len(self.tokens)), words.shape, generator=torch.Generator().manual_seed(0))
        words = torch.where((positions > 0) & (positions < last), drawn, words)
        width = int(last[1:].max()) + 1
        return [(words, mask), (words[1:, :width], mask[1:, :width]), (words[:1], mask[:1])]


def with_padded_text(matcher: Matcher) -> Matcher:
    """Copy a matcher and replace its recurrent text towers by ones that work on padded words."""
    changed = copy.deepcopy(matcher)
    for name, module in matcher.named_modules():
        if isinstance(module, RecurrentText):
            parent, _, child = name.rpartition(".")
            setattr(changed.get_submodule(parent), child, PaddedRecurrentText(module))
    return changed.eval()


def _copy_for_export(network: nn.Module | None) -> nn.Module | None:
    return None if network is None else copy.deepcopy(network).cpu().eval()


def _check_inputs(inputs: Inputs) -> None:
    """Refuse inputs that no network computes."""
    computed = {
        f"image input '{inputs.images.kind}'": inputs.images.pixel_input or inputs.images.stored_name,
        f"text input '{inputs.texts.kind}'": inputs.texts.token_input,
    }
    for name, found in computed.items():
        if found is None:
            raise UserError(
                f"the {name} of this matcher is not computed by a network, so an ONNX graph cannot contain it; export "
                "a matcher that is trained on pixels or a backbone, and on words, word pieces or a text encoder"
            )


def _check_packages() -> None:
    for module in ("onnx", "onnxruntime", "onnxscript"):
        require(module, extra="export", purpose="export to ONNX")


def _write_graphs(matcher: Matcher, inputs: Inputs, folder: Path, int8: bool) -> dict[str, Any]:
    image, text = ImageGraph(matcher, inputs.images).eval(), TextGraph(matcher, inputs.texts).eval()
    return {
        "format": "calligram onnx",
        "score": "dot product of an image vector and a text vector, both of length one; higher is better",
        "weights": "int8" if int8 else "float32",
        "image": _export_checked(image, folder / "image.onnx", int8),
        "text": _export_checked(text, folder / "text.onnx", int8),
        "preparation": "inputs/inputs.json: how images become pixels and texts become word indices",
    }


def _export_checked(graph: EncoderGraph, file: Path, int8: bool) -> dict[str, Any]:
    """Write a graph, run the file on inputs of several shapes, and compare the outputs."""
    try:
        with torch.no_grad(), _silence_exporter():
            _export_graph(graph, file)
    except Exception as error:  # the exporter raises many types for operators it does not support
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
        entry.name: _describe_input(entry, tensor) for entry, tensor in zip(graph.inputs, samples[0], strict=True)
    }
    with torch.no_grad():
        output = {"type": "float32", "shape": ["batch", graph(*samples[0]).shape[1]]}
    found = {"file": file.name, "inputs": inputs, "output": {"vectors": output}, "largest_difference": difference}
    return {**found, "smallest_cosine": _quantize(graph, samples, file)} if int8 else found


def _quantize(graph: EncoderGraph, samples: list[tuple[Tensor, ...]], file: Path) -> float:
    """Replace a file by one with weights of eight bits; returns the smallest cosine of its vectors with the matcher's.

    Ranges of activations are measured for each batch (dynamic quantization), so no sample of the data is needed.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = file.with_suffix(".small")
    try:
        with _silence_exporter():
            model = onnx.load(file)
            del model.graph.value_info[:]  # the exporter leaves some shapes that the converter finds contradictory
            quantize_dynamic(model, small, weight_type=QuantType.QUInt8, op_types_to_quantize=QUANTIZED_OPERATORS)
        move_file(small, file)
        cosine = min(float((_run(graph, sample, file) * _reference(graph, sample)).sum(1).min()) for sample in samples)
    except Exception as error:  # the converter and the runtime raise many types for what they do not support
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UserError(f"the {file.stem} encoder has no form in eight bits ({reason[0]}); leave out --int8") from error
    if not cosine >= MIN_INT8_COSINE:
        raise UserError(
            f"in eight bits, vectors of the {file.stem} encoder have a cosine of {cosine:.2f} with those of "
            f"the matcher, less than {MIN_INT8_COSINE}; nothing was written, leave out --int8"
        )
    return cosine


def _describe_input(entry: GraphInput, tensor: Tensor) -> dict[str, Any]:
    shape = ["batch", "length"] if entry.longest else ["batch", *tensor.shape[1:]]
    limit = {"longest": entry.longest} if entry.longest else {}
    return {"type": str(tensor.dtype).removeprefix("torch."), "shape": shape, **limit, "about": entry.about}


def _export_graph(graph: EncoderGraph, file: Path) -> None:
    sample = graph.samples()[0]
    batch = torch.export.Dim("batch")
    axes = [
        {0: batch, 1: torch.export.Dim("length", min=2, max=entry.longest)} if entry.longest else {0: batch}
        for entry in graph.inputs
    ]
    torch.onnx.export(
        graph,
        sample,
        file,
        dynamo=True,
        verbose=False,
        input_names=[entry.name for entry in graph.inputs],
        output_names=["vectors"],
        dynamic_shapes=tuple(axes),
        external_data=sum(p.nbytes for p in graph.parameters()) > MAX_EMBEDDED_WEIGHT_BYTES,
    )


def _largest_difference(graph: EncoderGraph, sample: tuple[Tensor, ...], file: Path) -> float:
    return float((_run(graph, sample, file) - _reference(graph, sample)).abs().max())


def _run(graph: EncoderGraph, sample: tuple[Tensor, ...], file: Path) -> Tensor:
    """The vectors that onnxruntime computes with a file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    arrays = {entry.name: tensor.numpy() for entry, tensor in zip(graph.inputs, sample, strict=True)}
    return torch.from_numpy(session.run(None, arrays)[0])


def _reference(graph: EncoderGraph, sample: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        return graph.reference(*sample)


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress the exporter's log messages, which are meant for its developers."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
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
