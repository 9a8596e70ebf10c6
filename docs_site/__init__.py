"""The documentation's site: pages of `docs/`, parts of README and CONTRIBUTING, and a reference made from the code.

`make docs` builds it, offline. Each fact stays where it is: in a page that reads on GitHub, too, or in the code.
"""
