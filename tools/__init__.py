"""Tools for people who work on the kernels: never in the wheel, run from the repository root."""
