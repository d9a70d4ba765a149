# Written by internal/python. Do not change it: run make gen.
