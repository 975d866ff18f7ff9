"""Pre-trained networks behind one small interface.

* ``registry.create(name)`` builds a ``Backbone`` by alias or by any timm name,
* ``catalog.available()`` lists the aliases without importing torch,
* ``weights`` reads checkpoint files safely and checks that they fit,
* ``norm`` puts the statistics of batch normalisation right after merging,
* ``tokens`` is where prompts, prefixes and adapters enter a Vision Transformer.

Importing this package loads none of them.
"""
