"""The numerical side of power laws: many data sets are fitted at once, for the bootstrap."""

import itertools
from collections.abc import Callable

import numpy as np

_HUBER = 1e-3
_EXPONENT_SPANS = np.geomspace(0.02, 60.0, 240)
"""Exponents searched, times ln(largest x / smallest x): from a straight line in ln x to a step."""
# The starts of arXiv:2203.15556, section D.4: e, log A, alpha, log B, beta.
_STARTS = np.array(
    list(
        itertools.product(
            np.arange(-1.0, 1.01, 0.5), np.arange(0.0, 25.1, 5.0), np.arange(0.0, 2.01, 0.5),
            np.arange(0.0, 25.1, 5.0), np.arange(0.0, 2.01, 0.5),
        )
    )
)  # fmt: skip


def fit_offset(x: np.ndarray, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares of a x^-b + c for many y at once, by variable projection.

    Args:
        x: ``[n]``, positive, three different values or more.
        ys: ``[sets, n]``.

    Returns:
        a, b, c ``[sets, 3]``, and bool ``[sets]``: the best exponent lies at the edge of the
        search, so that the points say nothing about it.
    """
    middle = np.exp(np.log(x).mean())
    z = np.log(x / middle)
    grid = _EXPONENT_SPANS / np.ptp(z)
    centred = ys - ys.mean(-1, keepdims=True)
    u = _centred_power(z, grid[:, None])  # [grid, n]
    best = np.argmax((centred @ u.T) ** 2 / (u * u).sum(-1), axis=-1)
    at_edge = (best == 0) | (best == len(grid) - 1)
    low = grid[np.maximum(best - 1, 0)]
    high = grid[np.minimum(best + 1, len(grid) - 1)]
    b = _golden(lambda b: _explained(z, centred, b), low, high)
    u = _centred_power(z, b[:, None])
    a = (centred * u).sum(-1) / (u * u).sum(-1)
    c = ys.mean(-1) - a * np.exp(-b[:, None] * z).mean(-1)
    found = np.stack([a, b, c], -1)
    for _ in range(4):  # golden section stops at the root of the rounding; these steps do not
        found[~at_edge] += _newton_step(z, ys[~at_edge], found[~at_edge])
    found[:, 0] *= middle ** found[:, 1]
    return found, at_edge


def fit_chinchilla(log_x: np.ndarray, log_y: np.ndarray) -> np.ndarray:
    """Huber fit of the logarithm from every start; the best is returned.

    Args:
        log_x: ``[n, 2]``.
        log_y: ``[n]``.

    Returns:
        e, log A, alpha, log B, beta ``[5]``.
    """
    targets = np.broadcast_to(log_y, (len(_STARTS), len(log_y)))
    theta, losses = _levenberg_marquardt(log_x, targets, _STARTS, steps=15)
    few = np.argsort(losses)[:60]
    theta, losses = _levenberg_marquardt(log_x, targets[few], theta[few], steps=400)
    return theta[np.argmin(losses)]


def refit_chinchilla(log_x: np.ndarray, log_ys: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Fits ``[sets, 5]`` of many ``log_ys`` ``[sets, n]`` from one start."""
    starts = np.broadcast_to(start, (len(log_ys), 5))
    return _levenberg_marquardt(log_x, log_ys, starts, steps=100)[0]


def chinchilla_parameters(theta: np.ndarray) -> np.ndarray:
    """E, A, alpha, B, beta ``[..., 5]`` from the logarithms that are fitted."""
    found = theta.copy()
    found[..., [0, 1, 3]] = np.exp(theta[..., [0, 1, 3]])
    return found


def chinchilla_theta(parameters: np.ndarray) -> np.ndarray:
    """The inverse of :func:`chinchilla_parameters`."""
    found = parameters.copy()
    found[..., [0, 1, 3]] = np.log(parameters[..., [0, 1, 3]])
    return found


def _offset(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    return p[0] * x ** -p[1] + (p[2] if len(p) > 2 else 0.0)


def _offset_gradient(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    power = x ** -p[1]
    columns = [power, -p[0] * power * np.log(x), np.ones_like(power)]
    return np.stack(columns[: len(p)], -1)


def _chinchilla(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    return p[0] + p[1] * x[..., 0] ** -p[2] + p[3] * x[..., 1] ** -p[4]


def _chinchilla_gradient(x: np.ndarray, p: np.ndarray) -> np.ndarray:
    n, d = x[..., 0], x[..., 1]
    parts = [n ** -p[2], -p[1] * n ** -p[2] * np.log(n), d ** -p[4], -p[3] * d ** -p[4] * np.log(d)]
    return np.stack([np.ones_like(parts[0]), *parts], -1)


_Law = Callable[[np.ndarray, np.ndarray], np.ndarray]
MODELS: dict[str, _Law] = {"offset": _offset, "kaplan": _offset, "chinchilla": _chinchilla}
"""Form -> the law at x ``[...]`` for parameters ``[p]``."""
GRADIENTS: dict[str, _Law] = {
    "offset": _offset_gradient, "kaplan": _offset_gradient, "chinchilla": _chinchilla_gradient
}  # fmt: skip
"""Form -> derivatives by the parameters, ``[..., p]``."""


def _centred_power(z: np.ndarray, b: np.ndarray) -> np.ndarray:
    """exp(-b z) without its mean, for b ``[sets, 1]``; expm1 keeps its digits for small b."""
    u = np.expm1(-b * z)
    return u - u.mean(-1, keepdims=True)


def _explained(z: np.ndarray, centred: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sum of squares that exponent b ``[sets]`` explains."""
    u = _centred_power(z, b[:, None])
    return (centred * u).sum(-1) ** 2 / (u * u).sum(-1)


def _golden(
    value: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Maxima between ``low`` and ``high``, element by element, by golden section."""
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(50):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        keep_left = value(left) > value(right)
        low, high = np.where(keep_left, low, left), np.where(keep_left, right, high)
    return (low + high) / 2


def _newton_step(z: np.ndarray, ys: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Gauss–Newton step of a, b, c ``[sets, 3]``, x being exp(z)."""
    power = np.exp(-p[:, 1:2] * z)
    residuals = ys - p[:, :1] * power - p[:, 2:]
    jacobian = np.stack([power, -p[:, :1] * power * z, np.ones_like(power)], -1)
    return (np.linalg.pinv(jacobian) @ residuals[..., None])[..., 0]


def _levenberg_marquardt(
    log_x: np.ndarray, targets: np.ndarray, starts: np.ndarray, *, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Parameters ``[sets, 5]`` and Huber losses ``[sets]``; no step ever raises the loss."""
    theta = np.array(starts, dtype=np.float64)
    damping = np.full(len(theta), 1e-2)
    predicted, jacobian = _log_chinchilla(log_x, theta)
    losses = _huber(targets - predicted)
    for _ in range(steps):
        residuals = targets - predicted
        weights = _HUBER / np.maximum(np.abs(residuals), _HUBER)
        normal = np.einsum("sni,sn,snj->sij", jacobian, weights, jacobian)
        gradient = np.einsum("sni,sn->si", jacobian, weights * residuals)
        diagonal = np.einsum("sii->si", normal) + 1e-12
        normal = normal + np.eye(5) * (damping[:, None] * diagonal)[:, None, :]
        step = np.linalg.solve(normal, gradient[..., None])[..., 0]
        # Far from the data a step can be huge; exponents and logarithms move by units at most.
        moved = theta + np.clip(step, -2.0, 2.0)
        new_predicted, new_jacobian = _log_chinchilla(log_x, moved)
        new_losses = _huber(targets - new_predicted)
        better = new_losses < losses
        theta[better], losses[better] = moved[better], new_losses[better]
        predicted[better], jacobian[better] = new_predicted[better], new_jacobian[better]
        damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-14, 1e8)
    return theta, losses


def _log_chinchilla(log_x: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log L ``[sets, n]`` and its derivatives ``[sets, n, 5]``."""
    e, a, alpha, b, beta = (column[:, None] for column in theta.T)
    terms = np.stack(np.broadcast_arrays(e, a - alpha * log_x[:, 0], b - beta * log_x[:, 1]))
    top = terms.max(0)
    total = top + np.log(np.exp(terms - top).sum(0))
    shares = np.exp(terms - total)
    columns = [
        shares[0], shares[1], -shares[1] * log_x[:, 0], shares[2], -shares[2] * log_x[:, 1]
    ]  # fmt: skip
    return total, np.stack(columns, -1)


def _huber(residuals: np.ndarray) -> np.ndarray:
    size = np.abs(residuals)
    inside = np.minimum(size, _HUBER)
    return (inside * (size - inside / 2)).sum(-1)
