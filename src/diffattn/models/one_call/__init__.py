"""What stands between a layer of ours and Hugging Face: masks, caches and kernels."""
