import subprocess
import sys

import pytest

from infrastructure.torch_internals import compiled_backward
from infrastructure.torch_internals.compiled_backward import (
    backward_compiled_with_forward,
    backward_without_autocast,
    compile_unavailable_reason,
)


def settings() -> tuple[str, bool]:
    from torch._functorch import config  # the names that this torch must have

    return config.backward_pass_autocast, config.force_non_lazy_backward_lowering


def test_settings_hold_inside_their_blocks_alone():
    before = settings()
    with backward_without_autocast(compiles=True), backward_compiled_with_forward():
        assert settings() == ("off", True)
        with backward_without_autocast(compiles=True):
            pass
        assert settings() == ("off", True)
    with (
        pytest.raises(KeyError),
        backward_without_autocast(compiles=True),
        backward_compiled_with_forward(),
    ):
        raise KeyError
    assert settings() == before
    assert compile_unavailable_reason() is None


def test_a_torch_without_them_is_named(monkeypatch):
    monkeypatch.setattr(compiled_backward, "_has", lambda _: False)
    with backward_without_autocast(compiles=True), backward_compiled_with_forward():
        pass
    assert "use a torch" in compile_unavailable_reason()


SCRIPT = """
import sys

import torch

from infrastructure.torch_internals.compiler_import import defer_compiler_import
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.compiled_calls import CompiledCalls

defer_compiler_import()


def backend(graph, inputs):
    from torch._functorch import config

    print(config.backward_pass_autocast)
    return graph.forward


assert "torch._dynamo" not in sys.modules
calls = CompiledCalls(backend=backend)
forward = PrecisionForward(torch.nn.Linear(2, 2), torch.device("cpu"), Precision.FP16, calls)
forward(torch.ones(1, 2))
"""


@pytest.mark.process
def test_the_setting_holds_for_the_code_that_imports_the_compiler():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "off\n"), done.stderr
