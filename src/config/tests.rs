//! What users see of the configuration: errors word by word, the file that ships, the settings in force.

use std::time::Duration;

use longshore_actors::{Context, Handlers, PressureSettings, Settings};
use longshore_backbone::Storage;
use longshore_domain::backoff::{Backoff, Jitter};
use longshore_domain::breaker::BreakerPolicy;
use longshore_domain::concurrency::OnBusy;
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::limit::{RateLimit, Window};
use longshore_domain::policy::{History, Policies, QueuePolicy, TypePolicy};
use longshore_domain::pressure::PressureLimits;
use longshore_domain::{JobType, Queue};

use super::*;

fn handlers() -> Handlers {
    let nothing = |_: Context| async { Ok(()) };
    ["noop", "echo", "sleep", "fail"].iter().fold(Handlers::new(), |handlers, name| handlers.with(*name, nothing))
}

pub(super) fn load(text: &str, variables: &[(&str, &str)]) -> Result<Configuration, String> {
    let source = Source::new("longshore.toml".into(), text.to_owned());
    let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Configuration::from_parts(Some(source), variables, &handlers()).map_err(|error| error.to_string())
}

pub(super) fn settings(text: &str) -> Settings {
    load(text, &[]).unwrap().settings
}

fn problems(text: &str) -> String {
    load(text, &[]).unwrap_err()
}

#[test]
fn what_payloads_may_be_does_not_hold_for_deliveries_of_webhooks() {
    let text = "[defaults]\npayload_max = '4KiB'\n[types.\"a\"]\nmax_attempts = 2";
    let types = settings(text).policies.types;
    let bound = |job_type: &str| types[job_type].payload_max;
    assert_eq!((bound("a"), bound("longshore.webhook")), (Some(4 << 10), None));
}

#[test]
fn what_is_not_said_of_deliveries_of_webhooks_is_as_usual() {
    let defaults = "[defaults]\nhandler = 'remote'\nmax_attempts = 2\ntimeout = '1s'\nheartbeat = '1s'\n\
                    concurrency = 3\npayload_max = '4KiB'\nbackoff = { delays = ['1s'] }\n";
    let policy = |more: &str| {
        let mut types = settings(&format!("{defaults}{more}")).policies.types;
        types.remove("longshore.webhook").unwrap()
    };
    let own = "[types.'longshore.webhook']\nweight = 5\n";
    let usual = policy("");
    assert_eq!((usual.max_attempts, usual.concurrency), (15, Some(3)));
    assert_eq!(policy(own), TypePolicy { weight: 5, ..usual.clone() });
    let webhooks = "[webhooks]\nconcurrency = 20\n";
    assert_eq!(policy(webhooks), TypePolicy { concurrency: Some(20), ..usual.clone() });
    assert_eq!(policy(&format!("{webhooks}{own}")).concurrency, Some(20));
    let said = policy(&format!("{webhooks}{own}max_attempts = 4\nconcurrency = 7"));
    assert_eq!(said, TypePolicy { weight: 5, max_attempts: 4, concurrency: Some(7), ..usual });
}

#[test]
fn without_a_file_all_settings_are_the_defaults_of_the_crates() {
    let Settings { name, shutdown_grace, mut policies, storage, schedules, pressure, traces, log, .. } = settings("");
    let Settings { audit_file, event_file, webhooks, .. } = settings("");
    assert!(webhooks.is_some_and(|webhooks| webhooks.queue == Queue::main()));
    let deliveries = policies.types.remove("longshore.webhook").unwrap();
    assert_eq!((deliveries.max_attempts, deliveries.timeout), (15, Duration::from_secs(30)));
    assert!(traces.is_none() && log.is_none() && audit_file.is_none() && event_file.is_none());
    assert_eq!(pressure, Some(PressureSettings { root: "/".into(), limits: PressureLimits::default() }));
    assert_eq!(settings("[pressure]\nwatch = false").pressure, None);
    assert!(!schedules.is_said && schedules.schedules.is_empty());
    assert!(Queue::parse(&name).is_ok(), "{name}");
    assert_eq!(shutdown_grace, Duration::from_secs(30));
    assert_eq!(storage, Storage::default());
    let queues = [(Queue::main(), QueuePolicy::default())].into();
    assert_eq!(policies, Policies { queues, default_type: TypePolicy::default(), ..Policies::default() });
}

/// Every setting of the contract, as the contract writes it.
const CONTRACT: &str = r#"
namespace = "ls2"
[node]
name = "n1"
lease = "2s"
[http]
listen = "off"
[storage]
jobs_max_bytes = 1048576
completed_max_age = "24h"
[idempotency]
window = "1h"
release_on = ["dead", "cancelled", "expired"]
[queues.main]
concurrency = 8
[queues.bulk]
aging = "0s"
[retries.fast]
base = "250ms"
factor = 2
max = "1m"
[retries.listed]
delays = ["1s","5s","25s","125s"]
[retries.added]
jitter = "additive"
spread = "2s"
[defaults]
max_attempts = 3
backoff = "listed"
[types."email.send"]
handler = "remote"
max_attempts = 12
timeout = "60s"
heartbeat = "15s"
backoff = { base = "1s", factor = 3.0, max = "10m", jitter = "proportional", spread = 0.5 }
rate_limit = { rate = 100, per = "1s", burst = 100 }
concurrency = 10
breaker = { failures = 7, cool_down = "10s", probes = 2, ratio = 0.5, per_key = true }
history = "failures"
[types.flaky]
handler = "fail"
[tenants.acme]
rate_limit = { rate = 50, per = "1s", burst = 100 }
weight = 1
"#;

