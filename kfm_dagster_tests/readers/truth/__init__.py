"""Real objects as our readers see them, held against the answers of independent readers (reference.json).

A family of objects is compared by one function in a module here, which `@compares` registers. Does not belong here:
bytes that are no real object's.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
