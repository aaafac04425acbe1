"""A user's mistakes: one line that names the full key and what would be right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpifl.config import read
from mpifl.errors import ConfigError

JOB = """\
name: base
seed: 3
problem: {data: digits, clients: 4, partition: iid, model: logistic, batch_size: 8}
algorithm: {name: area, step_size: 0.5, trigger: {every: 2}}
clock: {mode: virtual, delay: {name: exponential, rate: 10}}
stop: {updates: 20}
"""

# An override of JOB, and the line that refuses it: without the override where it begins with that; "..." is for what is
# left out, as is the end. Where the override is {name: ...}, it is that of `algorithm`, as is the key in the line.
WRONG = """\
nam=x -> ... nearest is name
stpo.time=3 -> stpo= ... nearest is stop
algorithm.step_sise=3 -> ... nearest is algorithm.step_size
step_size=3 -> ... nearest is algorithm.step_size
problem.name=x -> ... nearest is problem.data.name
problem.partition.alpha=1 -> : iid has no alpha; dirichlet has it
algorithm.cohort=4 -> : area has no cohort, as it is asynchronous
algorithm.name=fedavg -> algorithm.trigger={'every': 2}: fedavg has no trigger, as it works in rounds
{name: fedavg, optimizer: adm} -> optimizer.name=adm ... did you mean adam?
{name: fedavg, optimizer: {name: adam, beta: 1}} -> optimizer.beta=1: adam has no beta; mome
algorithm=fedyog -> algorithm.name=fedyog ... did you mean fedyogi?
{name: fedadam, optimizer: yogi} -> optimizer.name=yogi: fedadam stands for name: fedavg, optimizer: adam; expected adam
{name: fadas, cohort: 3} -> cohort=3: fedbuff has no cohort
{name: fednova, steps: [1, 2]} -> steps=2 values: there are 4 clients; expected a number for each client
{name: fednova, steps: [1, 1, 1, 1], local_epochs: 1} -> local_epochs=1: steps are given; expected null
{name: fednova, solver: svrg} -> solver=svrg: a_i is the weight of gradients in plain steps; expected sgd or gd
{name: fednova, solver: torch}
    -> solver=torch: a_i is the weight of gradients in plain steps, which a torch optimiser does not take; expected sgd
{name: fednova, mu: 1, solver: {name: sgd, momentum: 0.5}} -> mu=1 ... known for mu alone
{name: fednova, tau_eff: 0} -> tau_eff=0 ... mean or a number above 0
{name: fedadmm-wang, alpha: 1.9} -> alpha=1.9: fedadmm-wang stands for name: feddr, alpha: 1.0, init: x0; expected 1.0
{name: proxskip, probability: 0.5, period: 2}
    -> period=2: communication is either random, by probability, or periodic; expected 1
{name: proxskip, solver: {name: gd, momentum: 0.5}} -> solver.momentum=0.5 ... plain steps
{name: fedavg, solver: torch} -> solver=torch ... is not a torch module
{name: fedavg, solver: {name: torch, per: contact}} -> solver.per=contact: there is no sch
{name: fedavg, solver: {name: torch, optimizer: 3}} -> solver.optimizer=3 ... or a section
{name: fedavg, solver: {name: torch, optimizer: {lr: 1}}}
    -> solver.optimizer.name=???: required; expected a class of torch.optim
{name: fedavg, solver: {name: torch, schedule: {name: StepLR, step_size: {a: 1}}}}
    -> solver.schedule.step_size={'a': 1} ... a number, true or false
{name: scaffold, solver: {name: sgd, decay: {steps: 1}}}
    -> solver.decay={'contacts': 0.0, 'steps': 1.0, 'power': 1.0}: c_i of option II ... expected null
{name: fedgate, solver: {name: sgd, decay: {steps: 1}}} -> solver.decay= ... the corrections are mean gradients
{name: fednova, solver: {name: sgd, decay: {steps: 1}}} -> solver.decay= ... a_i is the weight
{name: scaffold, solver: torch}
    -> solver=torch: c_i of option II is the mean gradient of plain steps, which a torch optimiser does not take
{name: proxskip, solver: torch} -> solver=torch: the corrections are mean gradients
{name: fedpd, gamma: 1, solver: torch} -> solver=torch ... closed form of Oracle II
{name: area, step_schedule: {name: strongly-convex, mu: 1, L: 2}}
    -> step_weights=samples: step_schedule=strongly-convex loses its rate, which is for clients with equal steps; expected one
{name: area, step_schedule: {name: convex, B: 1, radius: 1, events: 9}}
    -> step_weights=samples: step_schedule=convex loses its rate, which is for clients with equal steps; expected one
{name: area, step_weights: one, step_schedule: {name: convex, B: 1, radius: 1, events: 9}, solver: torch}
    -> solver=torch: the theorem
{name: mime, solver: torch} -> solver=torch ... solver is always sgd in mime
{name: proxskip, local_steps: 3} -> local_steps=3 ... local_steps is always 1 in proxskip
{name: fedbuff, calibrate: true, trigger: {every: 4}, aggregation: median}
    -> aggregation=median: a change that a robust rule leaves out would bias all later steps of calibrate; expected mean
{name: fedavg, aggregation: clip} -> aggregation.norm=???: required
{name: fedavg, aggregation: krun} -> aggregation.name=krun ... did you mean krum?
{name: fedavg, aggregation: {name: krum, bad: 2}}
    -> aggregation.bad=2: krum needs bad + 3 members, and there are 4; give a smaller number, or more members
{name: fedavg, cohort: 3, aggregation: krum} -> aggregation.bad=1: krum needs bad + 3 members, and there are 3
{name: fedavg, aggregation: {name: krum, bad: 1, keep: 4}}
    -> aggregation.keep=4: more than members - bad; expected at most 3
{name: fedbuff, trigger: {every: 3}, aggregation: krum} -> aggregation.bad=1 ... there are 3
{name: fedbuff, trigger: {period: 3}, aggregation: krum}
    -> aggregation.bad=1: krum needs bad + 3 members, and their number is not fixed; give trigger.every, which fixes it
{name: fedprox, sampling: samples, aggregation: krum}
    -> sampling=samples: a client drawn twice is one member, so krum does not know their number; expected uniform
{name: mifa, period: 1, cohort: 3} -> cohort=3: with period every client takes part as it answers; expected null
{name: mifa, period: 1, sampling: samples}
    -> sampling=samples: with period every client takes part as it answers; expected uniform
{name: mifa, weights: samples} -> weights=samples ... uniform only
algorithm=ringmaster -> algorithm.threshold=None: required with step_rule: ringmaster; expected the delay R
{name: async-sgd, threshold: 3} -> threshold=3: given without step_rule: ringmaster; expected null
{name: fedcompass, min_steps: 9, max_steps: 5} -> min_steps=9: above max_steps; expected at most 5
{name: fednova, normalise: false, tau_eff: 3} -> tau_eff=3.0: normalise: false has no such factor; expected mean
{name: async-feddr, trigger: {every: 2}} -> trigger={'every': 2}: async-feddr has no trig
{name: feddr, cohort: 5} -> cohort=5: there are 4 clients; expected at most 4
{name: feddr, accuracy: absolute}
    -> solver=sgd: accuracy is given, and the error of other solvers is unknown; expected gd
{name: feddr, regulariser: {name: box, low: 1, high: 0}} -> regulariser.high=0 ... at least
{name: fedsplit, alpha: 1} -> alpha=1: no such key
{name: inexact-dane, cohort: 2} -> cohort=2: no such key
{name: vrl-sgd, local_epochs: 2} -> local_epochs=2: no such key
{name: async-comm-sgd, gap: [1, 2]} -> gap=2 values: there are 4 clients; expected one number, or one for each client
{name: fedamp, attention_step: 0.34, sigma: 1.0} -> attention_step=0.34 ... at most sig
{name: feddane, mu: 1, accuracy: 0.1}
    -> accuracy=0.1: only solver: gd computes the full gradient; expected null, or that solver
{name: feddane, solver: gd, accuracy: 0.1} -> accuracy=0.1: without mu the error is not known; expected null; or mu above 0
{name: feddane, solver: gd, mu: [1, 0, 1, 1], accuracy: 0.1} -> accuracy=0.1: without mu
{name: feddane, mu: [1, 2, 3]} -> mu=3 values: there are 4 clients; expected one number, or one for each client
{name: feddane, same_set: true, variant: pipelined} -> same_set=True: a pipelined round has one phase; expected false
{name: fedpd, skip: 0.5, period: 2}
    -> period=2: rounds are skipped either at random, by skip, or periodically; expected 1
{name: fedpd, refresh: 2, solver: svrg}
    -> refresh=2: only solver: sarah keeps a gradient estimate; expected 1, or that solver
{name: fedpd, accuracy: 0.001, solver: sarah}
    -> accuracy=0.001: only solver: gd computes the full gradient; expected null, or that solver
{name: fedpd, gamma: 0.5, step_weights: relative}
    -> step_weights=relative: the closed form of gamma has no such factor; expected one
{name: fedprox, drop_percent: 0.5, local_epochs: 1}
    -> local_epochs=1: stragglers of drop_percent run fewer epochs; expected at least 2
{name: fedbuff, lost: drop} -> lost=drop: without calibrate the server keeps nothing of single clients; expected keep
{name: asypfl, mode: synchronous, indicators: {name: given, values: [1, 1, 1, 1]}}
    -> indicators=given: pi_k balances unequal contact rates, which are equal in synchronous rounds; expected equal
{name: asypfl, indicators: {name: given, values: [1, 2]}} -> indicators.values=[1, 2]: there are 4 clients
{name: asypfl, indicators: equal, local_epochs: 3, step_schedule: {name: theorem-2, mu: 1, L: 2}}
    -> local_epochs=3: the theorems count E in local steps; expected null
{name: asypfl, step_schedule: {name: theorem-2, mu: 1, L: 0.5}} -> step_schedule.L=0.5: below mu; expected at least 1
algorithm.step_schedule={name: strongly-convex, mu: 2, L: 1} -> algorithm.step_schedule.L=1 ... at least 2
algorithm.rule=replace -> : area has no rule; async-fedavg has it
{name: asypfl, indicators: equal, cohort: 2}
    -> cohort=2: without rounds every client takes part; expected null, or mode synchronous
{name: asypfl, mode: synchronous, indicators: equal, cohort: 5} -> cohort=5: there are 4 clients; expected at most 4
problem.model.init={name: uniform, half: 1} -> problem.model.init.half=1 ... problem.model.init.half_width
algorithm.trigger.evry=1 -> ... nearest is algorithm.trigger.every
algorithm=arae -> algorithm.name=arae ... did you mean area?
algorithm={step_size: 1}
    -> algorithm.name=???: required; expected one of ace, apfl, area, async-comm-sgd, async-fedavg, async-feddr, async-sgd,