#[test]
fn the_contracts_own_example_is_read() {
    let Settings { policies, storage, name, .. } = settings(CONTRACT);
    assert_eq!((name.as_str(), storage.namespace.as_str()), ("n1", "ls2"));
    assert_eq!((storage.lease, storage.jobs_max_bytes), (Duration::from_secs(2), 1_048_576));
    assert_eq!(policies.queues.keys().map(Queue::as_str).collect::<Vec<_>>(), ["bulk", "main"]);
    assert_eq!(policies.queues["main"].concurrency, 8);
    assert_eq!(policies.queues["bulk"].aging, Duration::ZERO);

    let listed = Backoff::Delays([1, 5, 25, 125].map(Duration::from_secs).to_vec());
    assert_eq!(policies.retries["listed"], listed);
    let jitter = |name: &str| match &policies.retries[name] {
        Backoff::Exponential { jitter, .. } => *jitter,
        Backoff::Delays(_) => panic!("{name} is a list"),
    };
    assert_eq!(
        (jitter("fast"), jitter("added")),
        (Jitter::Proportional(0.25), Jitter::Additive(Duration::from_secs(2)))
    );

    let email = &policies.types[&JobType::parse("email.send").unwrap()];
    assert_eq!((email.max_attempts, email.heartbeat), (12, Some(Duration::from_secs(15))));
    assert_eq!((email.handler.as_deref(), email.history), (Some("remote"), History::Failures));
    let cool_down = Duration::from_secs(10);
    let (breaker, max_cool_down) = (BreakerPolicy::default(), 10 * cool_down);
    let breaker = BreakerPolicy { failures: 7, probes: 2, ratio: Some(0.5), per_key: true, ..breaker };
    assert_eq!(email.breaker, Some(BreakerPolicy { cool_down, max_cool_down, ..breaker }));
    assert_eq!(policies.default_type.breaker, None);
    assert!(matches!(email.backoff, Backoff::Exponential { jitter: Jitter::Proportional(0.5), .. }));
    let flaky = &policies.types[&JobType::parse("flaky").unwrap()];
    assert_eq!((flaky.max_attempts, &flaky.backoff), (3, &listed), "what a type leaves out is as in [defaults]");
}

#[test]
fn every_mistake_is_reported_with_its_place_and_remedy() {
    let text = r#"
[node]
lease = "2x"
leese = "30s"
[queues.main]
concurrency = 0
[types."email.send"]
max_attempts = "many"
timeout = 30
[types.email.send]
timeout = "1s"
[queues."a b"]
[http.listen]
[storage]
replicas = 7
jobs_max_bytes = "4GB"
[unknown]
"#;
    assert_eq!(
        problems(text),
        r#"the configuration has 11 mistakes

longshore.toml:3:9: node.lease: "2x" is not a valid duration; write a whole number and a unit, such as 500ms, 30s, 5m, 2h or 7d (3650d at most)
  3 | lease = "2x"
    |         ^^^^

longshore.toml:4:1: node.leese: is not known; did you mean lease?
  4 | leese = "30s"
    | ^^^^^

longshore.toml:6:15: queues.main.concurrency: 0 is out of bounds; 1 to 10000
  6 | concurrency = 0
    |               ^

longshore.toml:8:16: types."email.send".max_attempts: "many" is not a whole number
  8 | max_attempts = "many"
    |                ^^^^^^

longshore.toml:9:11: types."email.send".timeout: 30 is not a duration such as "500ms", "30s", "5m", "2h" or "7d"
  9 | timeout = 30
    |           ^^

longshore.toml:10:14: types.email.send: is not a setting of a type; a type with dots is written in quotes, [types."email.send"]
  10 | [types.email.send]
     |              ^^^^

longshore.toml:12:9: queues."a b": the name has a blank at byte 1; allowed are A-Z a-z 0-9 _ -
  12 | [queues."a b"]
     |         ^^^^^

longshore.toml:13:1: http.listen: is a table; it should be an address and port such as "127.0.0.1:8080", a list of them, or "off"
  13 | [http.listen]
     | ^^^^^^^^^^^^^

longshore.toml:15:12: storage.replicas: 7 is out of bounds; 1 to 5
  15 | replicas = 7
     |            ^

longshore.toml:16:18: storage.jobs_max_bytes: "4GB" is not a number of bytes such as "64MiB" or "4GiB" (KiB, MiB, GiB, TiB)
  16 | jobs_max_bytes = "4GB"
     |                  ^^^^^

longshore.toml:17:2: unknown: is not known; known here: namespace, node, http, audit, webhooks, faults, pressure, telemetry, storage, idempotency, admission, email, queues, retries, defaults, types, limits, tenants, schedules
  17 | [unknown]
     |  ^^^^^^^"#
    );
}

