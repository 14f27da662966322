"""Pure functions on tensors, without parameters. Needs torch only; GPU kernels also need triton."""
