#!/usr/bin/env python3
"""Convert CIFAR-10's Python form (cifar-10-batches-py) to its binary form.

usage: cifar10_from_python.py FROM TO

FROM holds data_batch_1 .. data_batch_5 and test_batch (pickles), TO gets data_batch_1.bin .. test_batch.bin: records of
a label byte and 3072 pixel bytes. Needs no NumPy. Pickles can run code when they are loaded; these are read
by an unpickler that knows plain containers and byte arrays and refuses everything else.
"""
import os
import pickle
import sys

PIXELS = 3072


class Array:
    """Stands for a numpy.ndarray: the shape, and the bytes as they come in its state."""

    def __init__(self, *_):
        self.shape, self.data = None, None

    def __setstate__(self, state):
        _, self.shape, dtype, fortran, data = state
        if dtype.name not in ("u1", "|u1") or fortran:
            raise ValueError("an array of type %s%s" % (dtype.name, ", in Fortran order" if fortran else ""))
        self.data = data.encode("latin-1") if isinstance(data, str) else bytes(data)


class Dtype:
    def __init__(self, name, *_):
        self.name = name.decode() if isinstance(name, bytes) else name

    def __setstate__(self, state):
        pass


def from_buffer(data, dtype, shape, order):
    array = Array()
    array.__setstate__((1, shape, dtype, order != "C", data))
    return array


def encode(text, encoding):
    if encoding not in ("latin1", "latin-1"):
        raise ValueError("an encoding %s" % encoding)
    return text.encode("latin-1")


KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy.core.numeric", "_frombuffer"): from_buffer,
    ("numpy._core.numeric", "_frombuffer"): from_buffer,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
    ("_codecs", "encode"): encode,
}


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        try:
            return KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError("%s.%s does not belong into such a file" % (module, name)) from None


def text(key):
    return key.decode("latin-1") if isinstance(key, bytes) else key


def convert(source, target):
    with open(source, "rb") as file:
        batch = {text(k): v for k, v in Unpickler(file, encoding="latin-1").load().items()}
    labels, pixels = batch["labels"], batch["data"]
    if isinstance(pixels, Array):
        shape, pixels = pixels.shape, pixels.data
        if len(shape) != 2 or shape[1] != PIXELS or shape[0] * PIXELS != len(pixels):
            raise ValueError("data of shape %s" % (shape,))
    if not labels or len(labels) * PIXELS != len(pixels):
        raise ValueError("%d labels for %d bytes of pixels" % (len(labels), len(pixels)))
    if any(not isinstance(label, int) or not 0 <= label <= 9 for label in labels):
        raise ValueError("a label outside 0 to 9")
    part = target + ".part"
    try:
        with open(part, "wb") as file:
            for i, label in enumerate(labels):
                file.write(bytes([label]) + pixels[i * PIXELS:(i + 1) * PIXELS])
        os.replace(part, target)
    except OSError:
        if os.path.exists(part):
            os.remove(part)
        raise
    print("%s: %d images" % (target, len(labels)))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    source, target = sys.argv[1:]
    try:
        os.makedirs(target, exist_ok=True)
    except OSError as error:
        sys.exit("%s: %s" % (target, error.strerror))
    for name in ["data_batch_%d" % i for i in range(1, 6)] + ["test_batch"]:
        path = os.path.join(source, name)
        try:
            convert(path, os.path.join(target, name + ".bin"))
        except Exception as error:  # whatever a damaged pickle makes the reader do
            sys.exit("%s: cannot be converted: %s: %s" % (path, type(error).__name__, error))


if __name__ == "__main__":
    main()
