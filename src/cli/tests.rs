//! The command line as a whole: it parses, and its help says what the contract says.

use clap::{CommandFactory as _, Parser as _};

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn options_of_every_command_stand_before_or_after_it() {
    for line in ["longshore -s nats://a:1 --tenant acme queues", "longshore queues --server nats://a:1 --tenant acme"] {
        let global = parse(line).unwrap().global;
        assert_eq!((global.nats.server.as_deref(), global.tenant.as_str()), (Some("nats://a:1"), "acme"));
    }
    assert_eq!(parse("longshore health --namespace ls2").unwrap().global.namespace(), "ls2");
}

#[test]
fn what_is_wrong_is_refused_with_the_reason() {
    for (line, reason) in [
        ("longshore queues --tenant a.b", "allowed are A-Z a-z 0-9 _ -"),
        ("longshore queues --tenant _sys", "kept for the system"),
        ("longshore submit a..b", "is empty"),
        ("longshore submit a -p 0", "0 is not in 1..=9"),
        ("longshore submit a --delay 5x", "not a valid duration"),
        ("longshore submit a --delay 5s --at 2027-01-31T09:30:00Z", "cannot be used with"),
        ("longshore submit a --run-id main-p5-1", "which clients may not choose"),
        ("longshore events --event done", "completed"),
        ("longshore runs wait", "<ID>"),
        ("longshore runs cancel --state dead", "retrying"),
        ("longshore runs erase", "<ID>"),
        ("longshore runs reschedule r", "--at <TIME>"),
        ("longshore runs reschedule r --at 2027-01-31T09:30:00Z --delay 5s", "cannot be used with"),
        ("longshore schedules put n t", "--cron <EXPRESSION>"),
        ("longshore schedules put n t --every 5m --time-zone UTC", "cannot be used with"),
        ("longshore dlq list --since soon", "duration back from now"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(reason), "{line}: {error}");
    }
    assert!(parse("longshore queues --tenant _all").is_ok());
}

#[test]
fn an_exit_code_says_what_kind_of_error_it_was() {
    assert_eq!(exit_code_of(&Usage("x".to_owned()).into()), Ended::Usage);
    let gave_up = anyhow::Error::new(longshore_actors::Error::GaveUp("x".to_owned())).context("the node has failed");
    assert_eq!(exit_code_of(&gave_up), Ended::RestartLimit);
    assert_eq!(exit_code_of(&anyhow::anyhow!("other")), Ended::Badly);
}
