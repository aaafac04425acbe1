"""The run file, written during the run (`writer`) and readable at any instant (`reader`). Importing this package
does not import h5py.
"""
