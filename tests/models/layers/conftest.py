"""Fused kernels run by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from calligram import device, models
from calligram.models import mmca
from calligram.models.layers import attending_gru, cross_attention, transformer_unit


@pytest.fixture
def interpreted(monkeypatch):
    """Modules of kernels that the interpreter runs, also for tensors of the CPU; by the last part of their names."""
    import triton.language as tl
    from triton.runtime import interpreter

    monkeypatch.setenv("TRITON_INTERPRET", "1")  # after the import, or Triton's own functions never compile again
    multiply, patch_tensor = interpreter.InterpreterBuilder.create_dot, interpreter._patch_lang_tensor

    def in_float32(handle):
        """The interpreter keeps bfloat16 as integers, and would multiply those."""
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype("uint32") << 16).view("float32"), tl.float32)

    def patch_index(tensor, scope):
        """The interpreter makes a number of an array of one element, which new versions of numpy refuse."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda self, one, two, *others: multiply(self, in_float32(one), in_float32(two), *others),
    )
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_index)
    before, missing, set_attribute = {}, object(), interpreter._LangPatchScope.set_attr

    def remember(scope, owner, name, value):
        """The interpreter replaces functions of Triton, and leaves some of them so; kernels then do not compile."""
        before.setdefault((owner, name), getattr(owner, name, missing))
        set_attribute(scope, owner, name, value)

    monkeypatch.setattr(interpreter._LangPatchScope, "set_attr", remember)
    # Triton's own functions are compiled ones.
    monkeypatch.setattr(tl, "sum", lambda values, axis: tl.reduce(values, axis, tl.standard._sum_combine))
    monkeypatch.setattr(tl, "max", lambda values, axis: tl.reduce(values, axis, tl.standard._elementwise_max))
    monkeypatch.setattr(device, "_KERNEL_STATES", {})
    for user in (attending_gru, cross_attention, mmca, transformer_unit):
        monkeypatch.setattr(user, "kernel_applies", lambda name, tensor: device._KERNELS.on)
    found = {}
    for name in ("fused_attention", "fused_gru", "fused_pair_attention", "fused_unit"):
        file = Path(models.__file__).parent / "layers" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"calligram.models.layers.{name}", file)
        found[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, found[name])
        spec.loader.exec_module(found[name])
    yield found
    for (owner, name), value in before.items():
        if value is not missing:
            setattr(owner, name, value)
        elif hasattr(owner, name):
            delattr(owner, name)
