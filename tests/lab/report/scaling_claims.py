"""What the record of a scaling study would hold; every number is made up."""


def scaling(
    ratio=0.8, against=0.9, *, informative=True, seeds=5, types=("softmax", "diff"), **changes
):
    """Shares of DIFF V1 at the middle of three points, with ends a tenth below and above."""

    def row(baseline, share):
        low, high = (None, None) if share is None else (share / 1.1, share * 1.1)
        ends = {"ratio": share, "low": low, "high": high, "level": 0.95}
        entry = {"type": "diff", "baseline": baseline, "point": 1, "refused": None} | ends
        return entry | (changes if baseline == "softmax" else {})

    rows = [row("softmax", ratio), row("softmax", 0.1) | {"point": 0}]
    names = list(types)
    if against is not None:
        rows.append(row("softmax_minus_mean", against))
        names.append("softmax_minus_mean")
    fit = {"points": 15, "parameters": {"a": {}, "b": {}, "c": {}}}
    points = [{"loss": {"values": [3.0] * seeds}}] * 3
    of = {"read_at": 1, "types": {n: {"points": points, "fit": fit} for n in names}}
    message = {"informative": informative, "sentence": "Made up."}
    axes = {axis: of | {"equivalents": rows} for axis in ("parameters", "tokens")}
    return {"axes": axes, "verdict": {"axes": dict.fromkeys(axes, message)}}
