"""What of the submitter's environment looks like a secret, by its name or its value."""

import pytest

from rota.submission.build import build
from rota.submission.environment import own_environment, submit_environment

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GH_PAT", "ghp_x"), ("OPENAI_KEY", "sk-x"), ("SENTRY_DSN", "https://x@sentry.io/1"), ("DBPASS", "x"),
        ("LDAP_BINDPW", "x"), ("DATABASE_URL", "postgres://me:secret@db:5432/x"), ("http_proxy", "http://u:p@proxy:80"),
        ("MY_CERT", KEY), ("NPM_CONFIG__AUTH", "x"), ("aws_secret_access_key", "x"), ("REDIS", "redis://:pw@h:6379/0"),
    ],
)  # fmt: skip
def test_secrets_stay(name, value):
    assert submit_environment({name: value, "LANG": "C"}) == ({"LANG": "C"}, [name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgres://db:5432/x"), ("PATH", "/usr/bin:/bin"), ("KEYBOARD", "de"), ("PATTERN", "a:b@c"),
        ("URL", "https://host:8080/a@b"), ("MODULEPATH", "/opt/m"), ("MAIL", "me@host"), ("PWDUMMY", "x"),
    ],
)  # fmt: skip
def test_what_is_none_is_sent(name, value):
    assert submit_environment({name: value})[0] == {name: value}


def test_the_user_knows_better():
    given = {"COMPANY_X": "1", "http_proxy": "http://u:p@proxy:80", "SLURM_JOB_ID": "7"}
    assert submit_environment(given, ["COMPANY_*"], ["http_proxy", "SLURM_*"])[0] == {"http_proxy": given["http_proxy"]}


def test_a_change_of_our_own_environment_or_of_the_patterns_is_seen_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("ROTA_HOME", str(tmp_path))
    monkeypatch.setenv("ROTA_TEST", "left out")
    monkeypatch.setenv("SAMPLE", "s1")
    first = own_environment()
    assert first.sent["SAMPLE"] == "s1" and "ROTA_TEST" in first.left_out and not first.secrets
    assert own_environment() is first
    submission = build(["true"], {})
    (submission.env or {})["SAMPLE"] = "whoever has it may change it"
    assert own_environment().sent["SAMPLE"] == "s1" and (submission.env or {})["SAMPLE"] == "s1"
    monkeypatch.setenv("SAMPLE", "s2")
    monkeypatch.setenv("DB_PASSWORD", "x")
    second = own_environment()
    assert second.sent["SAMPLE"] == "s2" and "DB_PASSWORD" in second.secrets
    monkeypatch.delenv("DB_PASSWORD")
    (tmp_path / "config.toml").write_text('[secrets]\nnames = ["SAMP*"]\n')
    third = own_environment()
    assert "SAMPLE" in third.left_out and "DB_PASSWORD" not in third.left_out
