"""Prints the value for --autocast: "bf16" if a matrix product in bfloat16 is at least 1.3 times as fast here, or "off".

    nmt-precision

Whether bfloat16 gains is a question of the hardware: GPUs since Ampere and CPUs with AVX512-BF16 or AMX do; on others
it is emulated and slower.
"""

import torch

from .shared.command import exit_in_one_line, new_parser
from .shared.precision import faster_precision


@exit_in_one_line("nmt-precision")
def main(arguments: list[str] | None = None) -> None:
    new_parser("nmt-precision", __doc__).parse_args(arguments)
    print(faster_precision("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