#[test]
fn rules_over_several_settings_are_reported_beside_the_others() {
    let text = r#"
[node]
reply_prefix = "longshore.x"
[retries.slow]
base = "1h"
[retries.mixed]
delays = ["1s"]
base = "1s"
[retries.empty]
delays = []
[retries.added]
jitter = "additive"
[retries.wide]
spread = "2s"
[defaults]
handler = "nop"
[types.a]
backoff = "quick"
[types.b]
handler = "email.send"
timeout = "0s"
"#;
    assert_eq!(
        problems(text),
        r#"the configuration has 10 mistakes

longshore.toml:3:16: node.reply_prefix: "longshore.x" would let clients have answers written to $… or longshore.…
  3 | reply_prefix = "longshore.x"
    |                ^^^^^^^^^^^^^

longshore.toml:5:8: retries.slow.base: 1h is longer than max, 10m
  5 | base = "1h"
    |        ^^^^

longshore.toml:7:10: retries.mixed.delays: stands alone: it takes the place of base, factor, max, jitter and spread
  7 | delays = ["1s"]
    |          ^^^^^^

longshore.toml:10:10: retries.empty.delays: needs one delay at least
  10 | delays = []
     |          ^^

longshore.toml:12:10: retries.added.jitter: is additive, which needs spread, a duration
  12 | jitter = "additive"
     |          ^^^^^^^^^^

longshore.toml:14:10: retries.wide.spread: is a duration, but jitter is proportional; write a number from 0 to 1, or jitter = "additive"
  14 | spread = "2s"
     |          ^^^^

longshore.toml:16:11: defaults.handler: "nop" is not a handler of this program; there are: remote, command.run, echo, email.send, fail, noop, sleep
  16 | handler = "nop"
     |           ^^^^^

longshore.toml:18:11: types.a.backoff: "quick" is not a preset of [retries]; there are: added, empty, mixed, slow, wide
  18 | backoff = "quick"
     |           ^^^^^^^

longshore.toml:20:11: types.b.handler: "email.send" needs email.server
  20 | handler = "email.send"
     |           ^^^^^^^^^^^^

longshore.toml:21:11: types.b.timeout: "0s" is out of bounds; 1ms or more
  21 | timeout = "0s"
     |           ^^^^"#
    );
}

#[test]
fn a_setting_that_is_missing_has_the_place_of_its_table() {
    let text = "[schedules.n]\ntype = 'a'\n[schedules.m]\ncron = '0 0 * * *'\n[http.jwt]\nissuer = 'a'\n\
                [http.tls]\ncert = '/no/a'\nkey = '/no/b'\nclient_ca = '/no/c'";
    let found = problems(text);
    for place in [
        "longshore.toml:1:12: schedules.n.cron: is missing",
        "longshore.toml:3:12: schedules.m.type: is missing",
        "longshore.toml:5:7: http.jwt.jwks_url: is missing",
        "longshore.toml:5:7: http.jwt.audience: is missing",
        "longshore.toml:8:8: http.tls.cert: /no/a: ",
        "longshore.toml:9:7: http.tls.key: /no/b: ",
        "longshore.toml:10:13: http.tls.client_ca: /no/c: ",
    ] {
        assert!(found.contains(place), "{place}: {found}");
    }
}

#[test]
fn no_mistake_shows_a_secret() {
    for (text, key) in [
        ("[email]\nserver = 'smtp://a:SECRET@mail.example'", "email.server"),
        ("[email]\nserver = 'smtp://a:SECRET@mail.example:x'", "email.server"),
        ("[email]\npasword = 'SECRET'", "email.pasword"),
        ("[email]\npassword = ['SECRET']", "email.password"),
        ("[telemetry]\nendpoint = 'http://a:SECRET@b'", "telemetry.endpoint"),
        ("[http.jwt]\njwks_url = 'http://a:SECRET@b'", "http.jwt.jwks_url"),
        ("[types.a]\nhandler = 'http.call'\nhttp = { headers = {Authorization = 'SECRET'} }", "types.a.http.headers"),
        (
            "[types.a]\nhandler = 'http.call'\nhttp = { headers = {A = 'SECRET'}, redirects = 9 }",
            "types.a.http.redirects",
        ),
        ("[types.a]\nhandler = 'http.call'\nhttp = { headers = 'SECRET' }", "types.a.http.headers"),
        ("[schedules.a]\npayload = 'SECRET'\nevery = 5", "schedules.a.every"),
    ] {
        let found = problems(text);
        assert!(found.contains(&format!(": {key}: ")) && !found.contains("SECRET"), "{text}: {found}");
    }
    assert!(problems("[email]\nserver = 'smtp://shop@mail.example'").contains("| server = 'smtp://shop@"));
    assert!(problems("[email]\npassword = { env = 'NO_SUCH' }\nserver = 'smtp://a@b'").contains("| password = "));
}

#[test]
fn invalid_toml_is_shown_with_its_line() {
    assert_eq!(
        problems("[node\nlease = \"2s\"\nname = \"a\" \"b\"\n"),
        "the configuration has 2 mistakes\n\n\
         longshore.toml:1:6: unclosed table, expected `]`\n  1 | [node\n    |      ^\n\n\
         longshore.toml:3:12: unexpected key or value, expected newline, `#`\n  3 | name = \"a\" \"b\"\n    |            ^"
    );
}

#[test]
fn the_environment_stands_behind_the_file_and_wins() {
    let text = "[node]\nlease = \"30s\"\n[queues.bulk-mail]\n[types.\"email.send\"]\nbackoff = \"x\"\n[retries.x]\n";
    let variables = [
        ("LONGSHORE_NAMESPACE", "ls3"),
        ("LONGSHORE_NODE__LEASE", "2s"),
        ("LONGSHORE_NODE__NAME", "123"),
        ("LONGSHORE_STORAGE__REPLICAS", "3"),
        ("LONGSHORE_STORAGE__DLQ_MAX_AGE", ""),
        ("LONGSHORE_QUEUES__BULK_MAIL__CONCURRENCY", "7"),
        ("LONGSHORE_TYPES__EMAIL__SEND__TIMEOUT", "5s"),
        ("LONGSHORE_TYPES__EMAIL__SEND__BACKOFF__BASE", "3s"),
        ("LONGSHORE_TYPES__report.Render__BACKOFF", "{ base = \"2s\", jitter = \"none\" }"),
        ("LONGSHORE_RETRIES__SLOW__DELAYS", "[\"1m\"]"),
        ("LONGSHORE_SERVICE_HOST", "10.0.0.1"),
        ("LONGSHORE_LOG", "debug"),
    ];
    let Settings { name, policies, storage, .. } = load(text, &variables).unwrap().settings;
    assert_eq!((name.as_str(), storage.namespace.as_str(), storage.replicas), ("123", "ls3", 3));
    assert_eq!((storage.lease, storage.dlq_max_age), (Duration::from_secs(2), Storage::default().dlq_max_age));
    assert_eq!(policies.queues["bulk-mail"].concurrency, 7);
    let email = &policies.types[&JobType::parse("email.send").unwrap()];
    assert_eq!(email.timeout, Duration::from_secs(5));
    assert!(matches!(email.backoff, Backoff::Exponential { base: Duration { .. }, .. }));
    let report = &policies.types[&JobType::parse("report.Render").unwrap()];
    assert!(matches!(report.backoff, Backoff::Exponential { jitter: Jitter::None, .. }));
    assert_eq!(policies.retries["slow"], Backoff::Delays(vec![Duration::from_secs(60)]));
}

