def options(p): pass
