"""CEL, the language of rules in CustomResourceDefinitions, with the functions that Kubernetes gives it.

`parsing` makes a tree of a text, `compiling` makes a function of a tree, `functions` is the library, and `rules` asks a definition's
rules of an object. Written here because the libraries on the package index lack what Kubernetes' rules use: optional fields, quantities,
most functions on texts and lists.
"""
