"""Use every part of the library, without the lab: ``python library.py FOLDER``."""

import importlib
import pkgutil
import sys

import torch

import diffattn

PARTS = ("ops", "layers", "models", "probes", "files")
NEED_TRITON = ("diffattn.ops.triton", "diffattn.ops.hopper")


def import_all(parts=PARTS):
    """Import every module of some parts, by default of the library; kernels need triton."""
    for part in parts:
        package = importlib.import_module(f"diffattn.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"diffattn.{part}."):
            if not module.name.startswith(NEED_TRITON):
                importlib.import_module(module.name)


def use(folder):
    """Run an operator, train one step, save, load, convert and probe a model."""
    import_all()
    from diffattn.models.conversion.convert import convert
    from diffattn.probes.activations import layer_lambdas

    q, v = torch.randn(1, 3, 2, 2, 4), torch.randn(1, 3, 2, 8)
    assert diffattn.diff_attention(q, q, v, torch.tensor(0.3)).shape == (1, 3, 2, 8)
    config = diffattn.DiffTransformerConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_heads=2
    )
    model = diffattn.DiffTransformerForCausalLM(config)
    ids = torch.arange(8)[None]
    model(ids, labels=ids).loss.backward()
    model.save_pretrained(f"{folder}/model")
    loaded = type(model).from_pretrained(f"{folder}/model")
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)
    assert len(layer_lambdas(loaded, ids)) == 2
    assert convert(f"{folder}/model", "diffllama", f"{folder}/diffllama").preserved
    print("ran")


if __name__ == "__main__":
    use(sys.argv[1])