#[test]
fn a_mistake_in_the_environment_names_the_variable() {
    let variables = [
        ("LONGSHORE_NODE__LEESE", "2s"),
        ("LONGSHORE_NODE__LEASE", "10ms"),
        ("LONGSHORE_QUEUES__MAIN__CONCURRENCY", "many"),
        ("LONGSHORE_QUEUES__MAIN", "{}"),
        ("LONGSHORE_TYPES__A__BACKOFF__BAES", "1s"),
    ];
    let unknown = "names no setting; longshore config print shows the variable of each";
    assert_eq!(
        load("", &variables).unwrap_err(),
        [
            "the configuration has 5 mistakes",
            "environment variable LONGSHORE_NODE__LEASE: node.lease: \"10ms\" is out of bounds; 1s or more",
            &format!("environment variable LONGSHORE_NODE__LEESE: {unknown}"),
            &format!("environment variable LONGSHORE_QUEUES__MAIN: {unknown}"),
            "environment variable LONGSHORE_QUEUES__MAIN__CONCURRENCY: queues.main.concurrency: \"many\" is not a whole number",
            &format!("environment variable LONGSHORE_TYPES__A__BACKOFF__BAES: {unknown}"),
        ]
        .join("\n\n")
    );
}

#[test]
fn a_table_in_a_variable_that_is_not_one_says_so() {
    let variables = [("LONGSHORE_DEFAULTS__BACKOFF", "{ base = 2s }")];
    let found = load("", &variables).unwrap_err();
    let said = "environment variable LONGSHORE_DEFAULTS__BACKOFF: defaults.backoff: is not a table as the file has it";
    assert!(found.contains(said), "{found}");
    let found = problems("namespace = 'a b'");
    assert!(found.contains("namespace: \"a b\" has ' '; allowed are a-z 0-9 -"), "{found}");
}

#[test]
fn settings_whose_effect_is_hardly_wanted_are_warned_about() {
    let configuration = load("[storage]\ncompleted_max_age = '5s'", &[]).unwrap();
    assert_eq!(
        configuration.warnings(),
        [
            "storage.completed_max_age (5s) is shorter than two leases (1m): a job that completed may run again after a crash"
        ]
    );
}

#[test]
fn tenants_and_types_have_their_weights() {
    let text = "[tenants.acme]\nweight = 3\n[tenants.other]\nmax_waiting = 7\n[types.acme]\nweight = 2\n[queues.main]\n\
        fair_by = 'type'\n[queues.bulk]";
    let policies = settings(text).policies;
    let weight = |key: FairnessKey| policies.weight_of(&key);
    let of_tenant = |tenant| weight(FairnessKey::Tenant(longshore_domain::Tenant::parse(tenant).unwrap()));
    assert_eq!(["acme", "other", "third"].map(of_tenant), [3, 1, 1]);
    assert_eq!(["acme", "other"].map(|name| weight(FairnessKey::Type(JobType::parse(name).unwrap()))), [2, 1]);
    assert_eq!((policies.queues["main"].fair_by, policies.queues["bulk"].fair_by), (FairBy::Type, FairBy::Tenant));
}

#[test]
fn what_becomes_of_jobs_of_a_busy_key_is_read_and_checked() {
    let of = |text: &str| settings(text).policies.of(&JobType::parse("a").unwrap()).on_busy;
    assert_eq!(of(""), OnBusy::Wait);
    for (name, on_busy) in [("drop_new", OnBusy::DropNew), ("keep_newest", OnBusy::KeepNewest)] {
        assert_eq!(of(&format!("[types.a]\non_busy = '{name}'")), on_busy);
    }
    assert_eq!(of("[defaults]\non_busy = 'cancel_running'"), OnBusy::CancelRunning);
    let wrong = |text: &str| load(text, &[]).err().unwrap().to_string();
    let unknown = wrong("[types.a]\non_busy = 'drop'");
    assert!(unknown.contains("types.a.on_busy") && unknown.contains("keep_newest"), "{unknown}");
    let many = wrong("[types.a]\non_busy = 'drop_new'\nkey_concurrency = 101");
    assert!(many.contains("types.a.key_concurrency: 101 is too many beside on_busy"), "{many}");
    let is_ordered = |text: &str| settings(text).policies.of(&JobType::parse("a").unwrap()).ordered;
    assert!(is_ordered("[types.a]\nordered = true") && !is_ordered("[types.b]\nordered = true"));
    let many = wrong("[types.a]\nordered = true\nkey_concurrency = 3");
    assert!(many.contains("types.a.key_concurrency: 3 at once have no order"), "{many}");
    let drops = wrong("[types.a]\nordered = true\non_busy = 'keep_newest'");
    assert!(drops.contains("types.a.on_busy: drops or cancels jobs"), "{drops}");
}

