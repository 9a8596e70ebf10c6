"""The documentation's site: `docs/`, parts of README and CONTRIBUTING, and a reference.

`make docs` builds it, offline. A fact stays in a page that also reads on GitHub, or in the code, as the reference.
"""
