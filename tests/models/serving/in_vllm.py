"""Run by the Python that has vLLM: greedy tokens, the prompts' log probabilities and the size of
its cache in tokens, to a JSON file."""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    folder, options = sys.argv[1], json.loads(sys.argv[2])
    prompts = json.loads(sys.argv[3])
    engine = LLM(
        model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=128,
        max_num_seqs=4, **options,
    )  # fmt: skip
    sampling = SamplingParams(
        temperature=0, max_tokens=24, detokenize=False, ignore_eos=True, prompt_logprobs=0
    )
    answers = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling)
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    logprobs = [
        [
            step[token].logprob
            for token, step in zip(prompt[1:], answer.prompt_logprobs[1:], strict=True)
        ]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    cache = engine.llm_engine.vllm_config.cache_config
    held = cache.num_gpu_blocks * cache.block_size
    result = {"tokens": tokens, "logprobs": logprobs, "cache_tokens": held}
    Path(sys.argv[4]).write_text(json.dumps(result))
