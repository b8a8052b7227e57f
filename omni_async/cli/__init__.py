"""The command line; :mod:`omni_async.cli.main` is the door."""
