"""The spectrum of P, the product of the mixing matrices over one period with the last round leftmost.

For a large network P is never formed: sparse products apply it to vectors.
"""

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE = 200  # nodes up to which dense matrices are used

Vector = NDArray[np.float64]


def perron(matrices: list[Any]) -> Vector | None:
    """Compute the left Perron vector pi = pi P, with sum 1, of a connected network; None if it is not found.

    Power iteration solves networks that mix fast. A network that mixes slowly has few edges across its cuts, so its LU
    factors are sparse.
    """
    from scipy.sparse.linalg import spsolve

    nodes = matrices[0].shape[0]
    if nodes <= DENSE:
        product = _product(matrices)
        # pi_0 = 1 and the balance equations of all other nodes are a regular system
        rest = np.linalg.solve(np.eye(nodes - 1) - product[1:, 1:].T, product[0, 1:])
        return _normal(np.concatenate([[1.0], rest]))
    pi: Vector = np.full(nodes, 1 / nodes)
    turned = [W.T.tocsr() for W in reversed(matrices)]
    for _ in range(1000):
        before = pi
        for W in turned:
            pi = W @ pi
        if np.abs(pi - before).sum() < 1e-14:
            return _normal(pi)
    if len(matrices) > 1:
        return None
    from scipy.sparse import eye_array

    flow = (eye_array(nodes) - turned[0]).tocsc()
    return _normal(np.concatenate([[1.0], spsolve(flow[1:, 1:], -flow[1:, [0]].toarray().ravel())]))


def spectral_gap(matrices: list[Any], pi: Vector, *, reversible: bool) -> float | None:
    """Compute 1 - |lambda_2| of a connected P from its left Perron vector; None if ARPACK does not converge.

    lambda_2 is the largest eigenvalue of S = D (P - 1 pi') / D with D = diag(sqrt(pi)). Subtracting 1 pi' keeps all
    other eigenvalues, and D makes S symmetric where the chain is reversible (pi_i P_ij = pi_j P_ji).
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs, eigsh

    nodes, root = len(pi), np.sqrt(pi)
    if nodes <= DENSE:
        S = root[:, None] * _product(matrices) / root - np.outer(root, root)
        values = np.linalg.eigvalsh(S) if reversible else np.linalg.eigvals(S)
        return 1 - float(np.abs(values).max())

    def apply(vector: Vector) -> Vector:
        image = reduce(lambda x, W: W @ x, matrices, vector / root)
        return root * image - root * (root @ vector)

    start = np.random.default_rng(1).standard_normal(nodes)  # fixed, so that the report is reproducible
    if np.linalg.norm(apply(start)) < 1e-12 * np.linalg.norm(start):
        return 1.0  # one period averages exactly; ARPACK cannot start from a zero vector
    operator = LinearOperator((nodes, nodes), matvec=apply, dtype=np.float64)
    try:
        solve = eigsh if reversible else eigs
        values = solve(operator, k=2, ncv=64, maxiter=100, v0=start, tol=1e-10, return_eigenvectors=False)
    except ArpackError:
        return None
    return 1 - float(np.abs(values).max())


def symmetric_eigenvalues(W: Any) -> Vector:
    """Compute the eigenvalues of a symmetric W; for a large one, numbers from the smallest eigenvalue to 1."""
    from scipy.sparse.linalg import eigsh

    nodes = W.shape[0]
    if nodes <= DENSE:
        return np.linalg.eigvalsh(W.toarray())
    start = np.random.default_rng(1).standard_normal(nodes)
    least = eigsh(W, k=1, which="SA", v0=start, return_eigenvectors=False)
    return np.linspace(float(least[0]), 1.0, DENSE)


def _product(matrices: list[Any]) -> Vector:
    dense: Vector = reduce(lambda product, W: W @ product, matrices[1:], matrices[0].toarray())
    return dense


def _normal(pi: Vector) -> Vector:
    normal: Vector = pi / pi.sum()
    return normal
