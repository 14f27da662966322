"""``transformers serve`` with our models: ``python -m diffattn.models.serving.transformers_serve``.

Its arguments are those of ``transformers serve``, which looks for the class that a checkpoint names
among those of transformers alone: a registered class or a folder's own code is not found.
"""

import sys

from diffattn.models.modeling_diff_transformer import (
    DiffTransformerForCausalLM,
    DiffTransformerForSequenceClassification,
)


def main() -> None:
    """Run ``transformers serve`` with the arguments of this process."""
    from transformers.cli.serving import model_manager
    from transformers.cli.transformers import main as transformers_main

    for model_class in (DiffTransformerForCausalLM, DiffTransformerForSequenceClassification):
        # Its own: loading a processor puts another one into ``sys.modules``.
        setattr(model_manager.transformers, model_class.__name__, model_class)
    sys.argv = ["transformers", "serve", *sys.argv[1:]]
    transformers_main()


if __name__ == "__main__":
    main()
