"""The exercises and predictions, one module per lesson. `mhnb.teach.exercise.MODULES` lists them."""
