"""ReFrame's settings for one machine with mpirun; a computing centre has its own."""

site_configuration = {
    "systems": [
        {
            "name": "workstation",
            "descr": "one machine, without a batch system",
            "hostnames": [".*"],
            "partitions": [
                {"name": "default", "scheduler": "local", "launcher": "mpirun", "environs": ["builtin"]},
            ],
        }
    ],
    "environments": [{"name": "builtin"}],
}
