//! Hints: what to do next about an error. An error answer brings its own, as the lack of a right does. What NATS and
//! the system say is recognised by their words, as no type of ours stands for it. An error whose own message says what
//! to do has none.

use std::borrow::Cow;

use clap::CommandFactory as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use longshore_backbone::wire::api::ApiError;
use longshore_backbone::{Error as Backbone, MissingRight};
use longshore_domain::duration;

use super::{Cli, submit};

/// What to do next about an error, if that is not plain from its message.
pub(crate) fn hint(error: &anyhow::Error) -> Option<Cow<'static, str>> {
    if let Some(answer) = error.chain().find_map(|cause| cause.downcast_ref::<ApiError>()) {
        return answer.hint.clone();
    }
    if error.chain().any(|cause| cause.is::<MissingRight>()) {
        return Some(MissingRight::HINT.into());
    }
    let connects = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(Backbone::Connect { .. })));
    of_text(&super::ended::text_of(error), connects).map(Cow::Borrowed)
}

/// The hint for an error's text, of which no type of ours stands for what NATS and the system say. What the system says
/// of a file or a port says nothing of whose it is; so what was being done is looked at, too.
fn of_text(text: &str, connects: bool) -> Option<&'static str> {
    let says = |part: &str| text.contains(part);
    let no_connection = |parts: &[&str]| says("cannot connect to NATS") && parts.iter().any(|part| says(part));
    let no_server = says("no private NATS server");
    // Where `dev` cannot keep its data.
    let no_folder = says("cannot make the folder");
    Some(if no_server && says("in use by another running server") {
        "a longshore dev runs in this folder already, and commands here reach it; --dir FOLDER, or --ephemeral, starts one more"
    } else if says("cannot write to stdout") {
        "the output goes to a file or a program that takes no more"
    } else if says("uthorization violation") {
        "NATS refuses the login: --user and --password, --creds, --nkey, --nats-token or a --context give one, or the \
         address itself: nats://user:password@host"
    } else if says("nvalid peer certificate") {
        "--tlsca names a file with the certificate of the authority that signed the server's"
    } else if no_connection(&["CertificateRequired"]) {
        "the server wants a client certificate: --tlscert and --tlskey name its files"
    } else if no_connection(&["BadCertificate", "UnknownCA", "CertificateUnknown", "CertificateExpired"]) {
        "the server does not accept the certificate that --tlscert names: it must be valid now, and signed by an authority \
         that the server trusts (ca_file in its tls section)"
    } else if no_connection(&["KeyMismatch"]) {
        "the key that --tlskey names is not that of the certificate that --tlscert names: give the two that belong together"
    } else if no_connection(&["invalid scheme"]) {
        "a NATS address is nats://host:4222, or tls://host:4222; what serves HTTP is not NATS"
    } else if no_connection(&["failed to lookup address"]) {
        "no such host is known here: is its name spelt right? --server or NATS_URL names it"
    } else if no_connection(&["InvalidContentType"]) {
        "what listens there does not speak TLS: take nats:// instead of tls://, and leave out --tlsca, --tlscert and --tlskey"
    } else if no_connection(&["failed signing nonce"]) {
        "the file that --nkey or NATS_NKEY names holds no seed of an nkey, which begins with SU"
    } else if no_connection(&["timed out"]) {
        "nothing there answers as NATS does: has another program this port, or does a firewall stand between? \
         --server or NATS_URL names another address"
    } else if says("ermissions violation") {
        "the NATS user may not do that: docs/operations.md lists the permissions that each role needs"
    } else if says("error code 10047") {
        // JetStream's code for "insufficient storage resources": it reserves the size that every stream may grow to.
        "the bounds of all streams together are beyond the server's max_file_store; every queue has ten lanes of \
         storage.jobs_max_bytes each: lower the bounds under [storage], or raise the server's"
    } else if says("not restored") && says("non-clustered mode") {
        "this server is alone and keeps one copy of each stream: --replicas 1"
    } else if (no_folder || no_server) && says("o space left on device") {
        "free some space, or keep the data elsewhere: longshore dev --dir FOLDER, or --ephemeral for none"
    } else if says("o space left on device") {
        "free some space there"
    } else if no_folder && says("Read-only file system") {
        "keep the data elsewhere: longshore dev --dir FOLDER, or --ephemeral for none"
    } else if (no_folder || no_server) && says("Permission denied") {
        "choose a folder that may be written: longshore dev --dir FOLDER, or --ephemeral for none"
    } else if connects {
        "is a NATS server running there? longshore dev starts one together with a node; --server or NATS_URL names another"
    } else {
        return None;
    })
}

