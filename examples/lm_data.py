"""The text of the language-model example: bytes, their split, batches, and the entropy to beat."""

import pydoc_data.topics
from collections.abc import Iterator

import numpy as np

VOCABULARY = 256
_HELD_OUT = 0.1


def load_text() -> np.ndarray:
    """The Python reference that `help()` shows, as (bytes,) of uint8: English, in every install."""
    topics = pydoc_data.topics.topics
    return np.frombuffer("\n".join(topics[key] for key in sorted(topics)).encode(), np.uint8)


def split(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first nine tenths, to train on, and the last tenth, held out."""
    first_held_out = len(text) - int(len(text) * _HELD_OUT)
    return text[:first_held_out], text[first_held_out:]


def unigram_entropy(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats a byte of `held_out` under the byte frequencies of `train`, each count one higher.

    What a model reaches that has learnt how often each byte occurs and nothing about context.
    """
    counts = np.bincount(train, minlength=VOCABULARY) + 1
    return float(-np.log(counts / counts.sum())[held_out].mean())


def batches(text: np.ndarray, batch: int, seq: int, seed: int) -> Iterator[np.ndarray]:
    """Without end, (batch, seq + 1) of int32 from random places; a seed always gives the same."""
    random = np.random.default_rng(seed)
    while True:
        starts = random.integers(0, len(text) - seq, size=(batch, 1))
        yield text[starts + np.arange(seq + 1)].astype(np.int32)


def windows(text: np.ndarray, batch: int, seq: int) -> np.ndarray:
    """(batches, batch, seq + 1) of int32: the text in order, each byte predicted at most once.

    Neighbours share a byte, the last target of one and the first input of the next. What does not
    fill the last batch is left out.
    """
    num_batches = (len(text) - 1) // (batch * seq)
    starts = np.arange(num_batches * batch)[:, None] * seq
    return text[starts + np.arange(seq + 1)].astype(np.int32).reshape(num_batches, batch, seq + 1)