#[test]
fn http_is_served_at_the_usual_port_unless_something_else_is_set() {
    let http = |text: &str, variables: &[(&str, &str)]| load(text, variables).unwrap().http().listen.clone();
    let at = |text: &str| text.parse().unwrap();
    assert_eq!(http("", &[]), Listen::AtOrFree(at("127.0.0.1:8080")));
    assert_eq!(http("[http]\nlisten = '127.0.0.1:8080'", &[]), Listen::At(vec![at("127.0.0.1:8080")]));
    assert_eq!(http("[http]\nlisten = 'off'", &[]), Listen::Off);
    let all = ("LONGSHORE_HTTP__LISTEN", "[::]:80");
    assert_eq!(http("", &[all, ("LONGSHORE_HTTP__AUTH", "keys")]), Listen::At(vec![at("[::]:80")]));
    assert_eq!(http("[http]\nallow_open = true", &[all]), Listen::At(vec![at("[::]:80")]));
    let open = load("", &[all]).unwrap_err().to_string();
    assert!(open.contains("http.listen: [::]:80 is reached by other machines"), "{open}");
}

#[test]
fn rate_limits_are_read_and_checked() {
    let text = r#"
[types.a]
rate_limit = { rate = 5, per = "2s", window = "sliding" }
limit = "crm"
[limits.crm]
rate = 7
[tenants.acme]
rate_limit = { rate = 3, burst = 9 }
"#;
    let policies = settings(text).policies;
    let limit = |rate, per, burst, window| RateLimit { rate, per: Duration::from_secs(per), burst, window };
    let own = &policies.types["a"];
    assert_eq!(own.rate_limit, Some(limit(5, 2, 5, Window::Sliding)));
    assert_eq!(policies.limits[own.limit.as_ref().unwrap()], limit(7, 1, 7, Window::Bucket));
    assert_eq!(policies.tenants["acme"].rate_limit, Some(limit(3, 1, 9, Window::Bucket)));

    let wrong = |text: &str| problems(text);
    assert!(wrong("[types.a]\nlimit = \"crm\"").contains("\"crm\" is not a limit of [limits]; there is none"));
    let fixed = wrong("[limits.x]\nwindow = \"fixed\"\nburst = 3\nper = \"500ms\"");
    assert!(fixed.contains("limits.x.burst") && fixed.contains("limits.x.per"), "{fixed}");
}

#[test]
fn the_file_that_ships_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/longshore.toml");
    let shipped = std::fs::read_to_string(path).unwrap_or_default();
    assert!(shipped == reference(), "generate it again: cargo run -- config print > config/longshore.toml");
}

#[test]
fn the_file_changes_nothing_and_is_valid_with_every_setting_uncommented() {
    let (written, nothing) = (settings(&reference()), settings(""));
    assert_eq!((written.policies, written.storage), (nothing.policies, nothing.storage));

    let uncomment = |line: &str| match line.strip_prefix('#') {
        // Files that the examples name are not there.
        Some(rest) if rest.starts_with("schema") || rest.starts_with("tls = {") => line.to_owned(),
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[') => rest.to_owned(),
        _ => line.to_owned(),
    };
    let all = reference().lines().map(uncomment).collect::<Vec<_>>().join("\n");
    let configuration = load(&all, &[]).unwrap();
    assert_eq!(configuration.settings.storage, Storage::default(), "the examples are the defaults where there are any");
    for line in configuration.in_force().lines() {
        // A schedule has either cron or every.
        let unset = ["schema", "every", "# tls"].iter().any(|key| line.contains(key));
        assert!(unset || !line.ends_with("is not set"), "the file does not show {line:?}");
    }
}

#[test]
fn every_variable_of_the_file_names_its_setting() {
    for line in reference().lines().filter(|line| line.starts_with('#') && !line.starts_with("# ")) {
        let Some((setting, variable)) = line[1..].split_once(" # LONGSHORE_") else { continue };
        let (_, value) = setting.split_once(" = ").unwrap();
        let value: toml::Value = value.trim().parse().unwrap();
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        // The preset and the limit that examples name, and what a schedule cannot do without.
        let also = [("LONGSHORE_RETRIES__FAST__BASE", "1s"), ("LONGSHORE_LIMITS__CRM__RATE", "1")];
        let of_schedule = [
            ("LONGSHORE_SCHEDULES__NIGHTLY__TYPE", "t"),
            ("LONGSHORE_SCHEDULES__NIGHTLY__CRON", "0 0 3 * * *"),
            ("LONGSHORE_SCHEDULES__NIGHTLY__IDEMPOTENCY_KEY", "k"),
        ];
        let needed = match variable {
            "EMAIL__SERVER" => &[("LONGSHORE_EMAIL__PASSWORD", "x")],
            _ if variable.starts_with("SCHEDULES__") => &of_schedule[..],
            _ => &[],
        };
        let variable_of_line = format!("LONGSHORE_{variable}");
        let variables = [&also[..], needed, &[(variable_of_line.as_str(), text.as_str())]].concat();
        let configuration = match load("", &variables) {
            // The variable is known; the file that the example names is not there.
            Err(problem) if variable.contains("__SCHEMA") && problem.contains("schema") => continue,
            Err(problem) if variable == "HTTP__TLS" && problem.contains(": /etc/longshore/") => continue,
            loaded => loaded.unwrap(),
        };
        assert!(configuration.in_force().contains(&format!("# LONGSHORE_{variable}")), "{line}");
    }
}

#[test]
fn what_is_in_force_is_shown_with_its_origin() {
    let text = "[defaults]\ntimeout = \"5s\"\n[types.\"a.b\"]\nbackoff = { base = \"2s\" }\n[types.c]\nbackoff = \"x\"\n[retries.x]\ndelays = [\"1s\"]\n";
    let shown = load(text, &[("LONGSHORE_NODE__LEASE", "9s")]).unwrap().in_force();
    let line = |wanted: &str| {
        let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.lines().any(|line| squeezed(line) == wanted), "{wanted:?} is not in\n{shown}");
    };
    line("namespace = \"longshore\" # default");
    line("lease = \"9s\" # LONGSHORE_NODE__LEASE");
    line("# name is not set");
    line("[queues.main]");
    line("concurrency = 64 # default");
    line("timeout = \"5s\" # longshore.toml:2");
    line("timeout = \"5s\" # defaults, longshore.toml:2");
    line("[types.\"a.b\"]");
    line("backoff.base = \"2s\" # longshore.toml:4");
    line("backoff.factor = 3.0 # default");
    line("backoff = \"x\" # longshore.toml:6");
    line("delays = [\"1s\"] # longshore.toml:8");
    let again = load(&shown, &[]).unwrap();
    assert_eq!(again.settings.policies, load(text, &[]).unwrap().settings.policies, "what is shown means the same");
}

