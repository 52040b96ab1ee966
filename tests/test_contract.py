"""How a draft was trained: three ways to say it, two numberings of layers, errors that name file and line."""

from __future__ import annotations

import json

import pytest
from conftest import DATA, real_log

from logscope.contract import Contract, infer, load_contract, show
from logscope.errors import ContractError, UsageError
from logscope.run import load
from logscope.versions import NEW, OLD, parse_version

DRAFT = DATA / "draft-config.json"


def test_a_drafts_config_is_read_directly():
    """A Hugging Face config.json is a contract; keys that belong to others are left alone."""
    contract = load_contract(DRAFT)
    values = json.loads(DRAFT.read_text(encoding="utf-8"))
    assert contract.aux_layer_ids == tuple(values["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    assert contract.hidden_size == values["hidden_size"]
    assert contract.draft_vocab_size == values["draft_vocab_size"]
    assert contract.states == 3
    assert contract.target_num_hidden_layers is None, "the draft's own depth says nothing about the target"


def test_a_folder_with_a_config_is_a_contract(tmp_path):
    """The folder a draft was saved in can be named."""
    (tmp_path / "config.json").write_bytes(DRAFT.read_bytes())
    assert load_contract(tmp_path).aux_layer_ids == (2, 30, 58)


@pytest.mark.parametrize(
    ("ids", "old", "new"),
    [((2, 30, 58), (3, 31, 59), (2, 30, 58)), ((1, 29, 57), (2, 30, 58), (2, 30, 58)), ((-1, 2), (0, 3), (-1, 2))],
)
def test_config_ids_mean_other_layers_on_the_two_sides_of_the_border(ids, old, new):
    """Id + 1 up to 0.5.12; from 0.5.13 on DeepSeek's class takes the id itself, unless the first id is 1.

    Field notes: both servers were run. Where the log names no class, both readings stand.
    """
    contract = Contract(aux_layer_ids=ids)
    both = [old] if old == new else [old, new]
    assert [reading.layers for reading in contract.readings(OLD)] == [old]
    assert [reading.layers for reading in contract.readings(NEW, "DeepseekV3ForCausalLM")] == [new]
    assert [reading.layers for reading in contract.readings(None, "DeepseekV3ForCausalLM")] == both
    assert [reading.layers for reading in contract.readings(NEW)] == both
    assert [reading.layers for reading in contract.readings()] == both


def test_printed_layers_are_unambiguous():
    """aux_layers are what SGLang prints: one reading, whatever the version."""
    readings = Contract(aux_layers=(59, 3, 31)).readings()
    assert [reading.layers for reading in readings] == [(3, 31, 59)]
    assert readings[0].era is None


def test_a_target_of_another_family_kept_id_plus_one():
    """The change at 0.5.13 was made for targets of the DeepSeek family alone."""
    contract = Contract(aux_layer_ids=(2, 18, 33))
    assert contract.readings(NEW, "GptOssForCausalLM")[0].layers == (3, 19, 34)
    assert contract.readings(NEW, "DeepseekV3ForCausalLM")[0].layers == (2, 18, 33)


@pytest.mark.parametrize(
    ("text", "era"),
    [("0.5.12", OLD), ("v0.5.12.post1", OLD), ("0.4", OLD), ("0.5.13", NEW), ("0.5.15.post1", NEW), ("1.0.0", NEW)],
)
def test_versions_as_people_type_them(text, era):
    """--sglang-version takes what pip shows."""
    assert parse_version(text) == era


def test_a_version_that_is_none_says_so():
    """A word that is no version is a usage error, not the newest version."""
    with pytest.raises(UsageError, match="no SGLang version"):
        parse_version("latest")


@pytest.mark.parametrize(
    ("text", "says", "line", "near"),
    [
        ("num_aux_hidden_states = 3\naux_layer = [3]\n", "a contract has no 'aux_layer'", 2, "aux_layers"),
        ("\n\naux_layers = [3, 31, 31]\n", "'aux_layers'", 3, "twice"),
        ("aux_layers = [3, '31']\n", "'aux_layers'", 1, "integer"),
        ("hidden_size = 7168\ntarget_hidden_size = 0\n", "'target_hidden_size'", 2, "greater than 0"),
        ("aux_layers = [3,\n", "is no contract", None, ""),
        ("aux_layers = [5, 31, 59]\naux_layer_ids = [2, 30, 58]\n", "contradicts itself", None, "no reading"),
    ],
)
def test_errors_name_what_where_and_the_nearest_key(tmp_path, text, says, line, near):
    """Every contract error carries what, where (file:line) and why; unknown keys are refused with the nearest one."""
    path = tmp_path / "draft.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    message = caught.value.message
    assert says in message.what
    assert message.where is not None
    assert message.where.file == str(path)
    if line is not None:
        assert message.where.line == line
    assert near in f"{message.why} {message.help} {message.note}"


def test_errors_in_a_config_json_name_the_line(tmp_path):
    """A broken or unfit config.json is refused with the place of the fault."""
    path = tmp_path / "config.json"
    path.write_text('{\n  "hidden_size": "wide",\n  "draft_vocab_size": 10\n}', encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    assert caught.value.message.where is not None
    assert caught.value.message.where.line == 2
    path.write_text('{"hidden_size": 1,\n', encoding="utf-8")
    with pytest.raises(ContractError, match="no JSON"):
        load_contract(path)


def test_a_targets_config_is_not_taken_for_a_drafts(tmp_path):
    """A config without any key of a draft is refused: its layers and widths would be the target's."""
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}', encoding="utf-8")
    with pytest.raises(ContractError, match="not a draft's config"):
        load_contract(path)


def test_a_missing_file_is_a_contract_error():
    """Missing input is trouble (exit 2), with the reason of the system."""
    with pytest.raises(ContractError) as caught:
        load_contract("no/such/contract.toml")
    assert caught.value.exit_code == 2
    assert "No such file" in str(caught.value)


def test_a_toml_contract_can_name_both_configs(tmp_path):
    """draft_config and target_config are read from beside the contract; its own keys win."""
    (tmp_path / "draft.json").write_bytes(DRAFT.read_bytes())
    (tmp_path / "target.json").write_text('{"num_hidden_layers": 61, "hidden_size": 7168}', encoding="utf-8")
    path = tmp_path / "c.toml"
    path.write_text(
        'draft_config = "draft.json"\ntarget_config = "target.json"\nhidden_size = 4096\n', encoding="utf-8"
    )
    contract = load_contract(path)
    assert contract.aux_layer_ids == (2, 30, 58)
    assert contract.target_num_hidden_layers == 61
    assert contract.target_hidden_size == 7168
    assert contract.hidden_size == 4096


@pytest.mark.parametrize(
    ("run", "layers"), [("healthy-topk1", (3, 31, 59)), ("default-layer-ids", (2, 30, 58)), ("style-alt", (3, 31, 59))]
)
def test_a_good_run_is_a_contract(run, layers):
    """`contract from LOG` reads printed layers and widths (README of the real logs: 7168, three states)."""
    contract = infer(load(str(real_log(run))).items, run)
    assert contract.aux_layers == layers
    assert contract.state_width == contract.hidden_size == 7168
    assert contract.states == 3


def test_what_is_written_is_read_back(tmp_path):
    """The TOML form of an inferred contract is the same contract."""
    contract = infer(load(str(real_log("healthy-topk1"))).items, "healthy-topk1")
    path = tmp_path / "good.toml"
    path.write_text(contract.to_toml(), encoding="utf-8")
    again = load_contract(path)
    assert again.model_copy(update={"source": ""}) == contract.model_copy(update={"source": ""})


def test_any_text_survives_the_toml_form(tmp_path):
    """Names with quotes, control characters or other alphabets are written so that TOML reads them back."""
    path = tmp_path / "odd.toml"
    odd = Contract(dtype='a"b\\c\n\x7f\x01 \U0001f600', source="two\nlines = 1")
    path.write_text(odd.to_toml(), encoding="utf-8")
    assert load_contract(path).dtype == odd.dtype


def test_a_run_without_joined_states_is_no_contract():
    """Nothing is inferred from nothing."""
    with pytest.raises(ContractError, match="no joined hidden states"):
        infer(load(str(real_log("no-speculation"))).items, "no-speculation")


def test_both_readings_are_shown():
    """`contract show` puts printed layers and config ids side by side, with the version each reading holds for."""
    report = show(load_contract(DRAFT))
    layers = [row["layers"] for row in report.tables["layers"]]
    assert layers == [[3, 31, 59], [2, 30, 58]]
    assert "3 x 7168 = 21504" in report.headline
    assert report.notes, "the upgrade trap is said"
