from importlib.resources import files

TABLE = files("acme_fx") / "acme-rt.json"
