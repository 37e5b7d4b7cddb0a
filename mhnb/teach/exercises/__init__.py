"""The exercises and predictions, a module for each lesson. `mhnb.teach.registry.MODULES` lists them."""
