"""What Triton's interpreter needs to run here."""

import pytest


@pytest.fixture(autouse=True)
def _scalars_as_loop_bounds(monkeypatch):
    """NumPy 2.4 refuses ``int(array([n]))``, which Triton 3.6 does to read a scalar."""
    interpreter = pytest.importorskip("triton.runtime.interpreter", reason="needs triton")
    patch = interpreter._patch_lang_tensor

    def patch_and_repair(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_and_repair)
