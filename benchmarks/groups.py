"""How rows are dealt to groups: the distributions that the manifest names."""

import re

import numpy as np


def sizes(distribution: str, total: int, num_groups: int, seed: int = 0) -> np.ndarray:
    """The rows of each group, int32; the same arguments give the same sizes.

    balanced, ones, all_zero and onehot say it; multinomial draws a group for each row, zipf1.2
    draws with probability 1/rank^1.2, and multinomial_mostly_empty among a quarter of the groups;
    empty50pct leaves every other one empty, uniform_cuts cuts at random rows, sum=0.75M leaves a
    quarter of the rows without a group, skew[…] lists shares, uniform0.7-1.3 varies around equal.

    Raises:
      ValueError: the distribution is unknown.
    """
    rng = np.random.default_rng(seed)
    found = _sizes(distribution, total, num_groups, rng)
    assert found.shape == (num_groups,), (distribution, found)
    assert found.sum() <= total, (distribution, found)
    return found.astype(np.int32)


def _sizes(distribution: str, total: int, num_groups: int, rng: np.random.Generator) -> np.ndarray:
    equal = np.full(num_groups, 1 / num_groups)
    numbers = [float(x) for x in re.findall(r"\d+\.?\d*", distribution)]
    match re.sub(r"[\d.\[\]=;:x-].*", "", distribution):
        case "balanced":
            return np.diff(np.linspace(0, total, num_groups + 1).astype(int))
        case "ones":
            return np.ones(num_groups, int)
        case "all_zero":
            return np.zeros(num_groups, int)
        case "onehot":
            return np.eye(num_groups, dtype=int)[0] * total
        case "multinomial":
            return rng.multinomial(total, equal)
        case "multinomial_mostly_empty":
            found = np.zeros(num_groups, int)
            chosen = rng.choice(num_groups, max(1, num_groups // 4), replace=False)
            found[chosen] = rng.multinomial(total, np.full(len(chosen), 1 / len(chosen)))
            return found
        case "zipf":
            weights = np.arange(1, num_groups + 1) ** -numbers[0]
            return rng.permutation(rng.multinomial(total, weights / weights.sum()))
        case "empty":
            found = np.zeros(num_groups, int)
            found[::2] = rng.multinomial(total, np.full(len(found[::2]), 1 / len(found[::2])))
            return found
        case "uniform_cuts":
            cuts = np.sort(rng.integers(0, total + 1, num_groups - 1))
            return np.diff(np.concatenate([[0], cuts, [total]]))
        case "sum":
            return rng.multinomial(int(numbers[0] * total), equal)
        case "skew":
            ends = np.round(np.cumsum(numbers) * total).astype(int)
            return np.diff(np.concatenate([[0], ends]))
        case "uniform":
            weights = rng.uniform(numbers[0], numbers[1], num_groups)
            ends = np.round(np.cumsum(weights / weights.sum()) * total).astype(int)
            return np.diff(np.concatenate([[0], ends]))
    raise ValueError(f"distribution: {distribution!r} is unknown")
