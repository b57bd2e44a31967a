"""How a setting is declared and its value read; and settings that all programs share, such as the optimizer."""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from calligram.data.collection import Collection
from calligram.device import Precision
from calligram.errors import UserError
from calligram.records import parse_toml
from calligram.training.loop import BatchSource, Loop, Speed, Stage
from calligram.training.objectives.objective import Objective

FINITE = (-1e300, 1e300)
"""bounds of a number without bounds of its own; comparisons with NaN are false, so NaN is refused too"""
RARE = "rare"
"""marks a setting that few users change; ``calligram show`` prints it with ``--all`` only"""
FUSED_DEVICES = {"cpu", "cuda"}
"""types of devices where one kernel updates all weights of a kind; elsewhere each weight takes several"""
STAGES = "stages"
"""name of the field that holds stages"""
Seed = Annotated[int, "seed of all random numbers", (0, 2**62)]
EMADecay = Annotated[
    float, "decay of the exponential moving average of weights, which is evaluated and saved; 0 for none", (0, 0.999999)
]
LearningRate = Annotated[float, "learning rate", (0, 1000)]
Dim = Annotated[int, "dimension of the joint embedding space", (1, 65536)]


@dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    key: str
    """dotted, such as ``image.crop``"""
    type: Any
    default: object
    description: str
    bounds: tuple[float, float] | None = None
    """smallest and largest value"""
    rare: bool = False
    """whether few users change it"""
    inert: bool = False
    """whether it has no effect with the present values of other settings"""


@dataclass(frozen=True)
class StageSettings:
    """One stage of a schedule: the terms that it leaves out, what happens at its start, and changes to settings."""

    name: Annotated[str, "name of the stage in logs"] = ""
    without: Annotated[tuple[str, ...], "terms that this stage does not train"] = ()
    on_start: Annotated[
        tuple[Literal["mine", "restart"], ...],
        "what happens at the start: mine offline negatives with the best matcher so far (mine); set all weights back "
        "to their initial values (restart)",
    ] = ()
    resets_best: Annotated[bool, "select the best epoch from this stage on, without earlier stages"] = False
    changes: tuple[tuple[str, object], ...] = ()
    """other settings, by dotted key"""


STAGE_KEYS = tuple(f.name for f in fields(StageSettings) if f.name != "changes")


def stage(
    name: str = "",
    *,
    without: Sequence[str] = (),
    on_start: Sequence[Literal["mine", "restart"]] = (),
    resets_best: bool = False,
    changes: Mapping[str, object] | None = None,
    **more: object,
) -> StageSettings:
    """Return a stage; settings that it changes are keyword arguments, or dotted keys in ``changes``.

    >>> stage("stage II", epochs=8, changes={"image.train": True}).changes
    (('image.train', True), ('epochs', 8))
    """
    both = {**(changes or {}), **more}
    return StageSettings(name, tuple(without), tuple(on_start), resets_best, tuple(both.items()))


def declared_settings(settings: object, prefix: str = "") -> Iterator[tuple[Field[Any], Setting]]:
    """Yield the fields of a dataclass instance with their declarations."""
    hints = _type_hints(type(settings))  # type: ignore[arg-type]
    for item in fields(settings):  # type: ignore[arg-type]
        hint, description, rest = hints[item.name], "", []
        if get_origin(hint) is Annotated:
            hint, description, *rest = get_args(hint)
        bounds = next((each for each in rest if isinstance(each, tuple)), None)
        value = getattr(settings, item.name)
        yield item, Setting(prefix + item.name, hint, value, description, bounds, rare=RARE in rest)


@cache
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass; evaluated once, since it takes long."""
    return get_type_hints(kind, include_extras=True)


def parse(raw: object, setting: Setting) -> object:
    """Return the value of a setting from text, or from a value of TOML or JSON; a UserError says what is accepted."""
    low, high = setting.bounds or FINITE
    try:
        value = convert(raw, setting.type)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float | int) and not low <= number <= high:
                raise ValueError
    except (ValueError, TypeError, OverflowError):
        range_ = f" from {low:g} to {high:g}" if setting.bounds else ""
        raise UserError(f"setting {setting.key} takes {_type_name(setting.type)}{range_}, got {raw!r}") from None
    return value


def convert(raw: object, kind: Any) -> object:
    """Convert text, or a value of TOML or JSON, to a type; raise ValueError or TypeError where that is impossible."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in inside and (raw is None or (isinstance(raw, str) and raw.lower() in ("none", ""))):
            return None
        *others, last = (k for k in inside if k is not type(None))
        for other in others:
            with contextlib.suppress(ValueError, TypeError):
                return convert(raw, other)
        return convert(raw, last)
    if origin is Literal:
        if raw not in inside:
            raise ValueError
        return raw
    if origin is tuple:
        items = [i for i in raw.strip("()[] ").split(",") if i.strip()] if isinstance(raw, str) else list(raw)  # type: ignore[call-overload]
        kinds = [inside[0]] * len(items) if inside[-1] is Ellipsis else list(inside)
        if len(kinds) != len(items):
            raise ValueError
        return tuple(convert(i.strip() if isinstance(i, str) else i, k) for i, k in zip(items, kinds, strict=True))
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return raw if isinstance(raw, bool) else words[str(raw).lower()] if str(raw).lower() in words else _refuse()
    if kind is int:
        return int(raw) if not isinstance(raw, bool) and float(raw) == int(float(raw)) else _refuse()  # type: ignore[arg-type,call-overload]
    if kind is float:
        return float(raw)  # type: ignore[arg-type]
    return str(raw)