/// Words that other programs have for what is here under another: behind which command, the word, and what is meant.
const MEANT: [(&str, &[&str], &str); 19] = [
    ("", &["status", "ping"], "health"),
    ("", &["init", "new"], "config print"),
    ("", &["enqueue", "publish", "push", "add"], "submit"),
    ("", &["start", "run", "server", "worker"], "serve"),
    ("", &["jobs", "list", "ls"], "runs"),
    ("", &["workers", "ps"], "nodes"),
    ("", &["logs", "log", "tail"], "events"),
    ("", &["retry", "replay"], "dlq replay"),
    ("", &["cancel"], "runs cancel"),
    ("", &["version"], "--version"),
    ("runs", &["retry", "replay", "rerun", "restart"], "dlq replay"),
    ("runs", &["delete", "remove", "rm"], "runs erase"),
    ("runs", &["show"], "runs get"),
    ("dlq", &["delete", "remove", "rm", "purge"], "dlq discard"),
    ("dlq", &["retry", "requeue", "redrive"], "dlq replay"),
    ("dlq", &["show"], "dlq get"),
    ("schedules", &["create", "add", "new", "set", "update"], "schedules put"),
    ("schedules", &["remove", "rm"], "schedules delete"),
    ("queues", &["create", "add", "declare", "new"], "queues put"),
];

