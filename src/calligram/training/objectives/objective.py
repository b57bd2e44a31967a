"""Objectives: losses of a batch as named terms, the weights that they train, and the collapse detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from calligram.device import uses_cuda_graphs
from calligram.errors import UserError
from calligram.features.texts.vocabulary import known_lengths
from calligram.losses.contrastive import symmetric_info_nce
from calligram.losses.ranking import bidirectional_ranking_loss
from calligram.models.matcher import Encoded, Matcher
from calligram.training.batches.batch import Batch
from calligram.training.cuda_graphs import run_with_cuda_graphs
from calligram.training.distributed import gather, is_single_process
from calligram.vectors import unit_length

if TYPE_CHECKING:  # importing ensembles would import networks that other matchers do not need
    from calligram.models.ensemble import Ensemble

Loss = Callable[[Tensor, Tensor], Tensor]
"""a loss of scores (A, C) and targets (A, C): +1 match, -1 negative, 0 ignored; rows are anchors"""
NOT_FINITE_ADVICE = (
    "lower the learning rate (--set lr=...), clip gradients (--set optim.clip=1), or use --set precision=fp32"
)
"""what to do after a loss that is not finite; part of error messages"""


@dataclass
class VectorSpread:
    """Spread of the vectors of a batch: 1 minus the squared length of the mean unit vector. Zero is a collapse."""

    images: Tensor
    texts: Tensor

    @classmethod
    def of(cls, images: Encoded, texts: Encoded) -> VectorSpread:
        """Measure the spread of detached vectors."""
        one, two = (1 - unit_length(e.vectors.detach()).mean(0).square().sum() for e in (images, texts))
        return cls(one, two)


class Objective(nn.Module):
    """A loss as named terms; training minimises their sum."""

    progress: float = 0.0
    """share of the stage that is done, 0 .. 1; set by the training loop"""

    def __init__(self) -> None:
        super().__init__()
        self.measures: dict[str, Tensor] = {}
        """measures of the last batch, which are logged and not minimised; names of error rates end in ``_error``"""
        self._names: tuple[list[str], list[str]] = [], []
        """names of the terms and of the measures that are captured"""
        self._spread: VectorSpread | None = None
        self._encoded: tuple[Encoded, Encoded] | None = None
        """vectors of the last batch until their spread is read"""

    @property
    def spread(self) -> VectorSpread | None:
        """Spread of the last batch, for the collapse detector.

        It is computed on use, because on a GPU it is read after few steps only.
        """
        if self._encoded is not None:
            self._spread, self._encoded = VectorSpread.of(*self._encoded), None
        return self._spread

    @spread.setter
    def spread(self, spread: VectorSpread | None) -> None:
        self._spread, self._encoded = spread, None

    def set_progress(self, progress: float) -> None:
        """Set the progress of this objective and of all objectives inside it.

        Progress depends on epoch and step only, so that a resumed run has the same values.
        """
        for module in self.modules():
            if isinstance(module, Objective):
                module.progress = progress

    @property
    def graph_safe(self) -> bool:
        """Whether the terms can be captured in a CUDA graph: they never wait for the device, and depend only on tensors
        of the batch and on parameters, not on progress.
        """
        return False

    def forward(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of one batch."""
        if self.graph_safe and is_single_process() and uses_cuda_graphs(batch.images):
            return self._forward_with_graphs(matcher, batch)
        return self.terms(matcher, batch, *self.encode(matcher, batch))

    def passes(self, matcher: Matcher, batch: Batch) -> Iterator[dict[str, Tensor]]:
        """Yield the terms of one batch in groups; the backward pass of a group can run before the next is computed."""
        yield self(matcher, batch)

    def _forward_with_graphs(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        """The same with CUDA graphs, from encoders to terms; a graph is captured when a shape comes again."""
        given = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}

        def compute(*tensors: Tensor) -> Tensor:
            changed = replace(batch, **dict(zip(given, tensors, strict=True)))  # type: ignore[arg-type]
            terms = self.terms(matcher, changed, *self.encode(matcher, changed))
            assert self.spread is not None
            self._names = list(terms), list(self.measures)
            found = *terms.values(), *self.measures.values(), self.spread.images, self.spread.texts
            return torch.stack([t.float() for t in found])

        found = run_with_cuda_graphs(self, [matcher], compute, list(given.values()), batch.paired_counts)
        *numbers, images, texts = found.unbind()
        self.spread = VectorSpread(images.detach(), texts.detach())
        names, measured = self._names
        self.measures = {k: v.detach() for k, v in zip(measured, numbers[len(names) :], strict=True)}
        return dict(zip(names, numbers, strict=False))

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return the terms of a batch from its encodings."""
        raise NotImplementedError

    def encode(self, matcher: Matcher, batch: Batch) -> tuple[Encoded, Encoded]:
        """Encode images and texts of the whole batch, gathered from all processes."""
        images = matcher.encode_images(batch.images)
        with known_lengths(batch.text_lengths):
            texts = matcher.encode_texts(batch.texts, batch.text_mask)
        if not is_single_process():
            images, texts = gather(images), gather(texts)
        self._encoded = Encoded(images.vectors.detach()), Encoded(texts.vectors.detach())
        return images, texts


class RankingObjective(Objective):
    """Bidirectional triplet hinge, by default over all negatives (vse++'s sum), with ``top_k=1`` over the hardest.

    With a margin of 1 and one negative per anchor this is Eq. 4 of the dual-path paper (dual-path, Eq. 4). The paper
    does not say which negative; its release takes the hardest of some for images and a random one for texts.

    Departs from the papers' sum: divided by the number of positive pairs, so that the learning rate does not depend on
    the batch size.
    """

    def __init__(self, margin: float = 0.2, top_k: int | None = None, *, draw: bool = False) -> None:
        """Args:
        draw: use a random negative for each anchor instead.
        """
        super().__init__()
        self.margin, self.top_k, self.draw = margin, top_k, draw

    @property
    def graph_safe(self) -> bool:
        """With the hardest negatives, whose number is the same in every batch."""
        return self.top_k == 1 and not self.draw

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        scores = matcher.score(images, texts)
        image_target, text_target = batch.image_target, batch.text_target
        if self.draw:
            image_target, text_target = keep_one_negative(image_target), keep_one_negative(text_target)
        loss = bidirectional_ranking_loss(scores, image_target, text_target, margin=self.margin, top_k=self.top_k)
        return {"ranking": loss / (batch.image_target > 0).sum().clamp(min=1)}


class InfoNCEObjective(Objective):
    """Symmetric InfoNCE with a learnt temperature, limited to 0.01 .. 1."""

    def __init__(self, temperature: float = 0.07, learn: bool = True) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn)

    @property
    def graph_safe(self) -> bool:
        """For this class, not for subclasses."""
        return type(self) is InfoNCEObjective

    @property
    def temperature(self) -> Tensor:
        """Divisor of the scores."""
        return self.log_scale.clamp(0.0, math.log(100)).neg().exp()

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        scores = matcher.score(images, texts)
        loss = symmetric_info_nce(scores, batch.image_target, batch.text_target, temperature=self.temperature)
        return {"info_nce": loss}


class LossObjective(Objective):
    """The mean of a loss with images as anchors and with texts as anchors."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return one term."""
        scores = matcher.score(images, texts)
        return {"loss": (self.loss(scores, batch.image_target) + self.loss(scores.T, batch.text_target)) / 2}


class JointObjective(Objective):
    """Weighted sum of objectives over the same encodings, such as ranking and instance loss (dual-path, Eq. 9)."""

    def __init__(self, *parts: tuple[float, Objective]) -> None:
        """Args:
        parts: objectives with their weights; objectives of weight zero are left out.
        """
        super().__init__()
        self.weights = [weight for weight, _ in parts if weight]
        self.parts = nn.ModuleList(objective for weight, objective in parts if weight)
        if not self.weights:
            raise ValueError("all weights are zero, so there is nothing to minimise; give at least one weight")

    @property
    def graph_safe(self) -> bool:
        """If all objectives are."""
        return all(isinstance(part, Objective) and part.graph_safe for part in self.parts)

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return the terms of all objectives."""
        found: dict[str, Tensor] = {}
        self.measures = {}
        for weight, part in zip(self.weights, self.parts, strict=True):
            assert isinstance(part, Objective)
            found |= {name: weight * term for name, term in part.terms(matcher, batch, images, texts).items()}
            self.measures |= part.measures
        return found


def keep_one_negative(target: Tensor) -> Tensor:
    """Keep one random negative in each row of a target (A, C); the other negatives become ignored."""
    chance = torch.rand(target.shape, device=target.device).masked_fill(target >= 0, -1.0)
    drawn = torch.zeros_like(target, dtype=torch.bool).scatter(1, chance.argmax(1, keepdim=True), True)
    return torch.where((target < 0) & ~drawn, torch.zeros_like(target), target)


class EnsembleObjective(Objective):
    """Sum of the separate losses of ensemble members.

    All members are trained on the same batches and independently, so that each learns as if it were alone.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        """Args:
        objectives: one for each ensemble member.
        """
        super().__init__()
        self.objectives = nn.ModuleList(objectives)

    @property
    def graph_safe(self) -> bool:
        """If the objectives of all members are."""
        return all(isinstance(each, Objective) and each.graph_safe for each in self.objectives)

    def terms(self, matcher: Matcher, batch: Batch, images: Encoded, texts: Encoded) -> dict[str, Tensor]:
        """Return the terms of every member, with its number from 1 on as a prefix."""
        members = cast("Ensemble", matcher).by_member(images, texts)
        self.measures = {}
        groups = [self._member_terms(number, batch, member) for number, member in enumerate(members, 1)]
        return {name: term for group in groups for name, term in group.items()}

    def passes(self, matcher: Matcher, batch: Batch) -> Iterator[dict[str, Tensor]]:
        """Yield the terms of one member after the other, so that the activations of one at a time are in memory.

        Together they are the terms of ``forward``. Members that share networks or a CUDA graph are one group.
        """
        ensemble = cast("Ensemble", matcher)
        graphs = self.graph_safe and uses_cuda_graphs(batch.images)
        if ensemble.shares_networks or graphs or not is_single_process():
            yield self(matcher, batch)
            return
        self.measures, encoded = {}, []
        members = ensemble.encode_separately(batch.images, batch.texts, batch.text_mask, batch.text_lengths)
        for number, (member, images, texts) in enumerate(members, 1):
            encoded.append((images.vectors.detach(), texts.vectors.detach()))
            yield self._member_terms(number, batch, (member, images, texts))
        one, two = (Encoded(torch.cat(side, dim=-1)) for side in zip(*encoded, strict=True))
        self._encoded = one, two

    def _member_terms(self, number: int, batch: Batch, encoded: tuple[Matcher, Encoded, Encoded]) -> dict[str, Tensor]:
        objective = self.objectives[number - 1]
        assert isinstance(objective, Objective)
        member, images, texts = encoded
        own = objective.terms(member, batch, images, texts)
        self.measures |= {f"{number}_{name}": value for name, value in objective.measures.items()}
        return {f"{number}_{name}": term for name, term in own.items()}


def parameter_groups(
    matcher: Matcher, objective: nn.Module, lr_scale: Mapping[str, float], frozen: Sequence[str]
) -> list[dict[str, Any]]:
    """Group parameters by their factor on the learning rate: the matcher's modules, then the objective's own weights.

    Args:
        lr_scale: factors by name of a sub-module; the longest matching name wins.
        frozen: sub-modules that are not trained.
    """
    check_parameter_groups(matcher, (*lr_scale, *frozen))
    by_factor: dict[float, list[nn.Parameter]] = {}
    adapted = tuple(f"{name}." for name, part in matcher.named_modules() if hasattr(part, "adapter_rank"))
    for name, parameter in matcher.named_parameters():
        fixed = name.startswith(tuple(f"{part}." for part in frozen))
        fixed = fixed or (name.startswith(adapted) and ".lora_" not in name)  # of these, only adapters are trained
        parameter.requires_grad_(not fixed)
        if not fixed:
            within = [part for part in lr_scale if name.startswith(f"{part}.")]
            factor = lr_scale[max(within, key=len)] if within else 1.0
            by_factor.setdefault(factor, []).append(parameter)
    groups = [{"params": params, "factor": factor} for factor, params in by_factor.items()]
    own = [p for p in objective.parameters() if p.requires_grad]
    return [*groups, {"params": own, "factor": 1.0}] if own else groups


def check_parameter_groups(matcher: Matcher, named: Iterable[str]) -> None:
    """Refuse names of modules that the matcher does not have."""
    names = dict(matcher.named_modules())
    for part in named:
        if part not in names:
            tops = ", ".join(name for name, _ in matcher.named_children())
            raise UserError(
                f"the matcher has no module '{part}'; it has: {tops}, and their sub-modules by dotted names"
            )


def freeze_statistics(matcher: Matcher, frozen: Sequence[str]) -> None:
    """Put frozen modules into evaluation mode, so that batch normalisation does not update its statistics."""
    for name in frozen:
        matcher.get_submodule(name).eval()


class CollapseDetector:
    """Checks the loss and the spread of the vectors at every step.

    Networks start with vectors close together. So the run stops only after ``patience`` steps, and only if the spread
    was below ``min_spread`` in the last ``patience`` steps. Hard negatives from the start move all vectors to one
    point, where the loss stays at twice the margin.
    """

    def __init__(self, min_spread: float = 1e-4, patience: int = 100) -> None:
        self.min_spread, self.patience, self._below, self._checked = min_spread, patience, 0, 0

    def check(self, step: int, terms: Mapping[str, float], spread: VectorSpread | None) -> None:
        """Raise an error if the loss is not finite or the embeddings have collapsed."""
        broken = [name for name, value in terms.items() if not math.isfinite(value)]
        if broken:
            raise UserError(
                f"the loss is not finite at step {step} ({_list_terms(broken, terms)}); {NOT_FINITE_ADVICE}"
            )
        if spread is None:
            return
        self._checked += 1
        modality, smallest = min((("images", float(spread.images)), ("texts", float(spread.texts))), key=lambda s: s[1])
        self._below = self._below + 1 if smallest < self.min_spread else 0
        if self._checked >= self.patience and self._below >= self.patience:
            raise UserError(
                f"the embeddings collapsed: at step {step} all {modality} have the same vector "
                f"(spread {smallest:.1e}). Hard negatives from the start cause this; warm up with all negatives "
                "(--set warmup_epochs=2), "
                "or lower the learning rate (--set lr=...)"
            )


def _list_terms(names: list[str], terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={terms[name]}" for name in names)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of an optimiser as named tensors: ``number.name`` for each parameter."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the output of ``optimizer_tensors``; learning rates come from the schedule."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    whole = optimizer.state_dict()
    whole["state"] = state
    optimizer.load_state_dict(whole)
    # Files do not keep the memory layout, and fused optimizers need the layout of the parameters.
    for parameter, own in optimizer.state.items():
        for name, value in own.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                own[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