/// Operators see no secret, and of a type what it has of its own.
#[test]
fn operators_see_the_settings_without_secrets() {
    let text = "[defaults]\ntimeout = \"5s\"\n[email]\nserver = \"smtp://a@mail.example:587\"\npassword = \"s3cret\"\n[types.a]\nmax_attempts = 3\n[schedules.n]\ntype = \"a\"\nevery = \"5m\"\npayload = { card = \"s3cret\" }\n[types.b]\nhandler = \"command.run\"\ncommand = { program = \"/bin/sh\", env = { A = \"s3cret\", B = { env = \"PATH\" } } }\n";
    let configuration = load(text, &[("LONGSHORE_NODE__LEASE", "9s")]).unwrap();
    let shown: Vec<String> = (configuration.settings.in_force.iter())
        .map(|one| format!("[{}] {} = {} # {}", one.section, one.name, one.value.as_deref().unwrap_or("-"), one.from))
        .collect();
    let all = shown.join("\n");
    assert!(!all.contains("s3cret") && !configuration.in_force().contains("s3cret"), "{all}");
    for line in [
        "[] namespace = \"longshore\" # default",
        "[node] lease = \"9s\" # LONGSHORE_NODE__LEASE",
        "[node] name = - # default",
        "[email] password = \"left out\" # longshore.toml:5",
        "[types.a] max_attempts = 3 # longshore.toml:7",
        "[types.b] command.env = { A = \"left out\", B = { env = \"PATH\" } } # longshore.toml:14",
        "[schedules.n] payload = \"left out\" # longshore.toml:11",
    ] {
        assert!(shown.iter().any(|shown| shown == line), "{line} is not in\n{all}");
    }
    assert!(!all.contains("[types.a] timeout"), "{all}");
}

#[test]
fn settings_that_contradict_each_other_are_reported_before_the_start() {
    for (text, problem) in [
        ("namespace = 'Shop'", "namespace: \"Shop\" has 'S'; allowed are a-z 0-9 -"),
        ("namespace = 'my_shop'", "namespace: \"my_shop\" has '_'"),
        ("[storage]\nreplicas = 2", "storage.replicas: 2 is even"),
        ("[storage]\nreplicas = 4", "storage.replicas: 4 is even"),
        ("[storage]\nevents_max_age = '119s'", "storage.events_max_age: "),
        ("[storage]\ndlq_max_age = '1m'", "storage.dlq_max_age: "),
        ("[types.a]\nheartbeat = '61s'", "types.a.heartbeat: 61s is longer than timeout, 1m"),
        ("[types.a]\nheartbeat = '9s'\ntimeout_max = '8s'", "types.a.heartbeat: 9s is longer than timeout, 8s"),
        ("[defaults]\ntimeout = '2m'\ntimeout_max = '1m'", "defaults.timeout: 2m is longer than timeout_max, 1m"),
        ("[defaults]\ntimeout = '2m'\n[types.a]\ntimeout_max = '1m'", "defaults.timeout: 2m is longer"),
    ] {
        let problems = problems(text);
        assert!(problems.contains(problem), "{text}: {problems}");
    }
    settings("namespace = 'shop-2'\n[storage]\nreplicas = 3\nevents_max_age = '2m'\n[types.a]\ntimeout_max = '1s'");
}

