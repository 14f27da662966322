"""``transformers serve`` with our models: ``python -m diffattn.models.serving.transformers_serve``.

The arguments are those of ``transformers serve``. By itself it finds only the model classes of
transformers, neither registered classes nor code in a checkpoint's folder.
"""

import sys

from diffattn.models import modeling_diff_transformer


def main() -> None:
    """Run ``transformers serve`` with the arguments of this process."""
    from transformers.cli.serving import model_manager
    from transformers.cli.transformers import main as transformers_main

    for name in ("DiffTransformerForCausalLM", "DiffTransformerForSequenceClassification"):
        # Not on ``sys.modules["transformers"]``: loading a processor replaces that entry.
        setattr(model_manager.transformers, name, getattr(modeling_diff_transformer, name))
    sys.argv = ["transformers", "serve", *sys.argv[1:]]
    transformers_main()


if __name__ == "__main__":
    main()
