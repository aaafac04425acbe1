"""The run file, written during the run (`writer`) and readable at any instant (`reader`). This imports no h5py."""
