"""Scouts: percentiles, what is learned, when the rest goes."""

import pytest

from rota.schedule.broker.scouts import Preset, Used, checks, evaluate, learn, percentile, scout_priority


def test_percentiles() -> None:
    assert percentile(range(1, 11), 75) == 7.75
    assert percentile([10, 20, 30, 40], 95) == pytest.approx(38.5)
    assert percentile([5], 75) == 5 and percentile([3, 1, 2], 0) == 1 and percentile([3, 1, 2], 100) == 3
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_memory_with_base_and_cores() -> None:
    jobs = [Used(100, 8, (100 + 8 * per_core) * 1024) for per_core in (1000, 2000, 3000, 4000)]
    found = learn(jobs, Preset(base_ram_mb=100, cores=8))
    assert found.ram_mb == int(3250 * 1.1) and "memory 3575 MB from 4 jobs" in found.why
    assert learn(jobs, Preset("MBPerCoreFixed")).ram_mb is None
    assert learn(jobs[:1], Preset("MB")).ram_mb == int(8100 * 1.1)
    assert learn(jobs, Preset(base_ram_mb=100), {"SCOUT_RAMCOUNT_MIN": 5000}).ram_mb == 5000
    assert learn([Used(100)], Preset()).ram_mb is None, "nothing is known"


def test_time_per_event() -> None:
    jobs = [Used(600 + 1000, 8, events=1000, corepower=10.0)]
    found = learn(jobs, Preset(base_walltime_s=600))
    assert (found.cpu_time, found.cpu_time_unit) == (108, "HS06sPerEvent"), "1000 s · 10 · 8 · 0.9 / 1000 · 1.5"
    few = [Used(1000, 8, events=79)]
    assert learn(few, Preset()).cpu_time is None, "fewer than ten events for each core"
    assert learn([Used(7 * 3600, 8, events=2)], Preset()).cpu_time is not None, "unless it took long"
    small = learn([Used(100, events=10_000, corepower=10.0)], Preset())
    assert (small.cpu_time, small.cpu_time_unit) == (135, "mHS06sPerEvent")
    assert learn(jobs, Preset(cpu_time_unit="HS06sPerEventFixed")).cpu_time is None


def test_the_rest() -> None:
    jobs = [Used(100, 2, cpu_s=7200, input_mb=100, output_bytes=50 << 20, work_mb=700, read_kb=1000, write_kb=500)]
    found = learn(jobs, Preset(work_disk_mb=500))
    assert found.walltime == 7200 * 1.5 / 100 and found.work_disk_mb == 700
    assert found.out_disk_kb == 512 and found.disk_io == 15
    assert found.io_intensity == (100 * 1024 + 50 * 1024) / 100 / 2
    assert learn(jobs, Preset(work_disk_mb=800)).work_disk_mb is None, "the larger one stays"
    assert learn(jobs, Preset(walltime=1000)).walltime is None
    assert learn(jobs, Preset(), {"SCOUT_DISK_IO_CAP": 5}).disk_io == 5
    short = [Used(100, cpu_s=3599, input_mb=1)]
    assert learn(short, Preset()).walltime is None, "what takes less than an hour tells no time"
    assert learn([], Preset()).ram_mb is None


@pytest.mark.parametrize(
    ("finished", "failed", "what"),
    [(0, 0, "wait"), (4, 0, "wait"), (5, 0, "go"), (4, 5, "wait"), (0, 10, "broken"), (4, 6, "broken"), (5, 5, "go")],
)
def test_when_the_rest_goes(finished, failed, what) -> None:
    assert evaluate(10, finished, failed).what == what


def test_no_scouts_and_one() -> None:
    assert evaluate(0, 0, 0).what == "go" and evaluate(1, 0, 0).what == "wait" and evaluate(1, 1, 0).what == "go"
    assert scout_priority(500) == 901 and scout_priority(950) == 951


def test_what_is_far_from_what_was_said() -> None:
    jobs = [Used(200_000, events=100, max_pss_kb=5000 * 1024)]
    preset = Preset(cpu_time=10, ram_mb=2000)
    found = learn(jobs, preset)
    assert len(checks(found, preset, 100, 200_000)) == 2
    assert checks(found, preset, 20, 200_000) == [], "few jobs are left"
    assert len(checks(found, preset, 100, 3600)) == 1, "it is wrong, but short"
