//! The command line as a whole: it parses, and its help says what the contract says.

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
    no_option_shadows(&Cli::command(), &Cli::command());
}

/// The parser distinguishes options by their ids alone: one with the id of a global option ends the program with a
/// panic.
fn no_option_shadows(command: &clap::Command, global: &clap::Command) {
    for sub in command.get_subcommands() {
        let shadows =
            sub.get_arguments().find(|own| global.get_arguments().any(|global| global.get_id() == own.get_id()));
        assert!(shadows.is_none(), "{}: {shadows:?}", sub.get_name());
        no_option_shadows(sub, global);
    }
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
fn what_there_is_of_a_kind_is_listed_by_the_same_word_everywhere() {
    for kind in ["breakers", "concurrency", "dlq", "limits", "nodes", "queues", "runs", "schedules"] {
        for line in
            [format!("longshore {kind}"), format!("longshore {kind} --json"), format!("longshore {kind} list --json")]
        {
            assert!(parse(&line).is_ok(), "{line}");
        }
        assert!(parse(&format!("longshore {kind} --tenant acme list")).is_ok(), "{kind}");
    }
}

#[test]
fn what_is_wrong_is_refused_with_the_reason() {
    for (line, reason) in [
        ("longshore queues --tenant a.b", "allowed are A-Z a-z 0-9 _ -"),
        ("longshore queues --tenant _sys", "kept for the system"),
        ("longshore submit a..b", "'[TYPE]': begins or ends with a dot, or has two in a row"),
        ("longshore submit a -p 0", "0 is not in 1..=9"),
        ("longshore submit a --delay 5x", "not a valid duration"),
        ("longshore submit a --delay 5s --at 2027-01-31T09:30:00Z", "cannot be used with"),
        ("longshore submit a --run-id main-p5-1", "which clients may not choose"),
        ("longshore events --event done", "completed"),
        ("longshore runs wait", "<ID>"),
        ("longshore runs cancel --state dead", "retrying"),
        ("longshore runs erase", "<ID>"),
        ("longshore runs reschedule r", "--at <TIME>|--delay <DURATION>|--set-priority <1-9>|--set-queue <NAME>"),
        ("longshore queues pause", "QUEUE|--type <TYPE>"),
        ("longshore why r --within 1h", "1h is not within 0s to 30s"),
        ("longshore work t --wait 1h", "1h is not within 0s to 10m"),
        ("longshore work t --lease 1ms", "1ms is not within 1s to 1d"),
        ("longshore runs list --limit 0", "not a whole number from 1 on"),
        ("longshore runs reschedule r --at 2027-01-31T09:30:00Z --delay 5s", "cannot be used with"),
        ("longshore schedules put n t", "--cron <EXPRESSION>|--every <DURATION>"),
        ("longshore schedules put n t --every 5m --cron x", "cannot be used with"),
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
    assert_eq!(super::ended::exit_code_of(&Usage("x".to_owned()).into()), Ended::Usage);
    let gave_up = anyhow::Error::new(longshore_actors::Error::GaveUp("x".to_owned())).context("the node has failed");
    assert_eq!(super::ended::exit_code_of(&gave_up), Ended::RestartLimit);
    assert_eq!(super::ended::exit_code_of(&anyhow::anyhow!("other")), Ended::Failure);
}

/// A shell's words of a command in a document, up to a comment, a pipe, a redirection or the next command.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '<' | '&' | ';' | ')') => break,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The commands of a document: lines of shell that begin with `longshore`, and code within a sentence that does.
fn commands(document: &str) -> Vec<Vec<String>> {
    let lines = document.lines().filter(|line| line.starts_with("longshore "));
    let within = document.lines().filter(|line| !line.starts_with("longshore "));
    let within =
        within.flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|code| code.starts_with("longshore "));
    // Not a form of commands, nor a line of a Cargo.toml.
    let is_one = |command: &&str| !command.contains('…') && !command.contains(" [") && !command.contains(" = ");
    lines.chain(within).filter(is_one).map(words).collect()
}

/// A newcomer copies them: an option that was renamed would be the first thing that fails.
#[test]
fn every_command_in_the_documents_is_one() {
    assert_eq!(words(r#"longshore submit fail '{"times":2}' --wait || echo "exit code $?" # x"#).len(), 5);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["docs", "docs/how-to"].into_iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "md"));
    let mut found = 0;
    for page in pages.chain([root.join("README.md")]) {
        for command in commands(&std::fs::read_to_string(&page).unwrap()) {
            found += 1;
            let Err(error) = Cli::try_parse_from(&command) else { continue };
            // A sentence may name a command without what it is about.
            let is_named = matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand);
            assert!(is_named, "{}: {}: {error}", page.display(), command.join(" "));
        }
    }
    assert!(found > 80, "the documents' commands are found: {found}");
}

#[test]
fn help_fits_a_screen_and_hides_no_option() {
    let help = |line: &str| Cli::definition().try_get_matches_from(line.split(' ')).unwrap_err().to_string();
    for path in ["runs get", "config print", "queues", "dlq list", "why", "nodes", "doctor"] {
        for asked in ["-h", "--help"] {
            let help = help(&format!("longshore {path} {asked}"));
            assert!(help.lines().count() <= 40, "{path}: {help}");
            assert!(help.contains("--server") && help.contains("longshore help nats"), "{path}: {help}");
        }
    }
    let page = help("longshore help nats");
    for argument in Cli::command().get_arguments().filter(|argument| argument.is_hide_set()) {
        let option = format!("--{}", argument.get_long().unwrap());
        assert!(page.contains(&option), "{option}: {page}");
    }
}

#[test]
fn every_noun_has_a_list() {
    fn lists<C: Subcommand>() {
        for json in [false, true] {
            assert!(Noun::<C> { json, command: None }.chosen().is_ok());
        }
    }
    lists::<RunsCommand>();
    lists::<DlqCommand>();
    lists::<SchedulesCommand>();
    lists::<QueuesCommand>();
    lists::<LimitsCommand>();
    lists::<BreakersCommand>();
    lists::<KeysCommand>();
    lists::<BatchesCommand>();
    lists::<WebhooksCommand>();
    lists::<ConcurrencyCommand>();
    lists::<FaultsCommand>();
    lists::<NodesCommand>();
}
