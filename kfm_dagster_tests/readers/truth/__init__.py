"""Compare our readers' metadata of real objects with that of independent readers (reference.json).

Each family of objects has one function in a module here, which `@compares` registers.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
