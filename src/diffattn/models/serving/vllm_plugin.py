"""vLLM serves our models from the installed package, without code from a model's folder.

vLLM calls :func:`register` in each of its processes, by the entry point ``vllm.general_plugins``.
Our layers run inside its Transformers backend: one attention call per layer, with the heads of
:mod:`diffattn.models.attention.cached_attention`, by vLLM's own kernels from its own cache.
"""

BACKEND = "vllm.model_executor.models.transformers"
CLASSES = {
    "DiffTransformerForCausalLM": "TransformersForCausalLM",
    "DiffTransformerForSequenceClassification": "TransformersForSequenceClassification",
}
"""Architecture of a ``config.json``: class of vLLM's backend that runs it."""


def register() -> None:
    """Make our configuration known to transformers and our architectures to vLLM.

    Source: vLLM's documentation, "Plugin System" and "Registering a Model".
    """
    from vllm import ModelRegistry

    import diffattn.models.modeling_diff_transformer  # noqa: F401  registers with Auto classes

    for architecture, backend_class in CLASSES.items():
        ModelRegistry.register_model(architecture, f"{BACKEND}:{backend_class}")