/// A wrong command line's error: with what a word or a lonely duration was meant for, without the suggestion of an
/// option that the command's help does not show, and with the usage that does not depend on which variables are set.
pub(crate) fn improved(mut error: clap::Error) -> clap::Error {
    let Some(usage) = error.get(ContextKind::Usage).map(ToString::to_string) else { return error };
    let (path, usual) = command_of(&usage);
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usual));
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((.., meant)) =
            MEANT.iter().find(|(behind, words, _)| *behind == path && words.contains(&word.as_str()))
    {
        let tip = format!("did you mean longshore {meant}?").into();
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    if path.is_empty()
        && matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(word)) if word == "--json")
    {
        error.remove(ContextKind::SuggestedArg);
        let tip = "--json stands behind the command that it is for".into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && duration::parse(word).is_ok()
        && path == "submit"
    {
        let tip = submit::wait_takes(word).into();
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg) else { return error };
    let command = Cli::command();
    let is = |argument: &clap::Arg| argument.get_long().is_some_and(|long| suggested == &format!("--{long}"));
    if command.get_arguments().any(|argument| is(argument) && argument.is_hide_set()) {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// The command whose usage this is, as the words behind the program's name, and its usage with nothing given: the
/// parser adds options that variables set, as if they had to be there.
fn command_of(usage: &str) -> (String, StyledStr) {
    let mut command = Cli::command();
    command.build();
    let (mut found, mut path) = (&mut command, Vec::new());
    for word in usage.split_whitespace().skip_while(|word| *word != "longshore").skip(1) {
        if found.find_subcommand(word).is_none() {
            break;
        }
        found = found.find_subcommand_mut(word).expect("it was just found");
        path.push(word);
    }
    (path.join(" "), found.render_usage())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_brings_its_hint() {
        let shown = |answer: ApiError| hint(&anyhow::Error::new(answer).context("the job was not accepted"));
        assert_eq!(shown(ApiError::malformed("priority: is not one of 1 to 9")), None);
        assert_eq!(shown(ApiError::not_found("no run").hint("look elsewhere")).as_deref(), Some("look elsewhere"));
    }

    #[test]
    fn an_error_of_the_connection_is_shown_by_its_cause() {
        let connect = |cause: &str| {
            let source = Box::new(std::io::Error::other(cause.to_owned()));
            anyhow::Error::new(Backbone::Connect { url: "nats://x".to_owned(), source })
        };
        for (cause, word) in [
            ("Connection refused (os error 111)", "longshore dev starts one"),
            ("authorization violation: nats: authorization violation", "refuses the login"),
            ("invalid peer certificate: UnknownIssuer", "--tlsca"),
            ("IO error: received fatal alert: CertificateRequired", "--tlscert"),
            ("IO error: received fatal alert: BadCertificate", "--tlscert"),
            ("IO error: received fatal alert: UnknownCA", "--tlscert"),
            ("TLS error: keys may not be consistent: KeyMismatch", "--tlskey"),
            ("failed to parse server or server list: invalid scheme for NATS server URL: http", "nats://"),
            ("DNS error: failed to lookup address information: Name or service not known", "spelt right"),
            ("IO error: received corrupt message of type InvalidContentType", "does not speak TLS"),
            ("failed signing nonce", "--nkey"),
            ("timed out", "firewall"),
        ] {
            let hint = hint(&connect(cause)).unwrap();
            assert!(hint.contains(word), "{cause}: {hint}");
        }
        for (text, word) in [
            ("cannot make the folder .longshore: Read-only file system (os error 30)", "--dir"),
            ("no private NATS server: the folder x is in use by another running server; stop that one", "--ephemeral"),
            ("cannot write to stdout: No space left on device (os error 28)", "goes to a file"),
            ("write failed: No space left on device (os error 28)", "free some"),
            ("insufficient storage resources available, error code 10047", "max_file_store"),
        ] {
            let hint = hint(&anyhow::anyhow!(text.to_owned())).unwrap();
            assert!(hint.contains(word), "{text}: {hint}");
        }
        for text in [
            "other",
            "cannot read the configuration a.toml: Permission denied (os error 13)",
            "cannot use ada.creds: Permission denied (os error 13)",
            "cannot write the manual pages into /root: Read-only file system (os error 30)",
            "cannot listen on 127.0.0.1:8080 (http.listen, LONGSHORE_HTTP__LISTEN): set another port: Address already in use",
        ] {
            assert_eq!(hint(&anyhow::anyhow!(text)), None, "its message says all: {text}");
        }
    }

    #[test]
    fn no_option_is_suggested_that_the_help_does_not_show() {
        let shown = |line: &str| {
            let error = Cli::command().try_get_matches_from(line.split(' ')).unwrap_err();
            improved(error).to_string()
        };
        let unknown = shown("longshore dlq list --state dead");
        assert!(unknown.contains("unexpected argument '--state'") && !unknown.contains("similar"), "{unknown}");
        assert!(!unknown.contains("token"), "an option that nobody asked for: {unknown}");
        assert!(shown("longshore queues --sever x").contains("'--server'"));
        assert!(unknown.contains("Usage: longshore dlq list [OPTIONS]"), "{unknown}");
        assert!(shown("longshore queues --jsno").contains("'--json'"));
        assert!(shown("longshore submit echo 1 --wait 30s").contains("tip: to wait so long at most: --wait=30s"));
        assert!(!shown("longshore runs get r 30s").contains("--wait"));
        let behind = shown("longshore --json queues");
        assert!(behind.contains("tip: --json stands behind") && !behind.contains("--reason"), "{behind}");
    }

    #[test]
    fn a_word_of_other_programs_is_answered_with_the_one_here() {
        for (behind, words, meant) in MEANT {
            let line = format!("longshore {meant}");
            let parsed = Cli::command().try_get_matches_from(line.split(' '));
            let is_one = parsed.err().is_none_or(|error| error.kind() != ErrorKind::InvalidSubcommand);
            assert!(is_one, "{meant} is no command");
            for word in words {
                let line = format!("longshore {behind} {word} x").replace("  ", " ");
                let error = improved(Cli::command().try_get_matches_from(line.split(' ')).unwrap_err()).to_string();
                assert!(error.contains(&format!("tip: did you mean longshore {meant}?")), "{line}: {error}");
            }
        }
    }
}
