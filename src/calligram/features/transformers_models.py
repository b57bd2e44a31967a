"""Load ``transformers`` models, and describe their architecture as JSON.

A saved matcher holds the description, so that it can be opened without the hub and without the original folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calligram.device import compile_enabled, device_of, half_networks_on, half_precision
from calligram.errors import UserError
from calligram.extras import require
from calligram.hub import look_for_hub

log = logging.getLogger(__name__)

# Keys about the origin and the storage of a model, and class names that are not used here. The dtype is ignored because
# a model built with it would have half-precision weights, which cannot be trained.
_IGNORED_CONFIG_KEYS = frozenset(
    ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "id2label", "label2id")
)


def describe_architecture(config: Any) -> str:
    """Return the complete configuration as JSON, so that new defaults of ``transformers`` do not change it."""
    return json.dumps(_without_ignored_keys({**config.to_dict(), "model_type": config.model_type}), sort_keys=True)


def architecture_config(description: str) -> Any:
    """Return the configuration from the JSON of ``describe_architecture``."""
    from transformers import AutoConfig

    content = json.loads(description)
    return AutoConfig.for_model(content.pop("model_type"), **content)


def build_model(description: str) -> Any:
    """Build the described model with random weights, in float32."""
    from transformers import AutoModel

    return AutoModel.from_config(architecture_config(description), dtype=torch.float32)


def load_model(kind: Any, name: str, *, what: str, optional: tuple[str, ...] = ()) -> Any:
    """Load a trained model from a folder or by a hub name, in float32.

    Args:
        kind: class with ``from_pretrained``, such as ``AutoModel``.
        what: role of the model, for error messages.
        optional: name prefixes of weights that the file may lack.

    Raises:
        UserError: when there is no such model, or when the file lacks weights, which would then be random.
    """
    look_for_hub(name)
    try:
        with quiet_transformers():
            model, report = kind.from_pretrained(name, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise loading_error(what, name, error) from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(optional))
    if missing:
        raise UserError(
            f"{what} '{name}' lacks weights: {', '.join(missing[:3])} ({len(missing)} in total); give a complete model"
        )
    return without_overflow(model, name)


def without_overflow(model: Any, name: str) -> Any:
    """Replace infinite weights by the largest number of half precision, and return the model.

    A file in half precision has such weights where a number was too large for it, such as a variance of batch norm.
    The channel would then be constant, and averages of weights over training steps would not be finite.
    """
    largest = torch.finfo(torch.float16).max
    for key, values in model.state_dict().items():
        if values.is_floating_point() and values.isinf().any():
            log.info("%s of '%s' is infinite in %d places; it is set to %g", key, name, values.isinf().sum(), largest)
            values.detach().clamp_(-largest, largest)  # shares memory with the model
    return model


def loading_error(what: str, name: str, error: Exception, kind: str = "") -> UserError:
    """Return an error that names the model, the reason (its first line) and the accepted formats and kind of model."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        reason = "there is no such folder"
    hint = f"give a folder or a hub name {kind and f'of {kind} '}in transformers format"
    if "couldn't connect" in reason:
        hint = "run the command again with a network connection, or give the folder of a model"
    return UserError(f"{what} '{name}' could not be loaded ({reason}); {hint}")


@torch.no_grad()
def shapes_of_output(network: nn.Module, inputs: Tensor) -> Any:
    """The output of a network in evaluation mode, for its shapes; its numbers may be unknown.

    Only shapes are computed, because the images of some networks are so large that a pass takes seconds. A network that
    reads numbers is run.
    """
    training, weights = network.training, chain(network.named_parameters(), network.named_buffers())
    network.eval()
    try:
        return functional_call(network, {name: each.to("meta") for name, each in weights}, inputs.to("meta"))
    except RuntimeError:
        return network(inputs.to(device_of(network)))
    finally:
        network.train(training)


@contextlib.contextmanager
def explained_size(model: Any, pixels: Tensor) -> Iterator[None]:
    """Turn the error of an image network that does not accept the size of its images into one for the user."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        if not any(words in reason.lower() for words in ("image size", "kernel size", "output size is too small")):
            raise
        own = getattr(model.config, "image_size", None)
        todo = f"its own size is {own}" if isinstance(own, int) else "give a larger size"
        size = " x ".join(map(str, pixels.shape[-2:]))
        raise UserError(
            f"the image network does not accept images of {size} pixels ({reason}); {todo} (setting image.size, or "
            "--size of calligram regions)"
        ) from error


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress progress bars and reports of ``transformers``."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


GROUP_IMAGES = 8
"""images that a thread of a CPU encodes at once: the feature maps of more do not stay in its cache"""
LAYER_COMPILE_SECONDS = 20.0
"""how long it takes to compile one layer of a transformer with its backward pass"""
_NOT_COMPILED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""models whose layers could not be compiled"""
_COMPILED_SHAPES: weakref.WeakKeyDictionary[nn.Module, torch.Size | None] = weakref.WeakKeyDictionary()
"""shape of the inputs for which the layers of a model are compiled; None for all"""


def transformer_layers(model: Any) -> list[nn.Module]:
    """Return the layers of a transformer, which run the same code with different weights; none for other networks."""
    count = getattr(model.config, "num_hidden_layers", 0)
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
    return next((list(layers) for layers in lists if len({type(layer) for layer in layers}) == 1), [])


