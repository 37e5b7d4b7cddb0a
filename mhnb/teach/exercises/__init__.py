"""The exercises and predictions, one module per lesson. `mhnb.teach.registry.MODULES` lists them."""