#[test]
fn a_declared_schedule_is_read() {
    let text = "[schedules.nightly]\ncron = '0 30 3 * * *'\ntime_zone = 'Europe/Berlin'\njitter = '30s'\ntype = 'report.send'\n\
                payload = { report = 'daily', parts = [1, 0.5], at = 2027-01-31T09:30:00Z }\ntimeout = '5m'\ntags = ['a']\n\
                schema_version = '2'\nidempotency_key = 'k'\nunique = 'active'\non_conflict = 'reject'\nidempotency_window = '1h'";
    let schedules = settings(text).schedules;
    let [(tenant, put)] = &schedules.schedules[..] else { panic!("not one: {schedules:?}") };
    assert_eq!((tenant.as_str(), put.schedule.jitter_ms, schedules.is_said), ("default", Some(30_000), true));
    let payload = put.job.payload.as_ref().unwrap().get();
    assert_eq!(payload, r#"{"at":"2027-01-31T09:30:00Z","parts":[1,0.5],"report":"daily"}"#);
    assert_eq!((put.job.timeout_ms, put.job.tags.as_deref()), (Some(300_000), Some(&["a".to_owned()][..])));
    let said = (put.job.schema_version.as_deref(), put.job.unique.as_deref(), put.job.on_conflict.as_deref());
    assert_eq!(said, (Some("2"), Some("active"), Some("reject")));
    assert_eq!(put.job.idempotency_window_ms, Some(3_600_000));
    assert!(settings("[schedules]").schedules.is_said && !settings("").schedules.is_said);
}

#[test]
fn the_mistakes_of_a_declared_schedule_have_their_places() {
    for (text, problem) in [
        ("[schedules.a]\ncron = '0 0 3 * * *'", "schedules.a.type: is missing"),
        ("[schedules.a]\ntype = 't'", "schedules.a.cron: is missing; or give every"),
        (
            "[schedules.a]\ntype = 't'\ncron = '0 3 * *'",
            "longshore.toml:3:8: schedules.a.cron: \"0 3 * *\" has 4 fields",
        ),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\ncron = '0 0 3 * * *'", "schedules.a.every: stands beside cron"),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\njitter = '2d'", "schedules.a.jitter: is more than 1d"),
        (
            "[schedules.a]\ntype = 't'\ncron = '0 0 3 * * *'\ntime_zone = 'Mars'",
            "schedules.a.time_zone: \"Mars\" is not a zone",
        ),
        ("[schedules.a]\ntype = 'a..b'\nevery = '5m'", "schedules.a.type: begins or ends with a dot"),
        (
            "[schedules.a]\ntype = 't'\nevery = '5m'\nends_at = 'soon'",
            "schedules.a.ends_at: \"soon\" is not a valid RFC 3339",
        ),
        (
            "[schedules.a]\ntype = 't'\nevery = '5m'\noverlap = 'queue'",
            "schedules.a.overlap: \"queue\" is not one of \"allow\", \"skip\"",
        ),
        ("[schedules.main-p5]\ntype = 't'\nevery = '5m'", "ends like the queue and priority"),
        (
            "[schedules.a]\ntype = 't'\nevery = '5m'\nidempotency_key = 'k'\nunique = 'x'",
            "longshore.toml:5:10: schedules.a.unique: \"x\" is not one of window, queued, active",
        ),
        (
            "[schedules.a]\ntype = 't'\nevery = '5m'\nidempotency_key = 'k'\non_conflict = 'x'",
            "schedules.a.on_conflict: \"x\" is not one of return, reject, replace",
        ),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\nunique = 'active'", "schedules.a.unique: needs an idempotency_key"),
        (
            "[schedules.a]\ntype = 't'\nevery = '5m'\ntimeout = '0s'",
            "longshore.toml:4:11: schedules.a.timeout: is zero",
        ),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\nexpires_in = '0s'", "schedules.a.expires_in: is zero"),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\ndeadline = '0s'", "longshore.toml:4:12: schedules.a.deadline: "),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\ncost = 0", "schedules.a.cost: is not one of 1 to"),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\ntags = ['a,b']", "schedules.a.tags: "),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\npayload = [nan]", "schedules.a.payload: NaN is no number of JSON"),
        (
            "[admission]\ntypes = ['u']\n[schedules.a]\ntype = 't'\nevery = '5m'",
            "longshore.toml:4:8: schedules.a.type: t is not among the types that are taken",
        ),
        ("[schedules.a]\ntype = 't'\nevery = '5m'\ncrom = 'x'", "schedules.a.crom: is not known; did you mean cron?"),
    ] {
        assert!(problems(text).contains(problem), "{text}: {}", problems(text));
    }
}

#[test]
fn a_type_that_was_never_served_is_tried_no_shorter_than_any_other() {
    let of = |text: &str| settings(text).policies.of(&JobType::parse("a").unwrap()).never_served_grace;
    let minutes = |minutes: u64| Some(Duration::from_secs(minutes * 60));
    assert_eq!(of(""), minutes(15));
    assert_eq!(of("[types.a]\nnever_served_grace = '2m'"), minutes(2));
    assert_eq!(of("[defaults]\nnever_served_grace = 'off'"), None);
    assert_eq!(of("[types.a]\nno_handler_grace = '1h'"), minutes(60), "it is enough to set the one");
    assert_eq!(of("[defaults]\nnever_served_grace = '5m'\n[types.a]\nno_handler_grace = '1h'"), minutes(60));
    let shorter =
        |section: &str| problems(&format!("[{section}]\nno_handler_grace = '1h'\nnever_served_grace = '30m'"));
    for (section, key) in [("types.a", "types.a"), ("defaults", "defaults")] {
        let reason = format!("{key}.never_served_grace: 30m is shorter than no_handler_grace, 1h");
        assert!(shorter(section).contains(&reason), "{}", shorter(section));
    }
    assert!(problems("[types.a]\nnever_served_grace = 'soon'").contains("or \"off\""));
}

#[test]
fn a_type_switches_the_breaker_of_the_defaults_off() {
    let text = "[defaults]\nbreaker = { failures = 3 }\n[types.off]\nbreaker = \"off\"\n[types.own]\nbreaker = { failures = 7 }\n[types.same]\ntimeout = \"1s\"";
    let of = |name: &str| {
        let policies = settings(text).policies;
        policies.of(&JobType::parse(name).unwrap()).breaker.map(|breaker| breaker.failures)
    };
    assert_eq!([of("off"), of("own"), of("same"), of("other")], [None, Some(7), Some(3), Some(3)]);
    assert!(problems("[types.a]\nbreaker = \"on\"").contains("types.a.breaker: \"on\" is not \"off\", or a table"));
    let from_environment = load(text, &[("LONGSHORE_TYPES__OWN__BREAKER", "off")]).unwrap();
    assert!(from_environment.settings.policies.of(&JobType::parse("own").unwrap()).breaker.is_none());
}

