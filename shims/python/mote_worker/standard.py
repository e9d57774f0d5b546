"""Imports modules of the standard library late, also where the function has modules of the same name.

The shim needs some modules only for a few functions, so it imports them after the function's folders
are in front of `sys.path`. A function's own `queue.py` or `traceback.py` must neither break them nor
be hidden by them. This part does not know what the modules are used for.
"""

import os
import sys

found_standard = {}  # what has been imported, by name


def standard(name, folders):
    """The module `name` of the standard library, imported as if `folders` were not on the path.

    Afterwards the function imports its own modules as before. Costs nothing from the second time on.
    """
    if name in found_standard:
        return found_standard[name]
    folders = tuple(folder for folder in folders if folder)

    def is_own(module):
        file = getattr(module, "__file__", None) or ""
        return any(file.startswith(folder + os.sep) for folder in folders)

    path = sys.path[:]
    own = {key: module for key, module in list(sys.modules.items()) if is_own(module)}
    before = set(sys.modules)
    for key in own:
        del sys.modules[key]
    sys.path[:] = [folder for folder in path if folder not in folders]
    try:
        __import__(name)
        found_standard[name] = sys.modules[name]
        return found_standard[name]
    finally:
        sys.path[:] = path
        for key in set(sys.modules) - (before - set(own)):
            top = key.partition(".")[0]
            files = (os.path.join(folder, top + end) for folder in folders for end in (".py", ""))
            if any(os.path.exists(file) for file in files):
                del sys.modules[key]
        sys.modules.update(own)
