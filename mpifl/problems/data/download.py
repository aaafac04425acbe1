"""Where missing image files are fetched from, and the checksums that they must have."""

from __future__ import annotations

from pathlib import Path

from mpifl.errors import ConfigError, error_text

# From the publishers over https. A file with another SHA-256 is refused before it is opened or unzipped.
SOURCES = {  # data set -> address, file -> checksum
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": (
        # the publisher's repository: its other address, a website on Amazon S3, has no https
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
        {
            "train-images-idx3-ubyte.gz": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
}
EMNIST = (
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
)

LETTERS = [f"emnist-letters-{half}-ubyte.gz" for half in
           ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")]  # fmt: skip


def fetch(name: str, folder: Path, file: str) -> None:
    """Downloads `file` of the data set `name` into `folder`.

    Raises ConfigError if that fails or the checksum is wrong.
    """
    from tempfile import TemporaryDirectory

    import pooch

    try:
        if name == "emnist-letters":  # EMNIST is published as one archive of all splits
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder) as scratch:
                unzip = pooch.Unzip(members=[f"gzip/{file}" for file in LETTERS])
                for path in pooch.retrieve(*EMNIST, "gzip.zip", scratch, processor=unzip):
                    Path(path).replace(folder / Path(path).name)
        else:
            address, checksums = SOURCES[name]
            pooch.retrieve(address + file, checksums[file], file, folder)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; pooch's on checksums are ValueErrors
        wrong, remedy = f"the download failed: {error_text(error)}", f"put the file into {folder} yourself"
        raise ConfigError("data file", folder / file, wrong, remedy=remedy) from error
