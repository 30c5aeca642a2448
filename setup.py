"""Installs user_dir as a package, and what it needs; examples/install/ has the versions that are tested."""

import pathlib
import re

from setuptools import find_packages, setup

# nmt- keeps `translate`, `score` and the like of other packages out of the way.
tools = sorted(file.stem for file in pathlib.Path(__file__).parent.glob("user_dir/tools/[!_]*.py"))

ctranslate2 = ["ctranslate2>=4.6,<5"]  # user_dir.tools.export_ctranslate2; glibc 2.41 does not load 4.5

# A package index shows the README without the files beside it: their links become plain words, their pictures go.
readme = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"^!\[[^]]*\]\([^)]*\)\n+", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", readme)

setup(
    name="fairseq-transformer-variants",
    version="0.2.0",
    description="Transformer variants for machine translation as a fairseq user directory",
    long_description=readme,
    long_description_content_type="text/markdown",
    author="The fairseq-transformer-variants authors",
    license_expression="MIT",
    license_files=["LICENSE"],
    keywords=["machine translation", "Transformer", "fairseq", "relative positions", "attention"],
    classifiers=["Operating System :: POSIX :: Linux", "Topic :: Text Processing :: Linguistic"],
    packages=find_packages(include=["user_dir", "user_dir.*"]),
    package_data={"user_dir.tools.attention_page": ["page.html"]},
    entry_points={"console_scripts": [f"nmt-{tool.replace('_', '-')} = user_dir.tools.{tool}:main" for tool in tools]},
    python_requires=">=3.11,<3.14",  # fairseq-fixed imports from 3.11 on; 3.14 writes Optional[int] as int | None
    install_requires=[
        "fairseq-fixed>=0.12.3.1,<0.13",  # imports as `fairseq`: trainer, data, generator
        "torch>=2.6",  # loads checkpoints weights-only
        "sacremoses>=0.2,<0.3",  # normalises, tokenises and detokenises
        "subword-nmt>=0.3.8,<0.4",  # byte-pair encoding
        "regex>=2024.4.16",  # knows the marks of scripts; sacremoses and sacrebleu bring it
        "sentencex>=1.0.32,<2",  # splits a line into its sentences before it is translated
        "sacrebleu>=2.6,<3",  # scores
        "matplotlib>=3.8,<4",  # draws for user_dir.tools.plot_… and compare
        "scipy>=1.11,<2",  # t-tests with intervals; fairseq brings it
        "pypi-simple>=1.8,<2",  # finds a corpus that a package index holds
        "requests>=2.20,<3",  # downloads, and resumes a broken download
        "tqdm>=4.60,<5",  # progress bars
        "tensorboardX>=2.6,<3",  # fairseq's --tensorboard-logdir; without it fairseq complains whenever it is imported
    ],
    extras_require={
        "dev": [
            "pytest>=8",
            "pytest-xdist>=3.2",  # --dist worksteal
            "ruff>=0.12",  # UP045, which was a part of UP007
            "pangolinn>=0.0.1,<0.1",  # suites of tests of padding and causality
            *ctranslate2,
        ],
        "ctranslate2": ctranslate2,
    },
)
