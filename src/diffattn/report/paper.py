"""Published numbers that a report shows beside measured ones."""

from typing import NamedTuple


class Throughput(NamedTuple):
    """Tokens per second on H100 GPUs, as printed."""

    transformer: int
    diff: int


THROUGHPUT_SOURCE = "arXiv:2410.05258v2, Table 7"
# (preset, tokens, mode)
THROUGHPUT = {
    ("3b", 2_048, "forward_backward"): Throughput(7_247, 6_635),
    ("3b", 4_096, "forward_backward"): Throughput(7_491, 6_718),
    ("13.1b", 2_048, "forward_backward"): Throughput(998, 942),
    ("3b", 2_048, "forward"): Throughput(51_228, 46_811),
    ("3b", 4_096, "forward"): Throughput(48_762, 44_521),
    ("13.1b", 2_048, "forward"): Throughput(14_346, 13_653),
}
