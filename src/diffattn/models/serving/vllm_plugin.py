"""Plugin by which vLLM serves our models from the installed package.

vLLM calls :func:`register` in each of its processes, by the entry point ``vllm.general_plugins``.
Our layers run inside vLLM's Transformers backend: one call of vLLM's attention kernel per layer,
with its cache and the heads of :func:`diffattn.models.attention.kernels.heads_in_vllm`.
"""


def register() -> None:
    """Make our configuration known to transformers and our architectures to vLLM."""
    from vllm import ModelRegistry
    from vllm.transformers_utils import model_arch_config_convertor as sizes

    import diffattn.models.modeling_diff_transformer  # noqa: F401  registers with Auto classes
    from diffattn.models.attention.kernels import heads_in_vllm

    class DiffTransformerSizes(sizes.ModelArchConfigConvertorBase):
        """Sizes of vLLM's cache and of its attention call."""

        def get_total_num_attention_heads(self) -> int:
            return heads_in_vllm(self.hf_text_config)[0]

        def get_total_num_kv_heads(self) -> int:
            return heads_in_vllm(self.hf_text_config)[1]

        def get_head_size(self) -> int:
            return heads_in_vllm(self.hf_text_config)[2]

    sizes.MODEL_ARCH_CONFIG_CONVERTORS["diff_transformer"] = DiffTransformerSizes
    for task in ("ForCausalLM", "ForSequenceClassification"):
        path = f"vllm.model_executor.models.transformers:Transformers{task}"
        ModelRegistry.register_model(f"DiffTransformer{task}", path)