def _refuse() -> object:
    raise ValueError


def _type_name(kind: Any) -> str:
    """Describe the accepted values of a type, for an error message."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(map(str, inside))
    if origin is tuple:
        several = {int: "whole numbers", float: "numbers"}.get(inside[0], "words")
        if get_origin(inside[0]) is Literal:
            several += f" ({', '.join(map(str, get_args(inside[0])))})"
        return f"{several if inside[-1] is Ellipsis else f'{len(inside)} {several}'} separated by commas"
    if origin in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else _type_name(k) for k in inside)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, str(kind))


def read_toml(file: Path) -> list[tuple[str, object]]:
    """Read a TOML file as values by dotted key."""
    try:
        return flatten(parse_toml(file))
    except (OSError, ValueError) as error:
        raise UserError(f"settings file {file} could not be read: {error}") from error


def flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Return nested values by dotted key; a list of tables has the numbers of its entries, from 1, in the keys."""
    out: list[tuple[str, object]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out += flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value, 1):
                # A stage without any setting exists too.
                out += flatten(each, f"{prefix}{key}.{number}.") or [(f"{prefix}{key}.{number}.name", "")]
        else:
            out.append((prefix + key, value))
    return out


@dataclass(frozen=True)
class SparseSettings:
    """How much of the training captions a run uses (a3vse, Sec. 4.1)."""

    images: Annotated[float, "share of the captioned training images that keep captions", (0, 1), RARE] = 1.0
    captions: Annotated[
        int | None, "number of captions that each of these images keeps; none for all", (1, 1000000), RARE
    ] = None
    seed: Annotated[
        int | None,
        "seed of the selection: with one seed, a smaller share is part of a larger one; none for the seed of the run",
        (0, 2**62),
        RARE,
    ] = None
    length: Annotated[
        Literal["as-set", "extended", "half"],
        "length of training: as set (as-set), more epochs with fewer captions (extended), or half of the steps of "
        "all captions in as many epochs (half; not where steps is given)",
    ] = "as-set"
    run: Annotated[
        str, "folder of a run that suggests further training images; its own training images are kept too", RARE
    ] = ""
    more: Annotated[float, "share of the captioned training images that sparse.run adds", (0, 1)] = 0.0
    uncertainty: Annotated[float, "weight of the uncertainty of sparse.run against coverage", (0, 1)] = 0.5

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        whole = {"seed", "length"} if self.images == 1 and self.captions is None and not self.run else set()
        return frozenset(whole | (set() if self.run else {"more", "uncertainty"}))

    def __post_init__(self) -> None:
        if bool(self.run) != bool(self.more):
            raise UserError(
                "sparse.run names the run that suggests further images, and sparse.more their share; give both or none"
            )

    def of(self, collection: Collection, seed: int = 0, device: str | torch.device = "cpu") -> Collection:
        """Return the part of a collection that these settings keep.

        Args:
            seed: seed of the run, used where ``self.seed`` is None.
            device: device of the run that suggests further images.
        """
        if self.images == 1 and self.captions is None and not self.run:
            return collection
        from calligram.data.sparse import Sparsity, sparse_view
        from calligram.evaluation.seen_captions import view_with_suggested_captions

        sparsity = Sparsity(self.images, self.captions, seed if self.seed is None else self.seed)
        if not self.run:
            return sparse_view(collection, sparsity)
        return view_with_suggested_captions(
            collection, sparsity, self.run, more=self.more, uncertainty=self.uncertainty, device=device
        )


@dataclass(frozen=True)
class RunSettings:
    """Settings of every run."""

    seed: Seed = 0
    sparse: SparseSettings = field(default_factory=SparseSettings)

    @property
    def teachers(self) -> dict[str, str]:
        """Other runs that this run learns from or contains, by the setting that names each."""
        return {}


