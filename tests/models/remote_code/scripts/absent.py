"""Imported first by the other scripts: no ``diffattn`` in this process, installed or not."""

import sys


class _Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "diffattn":
            raise ModuleNotFoundError(name)


def is_absent():
    return not any(name.partition(".")[0] == "diffattn" for name in sys.modules)


sys.meta_path.insert(0, _Missing())
