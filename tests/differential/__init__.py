"""The differential test: random programs and edits, what the cache serves held against the plain compilers.

`__main__` runs scenarios, `cpp_programs`, `ptx_programs` and `python_programs` make them, `scenario` judges each ask,
`cpp_asks` and `python_asks` ask the cache and the compilers, `shrinking` makes a finding small, `found` keeps it.
"""
