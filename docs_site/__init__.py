"""The documentation's site: `docs/`, parts of README and CONTRIBUTING, and a reference.

`make docs` builds the site, offline. Each fact is in a page that can also be read on GitHub, or in the code, from which
the reference is made.
"""