@dataclass(frozen=True)
class TrainedSettings(RunSettings):
    """Settings of every run that trains in steps."""

    precision: Annotated[Precision, "floating-point precision of the network", RARE] = "fp32"
    speed: Annotated[
        Speed,
        "auto: fused kernels, CUDA graphs and compilation where they pay; plain: none; cached: batches in pieces "
        "of 32, for less memory",
        RARE,
    ] = "auto"
    ema_decay: EMADecay = 0.99
    save_steps: Annotated[
        int, "number of steps between saved states, besides one after every epoch; 0 for none", (0, 1000000000), RARE
    ] = 0

    def loop(self, select_by: str = "rsum") -> Loop:
        """Return the settings of the training loop."""
        return Loop(self.seed, self.precision, self.ema_decay, select_by, self.save_steps, speed=self.speed)


@dataclass(frozen=True)
class Optimisation:
    """Settings of the optimizer and of the learning-rate schedule."""

    optimizer: Annotated[Literal["adamw", "adam", "sgd"], "optimizer; sgd has momentum"] = "adamw"
    momentum: Annotated[float, "momentum of sgd", (0, 0.9999), RARE] = 0.9
    nesterov: Annotated[bool, "use Nesterov momentum with sgd", RARE] = True
    weight_decay: Annotated[float, "weight decay", (0, 100)] = 0.01
    schedule: Annotated[Literal["cosine", "step", "constant"], "learning-rate schedule over a stage"] = "cosine"
    step_epochs: Annotated[
        int,
        "number of epochs between two steps of schedule=step, which divide the rate by ten",
        (1, 1000000),
    ] = 10
    warmup: Annotated[float, "share of the stage in which the rate rises from zero", (0, 0.99), RARE] = 0.1
    clip: Annotated[float | None, "largest norm of the gradient; none for no clipping", (1e-12, 1e12), RARE] = 2.0
    accumulate: Annotated[int, "number of batches whose gradients are added for one step", (1, 1000000), RARE] = 1
    lr_scale: Annotated[
        tuple[str, ...], "factors on the learning rate by part of the matcher, such as image:0.1,text:1", RARE
    ] = ()
    frozen: Annotated[tuple[str, ...], "parts of the matcher that are not trained, such as image", RARE] = ()

    @property
    def inert(self) -> frozenset[str]:
        """Settings without effect."""
        without = set() if self.optimizer == "sgd" else {"momentum", "nesterov"}
        return frozenset(without | (set() if self.schedule == "step" else {"step_epochs"}))

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UserError(f"accumulate must be at least 1, got {self.accumulate}")
        if not 0 <= self.warmup < 1:
            raise UserError(f"warmup is a share of the stage, from 0 to below 1, got {self.warmup}")
        self.part_lr()

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Return the optimizer over parameter groups."""
        if self.optimizer == "sgd":
            nesterov = self.nesterov and self.momentum > 0
            return torch.optim.SGD(
                groups, lr=0.0, momentum=self.momentum, nesterov=nesterov, weight_decay=self.weight_decay
            )
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        fused = {p.device.type for group in groups for p in group["params"]} <= FUSED_DEVICES
        return kind(groups, lr=0.0, weight_decay=self.weight_decay, fused=fused)

    def factor(self, epochs: int) -> Callable[[float], float]:
        """Return the factor on the learning rate as a function of progress, 0 to 1, in a stage of some epochs."""
        return partial(self._factor_at, epochs)

    def _factor_at(self, epochs: int, progress: float) -> float:
        rise = min(1.0, progress / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            rest = max(0.0, (progress - self.warmup) / (1 - self.warmup))
            return rise * 0.5 * (1 + math.cos(math.pi * rest))
        if self.schedule == "step":
            return rise * 0.1 ** int(progress * epochs / self.step_epochs)
        return rise

    def stage(
        self, name: str, epochs: int, objective: Objective, batches: BatchSource, lr: float, frozen: Sequence[str] = ()
    ) -> Stage:
        """Return a stage of training with these settings of the optimizer."""
        return Stage(
            name, epochs, objective, batches, self.build, lr, self.part_lr(), (*frozen, *self.frozen),
            self.factor(epochs), self.clip, self.accumulate,
        )  # fmt: skip

    def part_lr(self) -> dict[str, float]:
        """Return the factors on the learning rate by part of the matcher."""
        out = {}
        for part in self.lr_scale:
            name, sign, factor = part.partition(":")
            try:
                out[name.strip()] = float(factor)
            except ValueError:
                sign = ""
            if not sign:
                raise UserError(f"optim.lr_scale takes NAME:FACTOR separated by commas, got '{part}'")
        return out