def inference_groups(network: nn.Module, pixels: Tensor) -> Sequence[Tensor]:
    """Divide a batch of images into groups that a network encodes one after the other; one group in training.

    On a CPU with two threads that encode 64 images each, groups make an EfficientNet-Lite2 1.9 times as fast, and a
    ViT-S 1.14 times (``bench/image_groups.py``).
    """
    one_group = network.training or torch.is_grad_enabled() or torch.compiler.is_exporting()
    if one_group or pixels.device.type != "cpu":
        return (pixels,)
    return torch.split(pixels, GROUP_IMAGES * torch.get_num_threads())


def network_precision(model: Any, tensor: Tensor) -> AbstractContextManager[object]:
    """Return the context in which a model runs: that of ``half_precision`` for a transformer that is not trained.

    A transformer is a model whose ``transformer_layers`` are found. Its states become float32 again, and all that
    follows is computed in float32. A model that is trained runs as the loop says. Convolutional networks lose too much:
    the recall of an EfficientNet-Lite2 fell by 2 of 290 points (``bench/network_precision.py``).
    """
    allowed = half_networks_on() and not torch.is_grad_enabled() and transformer_layers(model)
    return half_precision(tensor.device) if allowed else nullcontext()


def run_with_compiled_layers(model: Any, run: Callable[[], Any], *, shape: torch.Size | None = None) -> Any:
    """Run a transformer; in training its layers are compiled while compilation is on.

    The compiler reuses the code of the first layer for all others, so that it takes seconds where a whole network takes
    a minute. Layers that cannot be compiled run without compilation, which is logged once.

    Args:
        shape: shape of the inputs, if one shape is frequent. The code is then for the first shape, which is faster, and
            other shapes run without compilation. None for code for all shapes.
    """
    layers = transformer_layers(model)
    trained = model.training and torch.is_grad_enabled() and model not in _NOT_COMPILED
    if not (layers and trained and compile_enabled(LAYER_COMPILE_SECONDS)):
        return _run_as_it_is(layers, run)
    if _COMPILED_SHAPES.setdefault(model, shape) != shape:
        return _run_as_it_is(layers, run)
    try:
        for layer in layers:
            if layer._compiled_call_impl is None:
                # With this option dropout draws the numbers of plain steps.
                layer.compile(dynamic=shape is None, options={"fallback_random": True})
        return run()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers raise many types
        log.info("%s cannot be compiled and runs without compilation: %s", type(layers[0]).__name__, error)
        _NOT_COMPILED.add(model)
        return _run_as_it_is(layers, run)


def _run_as_it_is(layers: list[nn.Module], run: Callable[[], Any]) -> Any:
    """Run without compilation: evaluation has other shapes, and each would be compiled."""
    if not layers or layers[0]._compiled_call_impl is None:
        return run()
    with torch.compiler.set_stance("force_eager"):
        return run()


ADAPTER_SCALE = 2.0
"""factor on the product of an adapter's matrices (alpha / rank); constant, so that weights tell how to merge them"""
BASE_PART, DOWN_PART, UP_PART = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"
"""parts of the names of weights that ``peft`` gives to a layer and to the two matrices of its adapter"""


def add_adapters(model: nn.Module, rank: int) -> None:
    """Add a LoRA adapter to every linear layer of a model (Hu et al., 2022); only adapters are then trained.

    A layer W becomes W + 2 B A with matrices of ``rank`` columns and rows. B begins with zeros, so that nothing changes
    before the first step.

    Raises:
        UserError: when ``peft`` is not installed, or the model has no linear layer.
    """
    peft = require("peft", extra="lora", purpose="training with adapters")
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        raise UserError(
            f"{type(model).__name__} has no linear layer for an adapter; leave out image.lora and text.lora"
        )
    config = peft.LoraConfig(r=rank, lora_alpha=ADAPTER_SCALE * rank, lora_dropout=0.0, target_modules=names)
    peft.inject_adapter_in_model(config, model)
    model.adapter_rank = rank  # type: ignore[assignment]  # training looks for it: the other weights are fixed


def merged_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with adapters added to their layers, under the names that the model has without adapters."""
    merged = {}
    for name, value in weights.items():
        if name.endswith((DOWN_PART, UP_PART)):
            continue
        layer, base, _ = name.partition(BASE_PART)
        if base and name.endswith(".weight") and layer + UP_PART in weights:
            up, down = weights[layer + UP_PART], weights[layer + DOWN_PART]
            value = value + (ADAPTER_SCALE * up.float() @ down.float()).to(value.dtype)
        merged[name.replace(BASE_PART, ".")] = value
    return merged


def load_merged_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights without adapters into a module that may have them; its adapters then begin with zeros again."""
    state = module.state_dict()
    for name, value in state.items():
        if name.endswith(UP_PART):
            value.zero_()
        elif not name.endswith(DOWN_PART):
            state[name] = weights[name.replace(BASE_PART, ".")]
    module.load_state_dict(state)


def _without_ignored_keys(content: dict[str, Any]) -> dict[str, Any]:
    return {
        k: _without_ignored_keys(v) if isinstance(v, dict) else v
        for k, v in content.items()
        if k not in _IGNORED_CONFIG_KEYS
    }
