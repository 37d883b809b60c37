"""The command line: `fourbit COMMAND [ARGUMENT ...]`. It only dispatches.

Each command imports its folder when it runs, so `fourbit --help` is instant and a folder that is broken or lacks its
extras stops its own command alone. This is also the one place that hands the trainer its operations (`ops`).

Exit codes: a command's own; 2 for a mistake of the user, told in one sentence on stderr (FOURBIT_TRACEBACK=1 shows the
traceback too); 130 after an interrupt from the keyboard, 143 of a run that SIGTERM has ended; 141 when the reader of a
pipe has gone. Any other exception is a defect of ours and keeps its traceback.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

__version__ = "0.1.0"


def _demo(argv: list[str]) -> int:
    from studies import demo

    return demo.main(argv)


def _train(argv: list[str]) -> int:
    from hw.choose import operations
    from reference import train

    return train.main(argv, operations)


def _sft(argv: list[str]) -> int:
    from hw.choose import operations
    from reference import sft

    return sft.main(argv, operations)


def _rl(argv: list[str]) -> int:
    from hw.choose import operations
    from reference import rl

    return rl.main(argv, operations)


def _pipeline(argv: list[str]) -> int:
    from studies import pipeline

    return pipeline.main(argv)


def _eval(argv: list[str]) -> int:
    from hw.choose import operations
    from reference import evaluate

    return evaluate.main(argv, operations)


def _generate(argv: list[str]) -> int:
    from hw.choose import operations
    from reference import generate

    return generate.main(argv, operations)


def _export(argv: list[str]) -> int:
    from reference import export

    return export.main(argv)


def _tokenize(argv: list[str]) -> int:
    from reference import tokenizing

    return tokenizing.main(argv)


def _study(argv: list[str]) -> int:
    from studies import study

    return study.main(argv)


def _order(argv: list[str]) -> int:
    from studies import loss_order

    return loss_order.main(argv)


def _compare(argv: list[str]) -> int:
    from studies import compare_runs

    return compare_runs.main(argv)


def _recipes(argv: list[str]) -> int:
    from reference import recipe_table

    return recipe_table.main(argv)


def _validate(argv: list[str]) -> int:
    if argv[:1] == ["training"]:
        from studies import training_match

        return training_match.main(argv[1:])

    from hw import validate

    return validate.main(argv)


def _census(argv: list[str]) -> int:
    from hw import census

    return census.main(argv)


def _probe(argv: list[str]) -> int:
    from hw import probe

    return probe.main(argv)


def _monitor(argv: list[str]) -> int:
    from studies import monitor_plot

    return monitor_plot.main(argv)


def _bench(argv: list[str]) -> int:
    if argv[:1] == ["training"]:
        from studies import bench_training

        return bench_training.main(argv[1:])
    if argv[:1] == ["decode"]:
        from studies import bench_decode

        return bench_decode.main(argv[1:])
    if argv[:1] == ["monitor"]:
        from numerics import ops
        from reference import monitor_cost

        return monitor_cost.main(argv[1:], ops)
    if argv[:1] == ["data"]:
        from hw.choose import operations
        from reference import data_cost

        return data_cost.main(argv[1:], operations)
    if argv[:1] == ["wires"]:
        from reference import wire_cost

        return wire_cost.main(argv[1:])
    if argv[:1] == ["matmul"]:
        from hw import bench_matmul

        return bench_matmul.main(argv[1:])
    if argv[:1] == ["hw"]:
        from hw import bench_hw

        return bench_hw.main(argv[1:])
    if argv[:1] == ["experts"]:
        from hw import bench_experts

        return bench_experts.main(argv[1:])

    from hw import bench_numerics

    return bench_numerics.main(argv)


def _dialects(argv: list[str]) -> int:
    from studies import dialects_table

    return dialects_table.main(argv)


def _vectors(argv: list[str]) -> int:
    from hw import vectors

    return vectors.main(argv)


def _check(argv: list[str]) -> int:
    from hw import check

    return check.main(argv)


def _formats(argv: list[str]) -> int:
    from numerics import show

    return show.formats_main(argv)


def _show(argv: list[str]) -> int:
    from numerics import show

    return show.show_main(argv)


def _explorer(argv: list[str]) -> int:
    from notebooks import explorer

    return explorer.main(argv)


@dataclass(frozen=True)
class Command:
    """One word of the command line: what help says about it, and the function that its arguments go to."""

    summary: str
    run: Callable[[list[str]], int]


COMMANDS: dict[str, Command] = {
    "demo": Command("train one small model under four recipes and write a report", _demo),
    "train": Command("train a model under a recipe", _train),
    "sft": Command("fine-tune a model on prompts and completions, or chats", _sft),
    "rl": Command("improve a model by rewards that can be checked: GRPO", _rl),
    "pipeline": Command("pretrain, fine-tune and reinforce under several recipes, and write a report", _pipeline),
    "eval": Command("evaluate a trained model: held-out loss, bits per byte, small tasks with known answers", _eval),
    "generate": Command("continue a text by a trained model", _generate),
    "export": Command(
        "write a trained model as a folder that other tools load: compressed-tensors, modelopt, BF16", _export
    ),
    "tokenize": Command("train a tokenizer and write tokenized shards to train on", _tokenize),
    "monitor": Command("show what a run's monitor has seen: table, figure, TensorBoard", _monitor),
    "compare": Command("set the held-out curves of runs side by side: table and figure", _compare),
    "recipes": Command("print a recipe of number formats role by role, or what two differ in", _recipes),
    "study": Command("list, run NAME or report: questions, measurements and figures", _study),
    "order": Command("rank recipes by loss: equal data, paired seeds, intervals, published claims judged", _order),
    "validate": Command(
        "compare kernels on this machine, or yours, with the emulation, bit for bit; validate training: whole runs",
        _validate,
    ),
    "probe": Command("find how this machine adds products, and which accumulator of the table does the same", _probe),
    "census": Command(
        "compile every kernel for Blackwell and Hopper, without a GPU, and judge its machine code", _census
    ),
    "check": Command(
        "say which quantizer made a dump, or what is wrong with it or with a quantized checkpoint", _check
    ),
    "dialects": Command("print the table of public quantizers: bytes, NaN, ties, error, source", _dialects),
    "vectors": Command("write the conformance pack: golden vectors that need nothing else of fourbit", _vectors),
    "bench": Command(
        "time the emulation, training or kernels: bench numerics|matmul|training|decode|data|monitor|wires|hw|experts",
        _bench,
    ),
    "formats": Command("print tables of the element and block formats", _formats),
    "show": Command("take one code of a format apart, or encode a number: show E4M3 0x6C", _show),
    "explorer": Command("write a page that shows bits and blocks in a browser, without a server", _explorer),
}


def usage() -> str:
    """The text of `fourbit --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            f"fourbit {__version__}: end-to-end 4-bit training, emulated bit for bit",
            "usage: fourbit COMMAND [ARGUMENT ...]",
            *lines,
            "`fourbit COMMAND --help` tells a command's arguments.",
        ]
    )


def dispatch(argv: list[str]) -> int:
    """Run the command that `argv` names and return its exit code. ValueError if there is no such command."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"fourbit {__version__}")
        return 0
    if name not in COMMANDS:
        raise ValueError(f"unknown command {name!r}; the known ones are {', '.join(COMMANDS)}")
    return COMMANDS[name].run(argv[1:])


def main(argv: list[str] | None = None) -> int:
    """Run `argv` (the process's own arguments by default); return the exit code. See the module for the codes."""
    try:
        try:
            code = dispatch(sys.argv[1:] if argv is None else argv)
        except SystemExit:  # an argument parser has printed help, or its own error
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here, where a closed pipe can still be handled, not at the interpreter's exit
        return code
    except BrokenPipeError:
        # what is still buffered can go nowhere; without this the interpreter would fail on it once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as error:
        told = str(error) or "interrupted; the same command continues a run from its last checkpoint, if there is one"
        print(f"fourbit: {told}", file=sys.stderr)
        return int(getattr(error, "code", 130))  # a run says what it has saved, and which signal came
    except Exception as error:
        if not _is_users(error):
            raise
        if os.environ.get("FOURBIT_TRACEBACK") == "1":
            traceback.print_exception(error)
        print(f"fourbit: error: {_sentence(error)}", file=sys.stderr)
        return 2


_REMEDIES = {
    errno.ENOSPC: "make room or name another folder, then give the same command again",
    errno.EROFS: "name a folder that can be written",
    errno.EACCES: "name a file or folder that may be used",
}


def _is_users(error: Exception) -> bool:
    """Whether the error tells of an argument, a file or a stopped run, rather than of a defect."""
    # a run can only have stopped if its module is loaded, so looking it up here imports nothing
    stopped = getattr(sys.modules.get("reference.train"), "TrainingStopped", ())
    return isinstance(error, (ValueError, OSError)) or isinstance(error, stopped)


def _sentence(error: Exception) -> str:
    """The error in one line: the system's errors as `what: which file; remedy`, others in their own words."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{where}; {_REMEDIES.get(error.errno or 0, 'name another path')}"
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
