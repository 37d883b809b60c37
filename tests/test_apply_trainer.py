"""`reference.trainer_callback`: a Trainer of `transformers` resumes exactly under a recipe.

Contract: parameters after a run that was broken off and resumed are those of a run without a break, bit for bit.
Oracle: the run without a break; a resume without the callback, which draws other words.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate: pip install accelerate")
pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, BREAK, MICRO = 6, 3, 2


class Toy(nn.Module):
    """Two layers of 64; the loss is part of the forward, as a Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(2))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"loss": (x - labels).square().mean(), "logits": x}


def train(out: Path, callback: bool, resume: bool = False, evaluate: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Toy()
    reference.apply(model, "fourbit_all_layers", seed=3)
    data = [{"x": torch.randn(8, 64), "labels": torch.randn(8, 64)} for _ in range(24)]
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=MICRO,
        save_steps=BREAK,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        eval_strategy="steps" if evaluate else "no",
        eval_steps=2,
    )
    callbacks: list[Any] = [reference.trainer_callback()] if callback else []
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data[:2], callbacks=callbacks)
    trainer.train(resume_from_checkpoint=str(out / f"checkpoint-{BREAK}") if resume else None)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    out = tmp_path_factory.mktemp("whole")
    return out, train(out, callback=True)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_resumed_run_has_the_bits_of_one_without_a_break(whole: tuple[Path, dict[str, Tensor]]) -> None:
    out, parameters = whole
    assert equal(train(out, callback=True, resume=True), parameters)


def test_evaluations_between_steps_change_no_bit(whole: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    assert equal(train(tmp_path, callback=True, evaluate=True), whole[1])


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}
WIDE = {"intermediate_size": 64}
NARROW = WIDE | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "num_experts": 2}
LIBRARY = {
    "Mixtral": WIDE | {"num_local_experts": 2},
    "Qwen2Moe": NARROW | {"num_experts_per_tok": 1},
    "Qwen3Moe": NARROW | {"num_experts_per_tok": 1, "head_dim": 32},
}


def library_run(kind: str, out: Path, resume: Path | None = None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **LIBRARY[kind])
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    reference.apply(model, "fourbit_all_layers")
    data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(32, (4, 8))]
    fixed = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "learning_rate": 1e-2, "max_steps": 2}
    arguments = transformers.TrainingArguments(str(out), save_steps=1, **fixed)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[reference.trainer_callback()])
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", LIBRARY)
def test_experts_that_the_library_saves_under_other_names_are_resumed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = library_run(kind, tmp_path)
    assert equal(library_run(kind, tmp_path, tmp_path / "checkpoint-1"), parameters)
    assert "is not there" not in capsys.readouterr().err


def test_a_checkpoint_that_the_callback_cannot_find_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library_run("Mixtral", tmp_path / "one")
    library_run("Mixtral", tmp_path / "two", tmp_path / "one" / "checkpoint-1")
    told = capsys.readouterr().err
    assert "checkpoint-1 is not there" in told and "resume_from_checkpoint of TrainingArguments" in told


def test_without_the_callback_a_resumed_run_draws_other_words(tmp_path: Path) -> None:
    parameters = train(tmp_path, callback=False)
    assert not equal(train(tmp_path, callback=False, resume=True), parameters)


def test_the_callback_needs_a_model_that_follows_a_recipe() -> None:
    state = type("State", (), {"global_step": 4})()
    with pytest.raises(ValueError, match="no part of this Toy was given to apply"):
        reference.trainer_callback().on_step_begin(None, state, None, model=Toy())