problem.model.init.half_width=1
    -> problem.model.init.name=???: required; expected one of zero, constant, uniform, normal
algorithm.name=7 -> ... one of ace, apfl
problem.partition=[1, 2] -> ... one of iid
clock=virtual -> ... a section with mode, delay
name=7 -> ... text
name=a/b -> : not a valid file name; expected at most 200 bytes of letters, digits and . + = , @ _ -, the first a
seed=9223372036854775808 -> ... from 0 to 2**63 - 1
seed=??? -> : required; expected an integer from 0 to 2**63 - 1
algorithm.step_size=big -> ... a number
algorithm.trigger.period=1 -> algorithm.trigger= ... one of every, period
algorithm.trigger={} -> algorithm.trigger=None ... one of every, period
problem.clients=1000000001 -> ... from 1 to 1000000000
problem.batch_size=9223372036854775808 -> ... at most 9223372036854775807
problem.test_split=0 -> ... above 0 and below 1, or null
problem.test_splt=0.2 -> ... nearest is problem.test_split
problem={model: quadratic, validation_split: 0.2} -> problem.validation_split=0.2 ... quadratic has no data
evaluate={updates: 9, clients: true}
    -> evaluate.clients=True: these clients have no test rows of their own; expected false; or set problem.test_split, such as 0.2
