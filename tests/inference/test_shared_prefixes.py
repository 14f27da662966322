"""Shared prefixes: correct for any sequences, and cheaper wherever they are taken."""

import random

import pytest

from diffattn.inference.shared_prefixes import _GROUP_COST, share_prefixes


@pytest.mark.parametrize("seed", range(20))
def test_groups_partition_the_sequences_and_their_prefix_is_common(seed):
    generator = random.Random(seed)
    roots = [[generator.randrange(3) for _ in range(generator.randint(0, 600))] for _ in range(3)]
    sequences = []
    for _ in range(generator.randint(1, 30)):
        root = generator.choice(roots)
        cut = generator.randint(0, len(root))
        sequences.append(
            [*root[:cut], *(generator.randrange(3) for _ in range(generator.randint(1, 50)))]
        )
    limits = [generator.randint(0, len(x)) for x in sequences]
    groups = share_prefixes(sequences, limits)
    assert sorted(i for group in groups for i in group.members) == list(range(len(sequences)))
    for group in groups:
        first = sequences[group.members[0]][: group.length]
        for i in group.members:
            assert sequences[i][: group.length] == first
            assert group.length < len(sequences[i])
            assert group.length <= limits[i]
    cost = sum(
        group.length + bool(group.length) * _GROUP_COST
        + sum(len(sequences[i]) - group.length for i in group.members)
        for group in groups
    )  # fmt: skip
    assert cost <= sum(map(len, sequences))


def test_a_nested_prefix_is_taken_where_it_pays():
    common, longer = [1] * 400, [2] * 400
    sequences = [[*common, i] for i in range(3, 6)] + [[*common, *longer, i] for i in range(3, 9)]
    lengths = sorted(group.length for group in share_prefixes(sequences))
    assert lengths == [400, 800]


def test_nothing_in_common():
    (group,) = share_prefixes([[1, 2], [2, 2], [3]])
    assert (group.length, group.members) == (0, (0, 1, 2))
    assert share_prefixes([]) == []