#[test]
fn limits_set_at_run_time_are_shown_in_place_of_the_written_ones() {
    let text = "[types.a]\nrate_limit = { rate = 9 }\n[limits.crm]\nrate = 7";
    let limit = RateLimit { rate: 3, per: Duration::from_secs(60), burst: 4, window: Window::Bucket };
    let configuration = load(text, &[]).unwrap();
    assert_eq!(configuration.settings.policies.limits_set_in.len(), 2);
    let of = |name: &str| Scope::Type(JobType::parse(name).unwrap());
    let shown =
        configuration.in_force_with([(of("a"), limit), (of("new"), limit), (Scope::Named("crm".into()), limit)]);
    let squeezed: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let count = |wanted: &str| squeezed.iter().filter(|line| *line == wanted).count();
    assert_eq!((count("rate_limit.rate = 3 # run time"), count("rate = 3 # run time")), (2, 1), "{shown}");
    assert_eq!((count("[types.new]"), count("rate_limit.rate = 9 # longshore.toml:2")), (1, 0), "{shown}");
}

#[test]
fn a_preset_of_a_schedule_and_the_queue_of_webhooks_must_be_there() {
    let text = r#"
[queues.main]
[webhooks]
queue = "hoooks"
[schedules.nightly]
every = "1h"
type = "report"
retry = "nosuch"
"#;
    let found = problems(text);
    assert!(found.contains(r#"longshore.toml:4:9: webhooks.queue: "hoooks" is not a queue of [queues]"#), "{found}");
    let preset = r#"longshore.toml:8:9: schedules.nightly.retry: no preset "nosuch" is configured; there is none"#;
    assert!(found.contains(preset), "{found}");
}

#[test]
fn the_keys_of_tokens_must_be_readable_if_no_url_has_them() {
    let jwt = "[http.jwt]\nissuer = \"i\"\naudience = \"a\"\njwks_file = \"/nowhere/keys.json\"\n";
    let found = problems(jwt);
    assert!(found.contains("longshore.toml:4:13: http.jwt.jwks_file: cannot be read: "), "{found}");
    assert!(load(&format!("{jwt}jwks_url = \"https://login.example/keys\"\n"), &[]).is_ok());
    let file = tempfile::NamedTempFile::new().unwrap();
    for (text, reason) in [
        ("{", "is no JSON: "),
        ("[]", "is no JWK set: there is no list \"keys\""),
        (r#"{"keys":1}"#, "is no JWK set: there is no list \"keys\""),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let found = problems(&jwt.replace("/nowhere/keys.json", file.path().to_str().unwrap()));
        assert!(found.contains(&format!("longshore.toml:4:13: http.jwt.jwks_file: {reason}")), "{found}");
    }
}

#[test]
fn the_keys_of_tokens_stand_beside_the_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, r#"{"keys":[]}"#).unwrap();
    let text = "[http.jwt]\nissuer = 'i'\naudience = 'a'\njwks_file = 'jwks.json'\n".to_owned();
    let source = Source::new(folder.path().join("longshore.toml"), text);
    let loaded = Configuration::from_parts(Some(source), std::iter::empty(), &handlers());
    assert_eq!(loaded.unwrap().http.jwt.and_then(|jwt| jwt.file), Some(file));
}

#[test]
fn files_of_tls_that_cannot_be_used_are_reported_with_the_other_mistakes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text =
        format!("[http.tls]\ncert = '{}'\nkey = '/nowhere/a.key'\n[node]\nlease = 'soon'", file.path().display());
    let found = problems(&text);
    assert!(found.contains("longshore.toml:3:7: http.tls.key: /nowhere/a.key: "), "{found}");
    assert!(found.contains("node.lease: "), "{found}");
    std::fs::write(file.path(), "x").unwrap();
    let found = problems(&text.replace("/nowhere/a.key", &file.path().display().to_string()));
    assert!(found.contains("longshore.toml:2:8: http.tls.cert: ") && found.contains("has no certificate"), "{found}");
    settings("[http]\nlisten = 'off'\ntls = { cert = '/nowhere', key = '/nowhere' }");
}

#[test]
fn an_empty_text_is_one_mistake() {
    for text in ["[schedules.a]\nevery = '5m'\ntype = ''", "[http.tls]\nkey = 'a'\ncert = ''"] {
        let found = problems(text);
        assert!(found.starts_with("the configuration has a mistake") && found.contains("is empty"), "{found}");
    }
}

#[test]
fn a_whole_number_beyond_64_bits_is_no_text() {
    let found = problems("[http]\nenvironment = 99999999999999999999");
    assert!(found.contains("longshore.toml:2:15: is beyond TOML's whole numbers"), "{found}");
    assert!(problems("[webhooks]\nallow = [99999999999999999999]").contains("longshore.toml:2:10: is beyond"));
}

#[test]
fn an_option_of_the_command_line_is_the_source_that_is_shown() {
    let shown = load("", &[("LONGSHORE_NAMESPACE", "a"), ("--namespace", "zz")]).unwrap().in_force();
    assert!(shown.lines().any(|line| line.contains("\"zz\"") && line.ends_with("# --namespace")), "{shown}");
}
