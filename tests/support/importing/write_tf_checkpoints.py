"""Writes the checkpoints under tests/unit/importing/tf, with TensorFlow, which the project's environment has not.

    python -m venv build/tf && build/tf/bin/pip install tensorflow-cpu
    build/tf/bin/python tests/support/importing/write_tf_checkpoints.py tests/unit/importing/tf

They were written by TensorFlow 2.21.0. `ev` has tensors under the names that DeepRec gives embedding variables;
`plain` a variable in partitions, and one of an optimizer; `keras` what tf.train.Checkpoint writes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def rows(ids: np.ndarray, dim: int) -> np.ndarray:
    """Returns the rows that the tests expect for ids."""
    return (ids[:, None] % 97 + np.arange(dim)[None, :] / 8).astype(np.float32)


def save(prefix: Path, tensors: dict[str, np.ndarray], **options: object) -> None:
    """Saves tensors under these names, with TensorFlow's own saver."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            name: v1.Variable(value, name=f"v{number}") for number, (name, value) in enumerate(tensors.items())
        }
        session.run(v1.global_variables_initializer())
        v1.train.Saver(variables, **options).save(session, str(prefix), write_meta_graph=False, write_state=False)


def main(folder: Path) -> None:
    """Writes all of them anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ev: dict[str, np.ndarray] = {}
    for part in range(3):
        ids = np.arange(part, 40, 3, dtype=np.int64)[::-1] * 2**40 - 7
        name = f"user/embedding/part_{part}"
        ev |= {
            f"{name}-keys": ids,
            f"{name}-values": rows(ids, 4),
            f"{name}-freqs": np.arange(len(ids), dtype=np.int64) + 1,
            f"{name}-versions": np.full(len(ids), 100, np.int64),
            f"{name}-keys_filtered": np.array([5], np.int64),
            f"{name}/Adagrad-keys": ids,
            f"{name}/Adagrad-values": np.ones((len(ids), 4), np.float32),
        }
    items = np.array([3, 1, 2], np.int64)
    ev |= {"item-keys": items, "item-values": rows(items, 2), "item-freqs": np.zeros(0, np.int64)}
    ev |= {"dense/kernel": np.ones((4, 2), np.float32)}
    save(folder / "ev", ev)

    with tf.Graph().as_default(), v1.Session() as session:
        kept = rows(np.arange(300), 4)
        parts = v1.get_variable(
            "input/city_embedding/weights",
            initializer=tf.constant(kept),
            partitioner=v1.fixed_size_partitioner(4),
        )
        slot = v1.get_variable("input/city_embedding/weights/Adam", initializer=np.ones((300, 4), np.float32))
        bias = v1.get_variable("dense/bias", initializer=np.ones(4, np.float32))
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver([*parts, slot, bias])
        saver.save(session, str(folder / "plain"), write_meta_graph=False, write_state=False)

    module = tf.Module()
    module.user_embedding = tf.Variable(rows(np.arange(20), 3).astype(np.float16))
    module.head = tf.Variable(np.ones((3, 1), np.float32))
    tf.train.Checkpoint(model=module).write(str(folder / "keras"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
