"""Folders of studies of gradient flow, scaling and stability; every number in them is made up."""

from itertools import product

from record_files import write_record, write_run

SEEDS = (0, 1)
RATES = (0.002, 0.128)
TWO_TYPES = ("softmax", "diff")
ARMS = {"base": {}, "width-64": {"hidden_size": 64}, "large-values": {"initializer_range": 0.1}}
PHASES = {"start": [1], "late": [9, 10]}
METRICS = ("loss", "loss_spike_share", "gradient_spike_share", "clipped_share")


def write_study_of_runs(folder, kind, scale, model, train, version, info, results):
    head = {"schema": 1, "kind": kind}
    facts = {"created": "2001-02-03T04:05:06+00:00", "scale": scale, "seeds": list(SEEDS)}
    facts |= {"match": "params", "config_hash": "0123", "data": {"source": "stdlib"}}
    facts |= {"config": {"model": model, "train": train}}
    write_record(folder / "study.json", head | facts | info)
    protocol = {"name": f"{kind.replace('-', '_')}_study", "version": version}
    said = {"statement": "Made-up <i>statement</i>.", "protocol": protocol}
    write_record(folder / "results.json", head | said | results)
    return folder


def interval(values, half=0.25):
    mean = sum(values) / len(values)
    return {"values": values, "mean": mean, "low": mean - half, "high": mean + half, "level": 0.95}


def factor(mean):
    return {"values": [mean, mean], "mean": mean, "low": mean / 2, "high": 2 * mean, "level": 0.95}


def write_gradient_flow(folder):
    """Two types over two widths, and DIFF V1's heads in two layers."""
    model = {"num_heads": 8, "head_dim": 16, "num_hidden_layers": 2, "hidden_size": 128}
    train = {"num_steps": 10, "batch_tokens": 512}
    info = {"types": ["softmax", "softmax_wide", "diff"], "types_of_arms": ["softmax_wide", "diff"]}
    info |= {"arms": ARMS, "phases": PHASES}
    for arm in ARMS:
        for name, seed in product(info["types" if arm == "base" else "types_of_arms"], SEEDS):
            write_run(
                folder / "runs" / f"{arm}-{name}-seed{seed}",
                {"model": model | {"attention_type": "diff"}, "train": train}, seed, {},
                model={"parameters": 1000}, cost={"cpu_seconds": 12.0},
            )  # fmt: skip
    ratios = [
        {"arm": arm, "type": "diff", "baseline": "softmax_wide", "phase": phase}
        | {"measure": measure, "matrix": matrix, **factor(8.0 if measure == "gradient" else 1.25)}
        for arm, phase, measure in product(("base", "width-64"), PHASES, ("gradient", "update"))
        for matrix in (("q", "ffn", "k2") if arm == "base" else ("q",))
    ]
    null = {"arm": "base", "type": "other seed", "baseline": "softmax_wide", "phase": "start"}
    ratios.append(null | {"measure": "gradient", "matrix": "q", **factor(1.125)})
    ratios.append(null | {"type": "diff", "measure": "slope", "matrix": "all", **factor(3.0)})
    heads = [
        {"arm": "base", "type": "diff", "phase": phase, "layer": layer, "lambda_init": 0.25}
        | {key: factor(0.0625) for key in ("head_rms", "to_factor", "norm_gain")}
        for phase, layer in product(PHASES, range(2))
    ]
    at_start = {"bound": 2.0, "phases": ["start"]}
    unknown = {"values": []} | dict.fromkeys(("mean", "low", "high", "level"))
    judgements = [
        at_start | {"id": "level", "says": "Made-up <b>claim</b>", "verdict": "disagrees"}
        | {"why": ""} | factor(8.0),
        at_start | {"id": "updates", "says": "Made-up other", "verdict": "uninformative"}
        | {"why": "so are the control's"} | unknown,
    ]  # fmt: skip
    results = {"definition": {"level": 2.0, "drift": 1.5, "half": [0.4, 0.6]}}
    results |= {"verdict": {"informative": True, "sentence": "Made-up verdict."}}
    results |= {"ratios": ratios, "heads": heads, "judgements": judgements}
    return write_study_of_runs(folder, "gradient-flow", "laptop", model, train, 1, info, results)


def write_scaling(folder):
    """Two types, two sizes and two budgets; over tokens the fit of DIFF V1 was refused."""
    model = {"num_heads": 4, "head_dim": 16, "intermediate_size": 160, "hidden_size": 64}
    train = {"num_steps": 200, "batch_tokens": 512}
    axes = {"parameters": [(32, 200), (64, 200)], "tokens": [(64, 100), (64, 200)]}
    names = []
    for kind in TWO_TYPES:
        places = dict.fromkeys([*axes["parameters"], *axes["tokens"]])
        for (hidden, steps), seed in product(places, SEEDS):
            names.append(f"{kind}-h{hidden}-s{steps}-seed{seed}")
            shape = {"model": model | {"attention_type": kind, "hidden_size": hidden}}
            shape |= {"train": train | {"num_steps": steps}}
            write_run(
                folder / "runs" / names[-1], shape, seed, {"validation_loss": 4.0 + 0.5 * seed},
                model={"parameters": 1000, "parameter_difference": 6}, cost={"wall_seconds": 12.0},
            )  # fmt: skip
    message = {"informative": True, "sentence": "Made up."}
    verdict = {"sentence": "Made-up <b>verdict</b>.", "axes": dict.fromkeys(axes, message)}
    results = {"extrapolate": False, "verdict": verdict}
    results |= {"axes": {axis: scaling_axis(axis, where) for axis, where in axes.items()}}
    info = {"types": list(TWO_TYPES), "runs": names}
    return write_study_of_runs(folder, "scaling", "laptop", model, train, 1, info, results)