problem={model: quadratic, test_split: 0.2} -> problem.test_split=0.2 ... quadratic has no data
problem={model: torch-logistic, clients: 4, torch: {device: 'cuda:x'}} -> problem.torch.device=
problem={model: torch-logistic, clients: 4, torch: {autocast: float16}} -> problem.torch.autocast=
problem={model: torch-logistic, clients: 4, torch: {buffers: global}} -> problem.torch.buffers=
problem={model: torch-logistic, clients: 4, torch: {threads: 0}} -> problem.torch.threads=0
problem={model: torch-logistic, clients: 4, torch: {batched: 'yes'}} -> problem.torch.batched=yes
problem={model: torch-logistic, clients: 4, torch: {devise: cpu}} -> problem.torch.devise=
problem={model: torch-logistic, clients: 4, options: {a: 1}} -> problem.options=
problem={model: torch-logistic, clients: 4, evaluation_rows: 0} -> problem.evaluation_rows=0
problem={model: logistic, clients: 4, torch: {}} -> problem.torch=
problem={entry: no colon} -> problem.entry=
problem={entry: 'a:b', data: digits} -> problem.data=
problem={entry: 'a:b', partition: iid} -> problem.partition=
problem={entry: 'a:b', model: cnn} -> problem.model=
problem={entry: 'a:b', options: [1]} -> problem.options=
clock.delay={name: fixed, seconds: [1, 1e10, 1, 1]}
    -> clock.delay.seconds[1]=10000000000.0: not valid; expected a number from 0 to 1000000000