def scaling_axis(axis, where):
    types = {}
    for kind in TWO_TYPES:
        points = []
        for hidden, steps in where:
            sizes = {"parameters": 3_000 * hidden, "tokens": 512 * steps}
            runs = [f"{kind}-h{hidden}-s{steps}-seed{seed}" for seed in SEEDS]
            loss = interval([4.0, 4.5], 0.125)
            points.append({"x": sizes[axis], **sizes, "runs": runs, "loss": loss})
        fit = {"points": 4, "r2": 0.875, "max_error": 0.125, "refused": None}
        ends = {"mean": 0.5, "low": 0.25, "high": 0.75, "level": 0.95}
        fit["parameters"] = dict.fromkeys(("a", "b", "c"), ends)
        if (kind, axis) == ("diff", "tokens"):
            fit |= {"r2": None, "max_error": None, "parameters": {}}
            fit |= {"refused": "made-up <i>why</i>"}
        types[kind] = {"points": points, "fit": fit}
    row = {"type": "diff", "baseline": "softmax", "x": 96_000.0, "point": 0}
    row |= {"other_x": 120_000.0, "loss": 4.25, "ratio": 0.8, "low": 0.6, "high": 0.9}
    row |= {"level": 0.95, "extrapolated": True, "refused": None}
    second = row | dict.fromkeys(("other_x", "loss", "ratio", "low", "high"))
    second |= {"point": 1, "extrapolated": False, "refused": "made-up <i>reason</i>"}
    of = {"form": "offset", "unbent": [], "read_at": 1, "types": types}
    return of | {"equivalents": [row, second]}


def write_stability(folder):
    """Two types at two rates; one run of DIFF V1 diverged."""
    model = {"num_heads": 8, "head_dim": 16, "intermediate_size": 344, "hidden_size": 128}
    train = {"num_steps": 200, "batch_tokens": 1024}
    types = {kind: {"rates": [], "sensitivity": interval([0.5, 0.75])} for kind in TWO_TYPES}
    for kind, rate in product(TWO_TYPES, RATES):
        names = [f"{kind}-lr{rate:g}-seed{seed}" for seed in SEEDS]
        steps = [150 if name == "diff-lr0.128-seed1" else None for name in names]
        for name, seed, step in zip(names, SEEDS, steps, strict=True):
            write_run(
                folder / "runs" / name,
                {"model": model | {"attention_type": kind}, "train": train}, seed,
                {"validation_loss": None if step else 3.5}, cost={"wall_seconds": 12.0},
                model={"parameters": 1000, "parameter_difference": 6},
            )  # fmt: skip
        at = {"learning_rate": rate, "runs": names, "diverged_steps": steps}
        at |= {"diverged": [step is not None for step in steps]}
        at |= {"median_gradient_norms": [0.5, 0.75]}
        at |= {metric: interval([0.125, 0.375]) for metric in METRICS}
        types[kind]["rates"].append(at)
    pair = {"type": "diff", "baseline": "softmax", "p_value": 0.0123, "p_holm": 0.0456}
    differences = [
        pair | {"metric": metric, "learning_rate": rate, **interval([0.0625, 0.1875])} | says
        for metric, rate, says in (
            ("loss", 0.128, {"why": "not both do"}),
            ("loss", None, {"rates": [0.128], "why": ""}),
            ("clipped_share", None, {"rates": list(RATES), "why": "at no rate do both"}),
            ("sensitivity", None, {"rates": list(RATES), "why": ""}),
        )
    ]
    to_nothing = pair | {"metric": "loss", "learning_rate": 0.128, "why": ""}
    differences += [
        to_nothing | {"baseline": floor} | interval([-0.5, -0.25]) for floor in ("none", "none_ffn")
    ]
    definition = {"window": 32, "deviations": 5.0, "least_loss": 0.1, "least_log_gradient": 0.6931}
    results = {"definition": definition, "types": types, "differences": differences}
    results |= {"verdict": {"informative": False, "sentence": "Made-up verdict.", "margin": 0.1}}
    results |= {"attending": {"softmax": [], "diff": [RATES[0]]}}
    info = {"types": list(TWO_TYPES), "learning_rates": list(RATES)}
    return write_study_of_runs(folder, "stability", "study", model, train, 3, info, results)