clock.delay={name: speed, exchange: [0.0, 1, 1, 1]} -> clock.delay.exchange[0]=0.0 ... above 0
clock.delay={name: speed, compute: fast}
    -> clock.delay.compute=fast ... a number above 0 and up to 1000000000, or a list of numbers above 0
algorithm=asypfl
    -> clock.delay=exponential: it has no separate times of computing and exchanging, which this method needs; expected speed
stop=null -> stop=None ... time
stop={} -> stop=None ... at least one of time, updates, accuracy
evaluate={} -> evaluate=None ... either every
evaluate={every: 1, updates: 2} -> evaluate=every and updates ... either every
faults.lost=forget -> ... one of freeze, rehost, stop
output=${oc.env:HOME}.h5 -> : there is no oc.env:HOME; expected ${...} of a key of this job
output=${output} -> : it refers to itself, by output -> output; expected another reference
output=${stop.name}.h5 -> : there is no stop.name; expected ${...} of a key of this job
output=${}.h5 -> : there is no key without a name; expected ${...} of a key of this job
output=$name}${ -> : a reference that does not end; expected ${, a key and }, as in ${problem.clients}
{name: area, local_steps: '${algorithm}'} -> local_steps=${algorithm}: it refers to itself, by algorithm.local_steps ->
output=results/x.csv -> ... .h5
seed.low=3 -> : seed is not a section
=3 -> override==3 ... key=value
a..b=3 -> override=a..b=3 ... key=value
seed=[1, -> : not valid YAML
seed=!!python/object/apply:os.getcwd [] -> seed= ... not valid YAML
"""  # noqa: E501
ROWS = re.sub(r"^({name: .*?) -> ", r"algorithm=\1 -> algorithm.", WRONG.replace("\n    ->", " ->"), flags=re.MULTILINE)
CASES = [row.split(" -> ", 1) for row in ROWS.splitlines()]


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read.load(path, overrides)
    line = str(caught.value)
    assert "\n" not in line and line == line.strip()
    return line


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize(("override", "says"), CASES, ids=[override for override, _ in CASES])
def test_a_wrong_value(job: Path, override: str, says: str) -> None:
    line = refused(job, override)
    begins, *holds = (f"{override} {says}" if says.startswith("... ") else says).split(" ... ")
    begins = f"{override}{begins}" if begins.startswith(":") else begins
    assert line.startswith(begins) and all(text in line for text in holds), line


def test_clocks_of_a_method_that_needs_timings(job: Path) -> None:
    """Accepted: the virtual clock with `speed`; the real clock, which measures times; options that need no times."""
    for clock in ("{mode: virtual, delay: speed}", "{mode: real, delay: exponential}", "{mode: real}"):
        assert read.load(job, ["algorithm=asypfl", f"clock={clock}"]).algorithm.needs_timings()
    equal = read.load(job, ["algorithm={name: asypfl, indicators: equal}"])
    assert not equal.algorithm.needs_timings() and not equal.clock.delay.has_split_times
    for delay in ("none", "{name: fixed, seconds: 2}", "{name: trace, path: x.csv}"):
        line = refused(job, "algorithm=asypfl", f"clock.delay={delay}")
        assert line.startswith("clock.delay=") and "speed" in line


@pytest.mark.parametrize("section", ["name", "seed", "problem", "algorithm", "stop"])
def test_a_missing_section(tmp_path: Path, section: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("".join(line for line in JOB.splitlines(True) if not line.startswith(section)))
    assert refused(path).startswith(f"{section}=???: required")


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        (b"", "a YAML file with name, seed"),
        (b"- 1\n- 2\n", "a YAML file of sections"),
        (b"just text\n", "a YAML file with name, seed"),
        (b"name: [1\n", "not valid YAML: line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        (b"name: a\nname: b\n", "duplicate key"),
        (b"name: a\nproblem: {1: 2, '1': 3}\n", "a key that is there twice, as text and as a number"),
        (b"name: \x00\n", "not text"),
        (b"\xff\xfe\x00n", "not text"),
        (b"\x89HDF\r\n\x1a\n rest", "HDF5"),
        (b"\x1f\x8b\x08 rest", "not text"),
        (b"import numpy as np\nx = {1: 2}\n", "YAML"),
        (b"a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        (b"a: !!int x\n", "not valid YAML"),
        (b"a: ${b\n", "does not end"),
        (b"[" * 5000, "not valid YAML"),
        (b"1: 2\nname: a\n", "no such key"),
    ],
)
def test_a_file_that_is_no_job(tmp_path: Path, content: bytes, holds: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    assert holds in refused(path)


def test_an_override_has_one_value(job: Path) -> None:
    assert refused(job, "seed=1\nname: x").startswith("seed=1 name: x: further keys follow the value")
    assert read.load(job, ["algorithm={name: area,\n step_size: 3}"]).algorithm.step_size == 3  # type: ignore[attr-defined]


def test_a_job_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "no.yaml")
    assert "cannot be read: Is a directory" in refused(tmp_path)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("evaluate.every=5e-5", "evaluate.every=5e-05: more than 1,000,000 evaluations{}at least 6e-05"),
        ("algorithm.trigger={period: 1e-300}", "algorithm.trigger.period=1e-300: more than {}at least 6e-08"),
        ("algorithm.trigger={poisson: 1e300}", "algorithm.trigger.poisson=1e+300: more than {}at most 1.66667e+07"),
    ],
)
def test_virtual_time_that_would_never_pass(job: Path, override: str, line: str) -> None:
    """More evaluations or aggregations than can be made; the real clock merges those that are overdue."""
    line = line.replace("more than {", "more than 1,000,000,000 aggregations{")
    assert refused(job, "stop={time: 60}", override) == line.format(" to the end (60 s of virtual time); expected ")
    read.load(job, ["stop={time: 60}", override, "clock={mode: real, delay: none}"])
    read.load(job, ["stop={time: 60, updates: 9}", override])  # which comes first depends on the data's clients
    read.load(job, ["stop={time: 50}", "evaluate.every=5e-5"])
